"""Waiting for tasks to end, at a price that does not grow with how many wait.

All who wait on one database, in one process or on one event loop, share a :class:`_Room`. One of them leads: it looks
for all, and hands the lead on as it leaves, however it leaves. So no thread and no task of ours is ever left behind.
"""

from __future__ import annotations

import asyncio
import functools
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
from django.utils.asyncio import async_unsafe

from .states import TASK_TERMINAL_STATES

#: Seconds between two looks of a room: soon at first and after each newcomer, then less often.
_FIRST_LOOK: Final = 0.02
_LONGEST_LOOK: Final = 0.5

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
    """Those who wait, and when their leader looked last."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    seats: dict[_Seat, None] = field(default_factory=dict)
    leader: _Seat | None = None
    looked_at: float = 0.0
    pace: float = _FIRST_LOOK

    def sit(self, seat: _Seat) -> None:
        with self.lock:
            if not self.seats:
                self.looked_at = time.monotonic()
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
            soonest = min(other.deadline for other in self.seats)
            due = self.looked_at + max(_FIRST_LOOK, min(self.pace, soonest - self.looked_at))
            if now < due:
                return _Turn(pause=due - now)
            self.looked_at, self.pace = now, min(self.pace * 1.5, _LONGEST_LOOK)
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
    """By process: a fork inherits none of the threads that wait."""
    return _Room()


_rooms_of_loops: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Room]]] = WeakKeyDictionary()


@async_unsafe("A thread that runs an event loop can't wait for a task: use aget().")
def ended(database: str, key: UUID, deadline: float) -> Answer:
    """Wait in this thread until a task has ended, or ``deadline`` has come by time.monotonic()."""
    seat = _Seat(key, deadline, bell := threading.Event())
    room = _Room() if _first_look(database, seat) else _room_of_process(database, os.getpid())
    try:
        room.sit(seat)
        while turn := room.turn(seat):
            if turn.asked:
                room.tell(turn, _look(database, turn.asked))
            else:
                bell.wait(turn.pause)
    finally:
        room.rise(seat)
    return seat.answer


async def aended(database: str, key: UUID, deadline: float) -> Answer:
    """See :func:`ended`; the looks are taken in the thread of this coroutine's own queries."""
    seat = _Seat(key, deadline, bell := asyncio.Event())
    rooms = _rooms_of_loops.setdefault(asyncio.get_running_loop(), {})
    room = _Room() if await sync_to_async(_first_look)(database, seat) else rooms.setdefault(database, _Room())
    try:
        room.sit(seat)
        while turn := room.turn(seat):
            if turn.asked:
                room.tell(turn, await sync_to_async(_look)(database, turn.asked))
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(turn.pause):
                        await bell.wait()
    finally:
        room.rise(seat)
    return seat.answer


def _first_look(database: str, seat: _Seat) -> bool:
    """Look for one, and return whether it need not, or must not, wait with others: in a transaction it sees other rows.

    Who has no connection yet lets the leader look, rather than open one of a thousand.
    """
    connection = connections[database]
    now = time.monotonic()
    if connection.connection is None and now < seat.deadline:
        return False
    seat.hear(_look(database, [seat]), now)
    return seat.is_told or not connection.autocommit


def _look(database: str, seats: Collection[_Seat]) -> Mapping[UUID, Row] | Error:
    """Return the rows there are; asked again if the connection turns out to have died since its last use."""
    from .models import Task

    keys = list({seat.key for seat in seats})
    chunks = [keys[start : start + _CHUNK] for start in range(0, len(keys), _CHUNK)]
    tasks = Task.objects.using(database).values_list("pk", "status", Cast("result", TextField()), "rich")
    connection = connections[database]
    while True:
        is_new = connection.connection is None
        try:
            return {key: Row(*values) for chunk in chunks for key, *values in tasks.filter(pk__in=chunk)}
        except Error as error:
            connection.close_if_unusable_or_obsolete()
            if is_new or connection.connection is not None:
                return error
