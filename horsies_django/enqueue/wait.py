"""Waiting for tasks, or workflows, to end, at a price that does not grow with how many wait.

All who wait for the same kind on one database, in one process or on one event loop, share a :class:`_Room`. One of them
leads: it looks for all, and hands the lead on as it leaves, however it leaves. So nobody depends on a thread or a task
of ours.

Where the database can tell, an :class:`~.ear.Ear` hears of ends and calls those who wait for them: the leader looks for
these at once. What it doesn't hear is found by the looks.
"""

from __future__ import annotations

import asyncio
import math
import operator
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary, ref

from asgiref.sync import sync_to_async
from django.db import Error, OperationalError, connections
from django.db.models import TextField
from django.db.models.functions import Cast
from django.utils.asyncio import async_unsafe

from ..core.status import TASK_TERMINAL_STATES
from ..db.completion_listener import subscribe
from ..db.completions import short_key

#: Seconds between two looks of a room: soon at first and after each newcomer, then less often.
_FIRST_LOOK: Final = 0.02
_LONGEST_LOOK: Final = 0.5
#: The same on SQLite, where nothing tells of ends, and a look is no round trip.
_LONGEST_LOOK_AT_A_FILE: Final = 0.05

#: Ids that one query asks for.
_CHUNK: Final = 500

#: Seconds that who doesn't lead sleeps at most: a thread can be interrupted only between two sleeps.
_NAP: Final = 1.0

#: Seconds between two looks for those of whose ends somebody tells, however often that is.
_NEXT_CALL: Final = 0.005
#: Seconds that a look gets to be answered, however little time is left: so long may a wait last beyond its time-out.
_PATIENCE: Final = 1.0

#: Seconds without a look after which another takes the lead: the leader's own connection may hang.
_STALE: Final = 5.0


class News(Protocol):
    """What a waiter has to know of what it waits for: enough to make a result of it without another question."""

    @property
    def is_final(self) -> bool:
        """Whether there is nothing more to wait for."""


N = TypeVar("N", bound=News)

#: Asks a database for the news of these ids, of those that there are.
Reader: TypeAlias = Callable[[str, Sequence[UUID]], Mapping[UUID, N]]


class Silent(OperationalError):
    """The database has not answered before the time was up: a frozen server, or a network that delivers nothing."""


#: The news, final unless the time is up; None if there is no such row; or why the database can't say.
Answer: TypeAlias = N | Error | None


class Row(NamedTuple):
    """The news of a task; the result is the JSON text, for each to read in its own time."""

    status: str
    result: str | None
    typed_payload: bool

    @property
    def is_final(self) -> bool:
        """Whether it has ended."""
        return self.status in TASK_TERMINAL_STATES


def of_tasks(database: str, keys: Sequence[UUID]) -> Mapping[UUID, Row]:
    """Read the news of tasks."""
    from ..models import Task

    rows = Task.objects.using(database).filter(pk__in=keys)
    columns = ("pk", "status", Cast("result", TextField()), "typed_payload")
    return {key: Row(*values) for key, *values in rows.values_list(*columns)}


def deadline_of(timeout: float | None) -> float:
    """Return when a wait is over, by time.monotonic(); None waits for ever. Raises ValueError for what is no time."""
    if timeout is None:
        return math.inf
    if not isinstance(timeout, int | float) or not timeout >= 0:  # NaN is neither
        raise ValueError(f"timeout is {timeout!r}; allowed: seconds from 0 on, or None to wait for ever.")
    return time.monotonic() + timeout


