"""Waiting for tasks to end, at a price that does not grow with how many wait.

All who wait on one database, in one process or on one event loop, share a :class:`_Room`. One of them leads: it looks
for all, and hands the lead on as it leaves, however it leaves. So no thread and no task of ours is ever left behind.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from django.db import Error, connections
from django.db.models import TextField
from django.db.models.functions import Cast

from .states import TASK_TERMINAL_STATES

#: Seconds between two looks of a room: soon at first and after each newcomer, then less often.
_FIRST_LOOK: Final = 0.02
_LONGEST_LOOK: Final = 0.5
_SLOWER: Final = 1.5

#: Ids that one query asks for.
_CHUNK: Final = 500

#: Seconds that who doesn't lead sleeps at most: a thread can be interrupted only between two sleeps.
_NAP: Final = 1.0

#: Seconds without a look after which another takes the lead: the leader's own connection may hang.
_STALE: Final = 5.0


class Row(NamedTuple):
    """What a waiter has to know; the result is the JSON text, for each to read in its own time."""

    status: str
    result: str | None
    rich: bool


#: The row, ended unless the time is up; None if there is none; or why the database can't say.
Answer: TypeAlias = Row | Error | None


@dataclass(eq=False, slots=True)
class _Seat:
    """One that waits."""

    key: UUID
    deadline: float
    bell: threading.Event | asyncio.Event
    is_told: bool = False
    answer: Answer = None

    def hear(self, answers: Mapping[UUID, Row] | Error, asked_at: float) -> None:
        answer = answers if isinstance(answers, Error) else answers.get(self.key)
        if not isinstance(answer, Row) or answer.status in TASK_TERMINAL_STATES or self.deadline <= asked_at:
            self.answer, self.is_told = answer, True


class _Turn(NamedTuple):
    """What to do next: look for these now, or else sleep."""

    asked: Collection[_Seat] = ()
    asked_at: float = 0.0
    pause: float = _NAP


@dataclass(eq=False, slots=True)
class _Room:
    """Those who wait."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    seats: dict[_Seat, None] = field(default_factory=dict)
    leader: _Seat | None = None
    looked_at: float = -math.inf
    pace: float = _FIRST_LOOK

    def sit(self, seat: _Seat, *, has_looked: bool) -> None:
        with self.lock:
            if not self.seats:
                self.looked_at = time.monotonic() if has_looked else -math.inf
            self.seats[seat] = None
            if self.leader is not None and self.pace > _FIRST_LOOK:
                self.leader.bell.set()
            self.pace = _FIRST_LOOK

    def rise(self, seat: _Seat) -> None:
        with self.lock:
            self.seats.pop(seat, None)
            if self.leader is seat:
                self.leader = next(iter(self.seats), None)
                if self.leader is not None:
                    self.leader.bell.set()

    def turn(self, seat: _Seat) -> _Turn | None:
        """Return what ``seat`` has to do; None once it is told."""
        with self.lock:
            seat.bell.clear()
            if seat.is_told:
                return None
            now = time.monotonic()
            if self.leader is None or now - self.looked_at > _STALE:
                self.leader = seat
            if self.leader is not seat:
                return _Turn()
            due = min(self.looked_at + self.pace, *(other.deadline for other in self.seats))
            due = max(due, self.looked_at + _FIRST_LOOK)
            if now < due:
                return _Turn(pause=due - now)
            self.looked_at = now
            self.pace = min(self.pace * _SLOWER, _LONGEST_LOOK)
            return _Turn(list(self.seats), now)

    def tell(self, turn: _Turn, answers: Mapping[UUID, Row] | Error) -> None:
        with self.lock:
            self.looked_at = time.monotonic()
            for seat in turn.asked:
                seat.hear(answers, turn.asked_at)
                if seat.is_told:
                    self.seats.pop(seat, None)
                    seat.bell.set()


@functools.cache
def _room_of_process(database: str, pid: int) -> _Room:
    """A forked process inherits no waiters, so it must not inherit their room."""
    return _Room()


_rooms_of_loops: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Room]]] = WeakKeyDictionary()


def _room_of_loop(database: str) -> _Room:
    return _rooms_of_loops.setdefault(asyncio.get_running_loop(), {}).setdefault(database, _Room())


def ended(database: str, key: UUID, deadline: float) -> Answer:
    """Wait in this thread until a task has ended, or time.monotonic() has passed ``deadline``."""
    bell = threading.Event()
    seat = _Seat(key, deadline, bell)
    is_alone, has_looked = _first_look(database, seat)
    room = _Room() if is_alone else _room_of_process(database, os.getpid())
    try:
        if not seat.is_told:
            room.sit(seat, has_looked=has_looked)
        while (turn := room.turn(seat)) is not None:
            if turn.asked:
                room.tell(turn, _look(database, turn.asked))
            else:
                bell.wait(turn.pause)
    finally:
        room.rise(seat)
    return seat.answer


async def aended(database: str, key: UUID, deadline: float) -> Answer:
    """See :func:`ended`; the looks are taken where this coroutine's own queries are."""
    bell = asyncio.Event()
    seat = _Seat(key, deadline, bell)
    is_alone, has_looked = await sync_to_async(_first_look)(database, seat)
    room = _Room() if is_alone else _room_of_loop(database)
    try:
        if not seat.is_told:
            room.sit(seat, has_looked=has_looked)
        while (turn := room.turn(seat)) is not None:
            if turn.asked:
                room.tell(turn, await sync_to_async(_look)(database, turn.asked))
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(bell.wait(), turn.pause)
    finally:
        room.rise(seat)
    return seat.answer


def _first_look(database: str, seat: _Seat) -> tuple[bool, bool]:
    """Look for one; return whether only this connection sees what it sees (in a transaction), and whether it has looked.

    Who has no connection lets the leader look, instead of opening one of a thousand.
    """
    connection = connections[database]
    now = time.monotonic()
    has_looked = connection.connection is not None or seat.deadline <= now
    if has_looked:
        seat.hear(_look(database, [seat]), now)
    return connection.connection is not None and not connection.autocommit, has_looked


def _look(database: str, seats: Collection[_Seat]) -> Mapping[UUID, Row] | Error:
    """Return the rows there are; once more if the connection turns out to have died since it was last used."""
    from .models import Task

    keys = list({seat.key for seat in seats})
    tasks = Task.objects.using(database).values_list("pk", "status", Cast("result", TextField()), "rich")
    connection = connections[database]
    while True:
        is_new = connection.connection is None
        try:
            chunks = [tasks.filter(pk__in=keys[start : start + _CHUNK]) for start in range(0, len(keys), _CHUNK)]
            return {key: Row(*values) for chunk in chunks for key, *values in chunk}
        except Error as error:
            connection.close_if_unusable_or_obsolete()
            if is_new or connection.connection is not None:
                return error
