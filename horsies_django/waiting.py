"""Waiting for tasks to end, at a price that does not grow with how many wait.

All who wait on one database, in one process or on one event loop, share a :class:`_Room`. One of them leads: it looks
for all, and hands the lead on as it leaves, however it leaves. So nobody depends on a thread or a task of ours.

Where the database can tell, an :class:`~.ear.Ear` hears of ends and calls those who wait for them: the leader looks for
these at once. What it doesn't hear is found by the looks.
"""

from __future__ import annotations

import asyncio
import operator
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID
from weakref import WeakKeyDictionary, ref

from asgiref.sync import sync_to_async
from django.db import Error, connections
from django.db.models import TextField
from django.db.models.functions import Cast
from django.utils.asyncio import async_unsafe

from .ear import attend
from .ends import mark
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
    is_for_all: bool = True


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Room:
    """Those who wait, and when their leader looked last for all. ``pass_on`` calls what rings a bell where it may."""

    pass_on: Callable[[Callable[[], None]], object] = operator.call
    lock: threading.Lock = field(default_factory=threading.Lock)
    seats: dict[_Seat, None] = field(default_factory=dict)
    called: list[_Seat] = field(default_factory=list)
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

    def call(self, marks: Collection[str]) -> None:
        """Some tasks have ended, others' among them perhaps. May be called from any thread."""
        with self.lock:
            called = [seat for seat in self.seats if mark(seat.key) in marks]
            self.called += called
            if called and self.leader is not None:
                self.pass_on(self.leader.bell.set)

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
            called, self.called = [other for other in self.called if other in self.seats], []
            if called:
                return _Turn(called, now, is_for_all=False)
            soonest = min(other.deadline for other in self.seats)
            due = self.looked_at + max(_FIRST_LOOK, min(self.pace, soonest - self.looked_at))
            if now < due:
                return _Turn(pause=due - now)
            self.looked_at, self.pace = now, min(self.pace * 1.5, _LONGEST_LOOK)
            return _Turn(list(self.seats), now)

    def tell(self, turn: _Turn, answers: Mapping[UUID, Row] | Error) -> None:
        with self.lock:
            if turn.is_for_all:
                self.looked_at = time.monotonic()
            for seat in turn.asked:
                seat.hear(answers, turn.asked_at)
                if seat.is_told:
                    self.seats.pop(seat, None)
                    seat.bell.set()


@cache
def _room_of_process(database: str, pid: int) -> _Room:
    """By process: a fork inherits none of the threads that wait."""
    return _Room()


_rooms_of_loops: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Room]]] = WeakKeyDictionary()


def _room_of_loop(database: str, loop: asyncio.AbstractEventLoop) -> _Room:
    rooms = _rooms_of_loops.setdefault(loop, {})
    # The room must not keep the loop alive, nor wake one that is closed.
    return rooms.setdefault(database, _Room(partial(_pass_on, ref(loop))))


def _pass_on(loop: ref[asyncio.AbstractEventLoop], action: Callable[[], None]) -> None:
    if (alive := loop()) is not None:
        with suppress(RuntimeError):
            alive.call_soon_threadsafe(action)


@async_unsafe("A thread that runs an event loop can't wait for a task: use aget().")
def ended(database: str, key: UUID, deadline: float) -> Answer:
    """Wait in this thread until a task has ended, or ``deadline`` has come by time.monotonic()."""
    seat = _Seat(key, deadline, bell := threading.Event())
    is_alone = _first_look(database, seat)
    room = _Room() if is_alone else _room_of_process(database, os.getpid())
    try:
        room.sit(seat)
        while turn := room.turn(seat):
            if turn.asked:
                if not is_alone:
                    attend(database, room)
                room.tell(turn, _look(database, turn.asked))
            else:
                bell.wait(turn.pause)
    finally:
        room.rise(seat)
    return seat.answer


async def aended(database: str, key: UUID, deadline: float) -> Answer:
    """See :func:`ended`; the looks are taken in the thread of this coroutine's own queries."""
    seat = _Seat(key, deadline, bell := asyncio.Event())
    is_alone = await sync_to_async(_first_look)(database, seat)
    room = _Room() if is_alone else _room_of_loop(database, asyncio.get_running_loop())
    try:
        room.sit(seat)
        while turn := room.turn(seat):
            if turn.asked:
                if not is_alone:
                    attend(database, room)
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