@dataclass(eq=False, slots=True)
class _Seat:
    """One that waits."""

    key: UUID
    deadline: float
    bell: threading.Event | asyncio.Event
    is_told: bool = False
    answer: Answer[Any] = None

    @property
    def patient_until(self) -> float:
        """When a look that begins now is given up."""
        return max(self.deadline, time.monotonic() + _PATIENCE)

    def hear(self, answers: Mapping[UUID, Any] | Error, asked_at: float) -> None:
        if isinstance(answers, Silent) and time.monotonic() < self.deadline:
            return
        answer = answers if isinstance(answers, Error) else answers.get(self.key)
        if answer is None or isinstance(answer, Error) or answer.is_final or self.deadline <= asked_at:
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
    called: dict[_Seat, None] = field(default_factory=dict)
    called_at: float = float("-inf")
    leader: _Seat | None = None
    looked_at: float = 0.0
    pace: float = _FIRST_LOOK
    longest: float = _LONGEST_LOOK

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

    def on_completed(self, marks: Collection[str]) -> None:
        """Some have ended, others' among them perhaps. May be called from any thread."""
        with self.lock:
            called = [seat for seat in self.seats if short_key(seat.key) in marks]
            self.called |= dict.fromkeys(called)
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
                if (left := seat.deadline + _PATIENCE - now) <= 0:  # its leader waits longer for an answer
                    seat.hear(Silent(), now)
                    self.seats.pop(seat, None)
                    return None
                return _Turn(pause=min(_NAP, left))
            if self.called and now < (next_at := self.called_at + _NEXT_CALL):
                return _Turn(pause=next_at - now)
            called, self.called = [other for other in self.called if other in self.seats], {}
            if called:
                self.called_at = now
                return _Turn(called, now, is_for_all=False)
            soonest = min(other.deadline for other in self.seats)
            due = self.looked_at + max(_FIRST_LOOK, min(self.pace, soonest - self.looked_at))
            if now < due:
                return _Turn(pause=due - now)
            self.looked_at, self.pace = now, min(self.pace * 1.5, self.longest)
            return _Turn(list(self.seats), now)

    def tell(self, turn: _Turn, answers: Mapping[UUID, Any] | Error) -> None:
        with self.lock:
            if turn.is_for_all:
                self.looked_at = time.monotonic()
            for seat in turn.asked:
                seat.hear(answers, turn.asked_at)
                if seat.is_told:
                    self.seats.pop(seat, None)
                    seat.bell.set()


@cache
def _room_of_process(database: str, read: Reader[Any], pid: int) -> _Room:
    """By process: a fork inherits none of the threads that wait."""
    return _Room(longest=_longest_look(database))


_Rooms: TypeAlias = dict[tuple[str, Reader[Any]], _Room]
_rooms_of_loops: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Rooms]] = WeakKeyDictionary()


def _room_of_loop(database: str, read: Reader[Any], loop: asyncio.AbstractEventLoop) -> _Room:
    rooms = _rooms_of_loops.setdefault(loop, {})
    # The room must not keep the loop alive, nor wake one that is closed.
    made = _Room(partial(_pass_on, ref(loop)), longest=_longest_look(database))
    return rooms.setdefault((database, read), made)


def _longest_look(database: str) -> float:
    return _LONGEST_LOOK_AT_A_FILE if connections[database].vendor == "sqlite" else _LONGEST_LOOK


def _pass_on(loop: ref[asyncio.AbstractEventLoop], action: Callable[[], None]) -> None:
    if (alive := loop()) is not None:
        with suppress(RuntimeError):
            alive.call_soon_threadsafe(action)


@async_unsafe("A thread that runs an event loop can't wait for an end: use aget().")
def ended(read: Reader[N], database: str, key: UUID, deadline: float) -> Answer[N]:
    """Wait in this thread until the news that ``read`` gives of ``key`` is final, or ``deadline`` has come.

    It is by time.monotonic().
    """
    seat = _Seat(key, deadline, bell := threading.Event())
    is_alone = _first_look(read, database, seat)
    room = _Room() if is_alone else _room_of_process(database, read, os.getpid())
    try:
        room.sit(seat)
        while turn := room.turn(seat):
            if turn.asked:
                if not is_alone:
                    subscribe(database, room)
                room.tell(turn, _look(read, database, turn.asked, seat.patient_until))
            else:
                bell.wait(turn.pause)
    finally:
        room.rise(seat)
    return seat.answer


async def aended(read: Reader[N], database: str, key: UUID, deadline: float) -> Answer[N]:
    """See :func:`ended`; the looks are taken in the thread of this coroutine's own queries."""
    seat = _Seat(key, deadline, bell := asyncio.Event())
    is_alone = await sync_to_async(_first_look)(read, database, seat)
    room = _Room() if is_alone else _room_of_loop(database, read, asyncio.get_running_loop())
    try:
        room.sit(seat)
        while turn := room.turn(seat):
            if turn.asked:
                if not is_alone:
                    subscribe(database, room)
                room.tell(turn, await sync_to_async(_look)(read, database, turn.asked, seat.patient_until))
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(turn.pause):
                        await bell.wait()
    finally:
        room.rise(seat)
    return seat.answer


def _first_look(read: Reader[Any], database: str, seat: _Seat) -> bool:
    """Look for one, and return whether it need not, or must not, wait with others: in a transaction it sees other rows.

    Who has no connection yet lets the leader look, rather than open one of a thousand.
    """
    connection = connections[database]
    now = time.monotonic()
    if connection.connection is None and now < seat.deadline:
        return False
    seat.hear(_look(read, database, [seat], seat.patient_until), now)
    return seat.is_told or not connection.autocommit


def _look(
    read: Reader[N], database: str, seats: Collection[_Seat], until: float = math.inf
) -> Mapping[UUID, N] | Error:
    """Return the news there is, or why there is none; after ``until``, by time.monotonic(), that is :class:`Silent`."""
    keys = list({seat.key for seat in seats})
    if until == math.inf or connections[database].vendor != "postgresql":
        return _ask(read, database, keys)
    return _ask_in_time(read, database, keys, until)


def _ask(read: Reader[N], database: str, keys: Sequence[UUID]) -> Mapping[UUID, N] | Error:
    """Ask the database; again if the connection turns out to have died since its last use."""
    chunks = [keys[start : start + _CHUNK] for start in range(0, len(keys), _CHUNK)]
    connection = connections[database]
    while True:
        is_new = connection.connection is None
        try:
            return {key: news for chunk in chunks for key, news in read(database, chunk).items()}
        except Error as error:
            connection.close_if_unusable_or_obsolete()
            if is_new or connection.connection is not None:
                return error


def _ask_in_time(read: Reader[N], database: str, keys: Sequence[UUID], until: float) -> Mapping[UUID, N] | Error:
    """Ask on this thread's connection, in a thread that can be left: no driver gives up on a server that is silent.

    Outside a transaction this thread gets a new connection then, and the old one is closed once it can be. Inside one
    it stays: whatever is asked next of it waits for the same answer.
    """
    connection = connections[database]
    answers: list[Mapping[UUID, N] | Error | BaseException] = []
    lock = threading.Lock()
    is_left = False

    def ask() -> None:
        connections[database] = connection
        answer: Mapping[UUID, N] | Error | BaseException
        try:
            answer = _ask(read, database, keys)
        except BaseException as error:  # noqa: BLE001  # it is raised where the answer is awaited
            answer = error
        with lock:
            answers.append(answer)
            if is_left:
                connection.close()
            connection.dec_thread_sharing()

    name = threading.current_thread().name  # whoever logs, or traces, statements sees who asks
    thread = threading.Thread(target=copy_context().run, args=(ask,), name=name, daemon=True)
    try:
        connection.inc_thread_sharing()
        thread.start()  # may be interrupted once the new thread runs
        while thread.is_alive() and (left := until - time.monotonic()) > 0:
            thread.join(min(left, _NAP))
    finally:
        with lock:
            is_left = not answers and (connection.connection is None or connection.autocommit)
            if is_left:
                connections[database] = connection.copy()
    answer = answers[0] if answers else Silent("the database has not answered in time")
    if isinstance(answer, BaseException) and not isinstance(answer, Error):
        raise answer
    return answer
