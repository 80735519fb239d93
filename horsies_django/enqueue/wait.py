"""Waits until tasks or workflows end. The cost in queries does not grow with the number of waiters.

All waiters for the same kind of row on one database, in one process or one event loop, share a :class:`_WaitGroup`. One
of them is the leader: it polls for all of them, and passes the lead on when it leaves, for whatever reason. No thread
or task of our own is needed.

Where the database can notify, a :class:`~..db.completion_listener.CompletionListener` receives completions, and the
leader polls for those waiters at once. Polling finds the completions that it misses.
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

#: Seconds between two polls of a group: short at first and after each new waiter, then longer.
_FIRST_POLL: Final = 0.02
_LONGEST_POLL: Final = 0.5
#: The same on SQLite, which can't notify, and where a poll is no round trip.
_LONGEST_POLL_SQLITE: Final = 0.05

#: Maximum ids in one query.
_IDS_PER_QUERY: Final = 500

#: Maximum seconds that a follower sleeps at a time. A thread can be interrupted only between two sleeps.
_FOLLOWER_SLEEP: Final = 1.0

#: Minimum seconds between two polls for completions, however many notifications arrive.
_MIN_COMPLETION_INTERVAL: Final = 0.005
#: Minimum seconds that a query gets to be answered. A wait may outlast its timeout by as much.
_QUERY_GRACE: Final = 1.0

#: Seconds without a poll after which another waiter takes the lead: the leader's connection may hang.
_LEADER_TIMEOUT: Final = 5.0


class Snapshot(Protocol):
    """The state of a task or a workflow: enough to build its result without another query."""

    @property
    def is_final(self) -> bool:
        """Whether it has ended, so that the wait is over."""


N = TypeVar("N", bound=Snapshot)

#: Reads the snapshots of these ids from a database; ids without a row are left out.
Reader: TypeAlias = Callable[[str, Sequence[UUID]], Mapping[UUID, N]]


class NoAnswer(OperationalError):
    """The database did not answer in time: the server is frozen, or the network delivers nothing."""


#: The snapshot, final unless the wait has timed out; None if there is no such row; or the database's error.
Answer: TypeAlias = N | Error | None


class TaskSnapshot(NamedTuple):
    """The snapshot of a task. ``result`` is JSON text: each waiter parses its own."""

    status: str
    result: str | None
    typed_payload: bool

    @property
    def is_final(self) -> bool:
        """Whether it has ended."""
        return self.status in TASK_TERMINAL_STATES


def of_tasks(database: str, keys: Sequence[UUID]) -> Mapping[UUID, TaskSnapshot]:
    """Read the snapshots of tasks."""
    from ..models import Task

    rows = Task.objects.using(database).filter(pk__in=keys)
    columns = ("pk", "status", Cast("result", TextField()), "typed_payload")
    return {key: TaskSnapshot(*values) for key, *values in rows.values_list(*columns)}


def deadline_of(timeout: float | None) -> float:
    """Return the time of time.monotonic() at which a wait ends. ``timeout`` is in seconds; None waits for ever.

    Raises ValueError if it is negative or no number.
    """
    if timeout is None:
        return math.inf
    if not isinstance(timeout, int | float) or not timeout >= 0:  # NaN is neither
        raise ValueError(f"timeout is {timeout!r}; allowed: seconds from 0 on, or None to wait for ever.")
    return time.monotonic() + timeout


@dataclass(eq=False, slots=True)
class _Waiter:
    """A thread or a coroutine that waits for one task or workflow."""

    key: UUID
    deadline: float
    wake: threading.Event | asyncio.Event
    is_done: bool = False
    answer: Answer[Any] = None

    @property
    def query_until(self) -> float:
        """The time at which a query that starts now is given up."""
        return max(self.deadline, time.monotonic() + _QUERY_GRACE)

    def on_result(self, answers: Mapping[UUID, Any] | Error, polled_at: float) -> None:
        if isinstance(answers, NoAnswer) and time.monotonic() < self.deadline:
            return
        answer = answers if isinstance(answers, Error) else answers.get(self.key)
        if answer is None or isinstance(answer, Error) or answer.is_final or self.deadline <= polled_at:
            self.answer, self.is_done = answer, True


class _NextAction(NamedTuple):
    """What a waiter does next: poll for these waiters now, or else sleep for ``pause`` seconds."""

    waiters: Collection[_Waiter] = ()
    polled_at: float = 0.0
    pause: float = _FOLLOWER_SLEEP
    is_for_all: bool = True


@dataclass(eq=False, slots=True, weakref_slot=True)
class _WaitGroup:
    """Waiters that share their polls. ``call`` runs a function where events may be set: in the loop of the waiters."""

    call: Callable[[Callable[[], None]], object] = operator.call
    lock: threading.Lock = field(default_factory=threading.Lock)
    waiters: dict[_Waiter, None] = field(default_factory=dict)
    completed: dict[_Waiter, None] = field(default_factory=dict)
    completed_at: float = float("-inf")
    leader: _Waiter | None = None
    polled_at: float = 0.0
    interval: float = _FIRST_POLL
    max_interval: float = _LONGEST_POLL

    def join(self, waiter: _Waiter) -> None:
        with self.lock:
            if not self.waiters:
                self.polled_at = time.monotonic()
            self.waiters[waiter] = None
            if self.leader is not None and self.interval > _FIRST_POLL:
                self.leader.wake.set()
            self.interval = _FIRST_POLL

    def leave(self, waiter: _Waiter) -> None:
        with self.lock:
            self.waiters.pop(waiter, None)
            if self.leader is waiter:
                self.leader = next(iter(self.waiters), None)
                if self.leader is not None:
                    self.leader.wake.set()

    def on_completed(self, short_keys: Collection[str]) -> None:
        """Poll for these keys at once. May be called from any thread, also with keys that nothing here waits for."""
        with self.lock:
            notified = [waiter for waiter in self.waiters if short_key(waiter.key) in short_keys]
            self.completed |= dict.fromkeys(notified)
            if notified and self.leader is not None:
                self.call(self.leader.wake.set)

    def next_step(self, waiter: _Waiter) -> _NextAction | None:
        """Return what ``waiter`` has to do next; None once it has its answer."""
        with self.lock:
            waiter.wake.clear()
            if waiter.is_done:
                return None
            now = time.monotonic()
            if self.leader is None or now - self.polled_at > _LEADER_TIMEOUT:
                self.leader = waiter
            if self.leader is not waiter:
                if (left := waiter.deadline + _QUERY_GRACE - now) <= 0:  # the leader waits longer for an answer
                    waiter.on_result(NoAnswer(), now)
                    self.waiters.pop(waiter, None)
                    return None
                return _NextAction(pause=min(_FOLLOWER_SLEEP, left))
            if self.completed and now < (next_at := self.completed_at + _MIN_COMPLETION_INTERVAL):
                return _NextAction(pause=next_at - now)
            completed, self.completed = [other for other in self.completed if other in self.waiters], {}
            if completed:
                self.completed_at = now
                return _NextAction(completed, now, is_for_all=False)
            soonest = min(other.deadline for other in self.waiters)
            due = self.polled_at + max(_FIRST_POLL, min(self.interval, soonest - self.polled_at))
            if now < due:
                return _NextAction(pause=due - now)
            self.polled_at, self.interval = now, min(self.interval * 1.5, self.max_interval)
            return _NextAction(list(self.waiters), now)

    def deliver(self, step: _NextAction, answers: Mapping[UUID, Any] | Error) -> None:
        with self.lock:
            if step.is_for_all:
                self.polled_at = time.monotonic()
            for waiter in step.waiters:
                waiter.on_result(answers, step.polled_at)
                if waiter.is_done:
                    self.waiters.pop(waiter, None)
                    waiter.wake.set()


@cache
def _group_of_process(database: str, read: Reader[Any], pid: int) -> _WaitGroup:
    """Return the group of this process. A fork gets its own, for it does not inherit the threads that wait."""
    return _WaitGroup(max_interval=_longest_poll(database))


_WaitGroups: TypeAlias = dict[tuple[str, Reader[Any]], _WaitGroup]
_groups_of_loops: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _WaitGroups]] = WeakKeyDictionary()


def _group_of_loop(database: str, read: Reader[Any], loop: asyncio.AbstractEventLoop) -> _WaitGroup:
    groups = _groups_of_loops.setdefault(loop, {})
    # The group must neither keep the loop alive nor wake a closed one.
    new = _WaitGroup(partial(_call_in_loop, ref(loop)), max_interval=_longest_poll(database))
    return groups.setdefault((database, read), new)


def _longest_poll(database: str) -> float:
    return _LONGEST_POLL_SQLITE if connections[database].vendor == "sqlite" else _LONGEST_POLL


def _call_in_loop(loop: ref[asyncio.AbstractEventLoop], action: Callable[[], None]) -> None:
    if (alive := loop()) is not None:
        with suppress(RuntimeError):
            alive.call_soon_threadsafe(action)


@async_unsafe("A thread that runs an event loop can't wait for an end: use aget().")
def wait_for_end(read: Reader[N], database: str, key: UUID, deadline: float) -> Answer[N]:
    """Block this thread until the snapshot of ``key`` is final or ``deadline``, by time.monotonic(), has passed."""
    waiter = _Waiter(key, deadline, wake := threading.Event())
    is_alone = _first_poll(read, database, waiter)
    group = _WaitGroup() if is_alone else _group_of_process(database, read, os.getpid())
    try:
        group.join(waiter)
        while step := group.next_step(waiter):
            if step.waiters:
                if not is_alone:
                    subscribe(database, group)
                group.deliver(step, _poll(read, database, step.waiters, waiter.query_until))
            else:
                wake.wait(step.pause)
    finally:
        group.leave(waiter)
    return waiter.answer


async def await_end(read: Reader[N], database: str, key: UUID, deadline: float) -> Answer[N]:
    """The same as :func:`wait_for_end` for coroutines. Queries run in the thread of the coroutine's own queries."""
    waiter = _Waiter(key, deadline, wake := asyncio.Event())
    is_alone = await sync_to_async(_first_poll)(read, database, waiter)
    group = _WaitGroup() if is_alone else _group_of_loop(database, read, asyncio.get_running_loop())
    try:
        group.join(waiter)
        while step := group.next_step(waiter):
            if step.waiters:
                if not is_alone:
                    subscribe(database, group)
                group.deliver(step, await sync_to_async(_poll)(read, database, step.waiters, waiter.query_until))
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(step.pause):
                        await wake.wait()
    finally:
        group.leave(waiter)
    return waiter.answer


def _first_poll(read: Reader[Any], database: str, waiter: _Waiter) -> bool:
    """Poll for one waiter; return whether it should wait outside the group, if at all.

    It has its answer, or it is in a transaction and may see other rows than the group's leader. A waiter without a
    connection leaves the poll to the leader, so that a thousand threads don't open a thousand connections.
    """
    connection = connections[database]
    now = time.monotonic()
    if connection.connection is None and now < waiter.deadline:
        return False
    waiter.on_result(_poll(read, database, [waiter], waiter.query_until), now)
    return waiter.is_done or not connection.autocommit


def _poll(
    read: Reader[N], database: str, waiters: Collection[_Waiter], until: float = math.inf
) -> Mapping[UUID, N] | Error:
    """Return the snapshots, or the error; past ``until``, by time.monotonic(), that is :class:`NoAnswer`."""
    keys = list({waiter.key for waiter in waiters})
    if until == math.inf or connections[database].vendor != "postgresql":
        return _query(read, database, keys)
    return _query_with_timeout(read, database, keys, until)


def _query(read: Reader[N], database: str, keys: Sequence[UUID]) -> Mapping[UUID, N] | Error:
    """Query the database, and once more if the connection has died since its last use."""
    chunks = [keys[start : start + _IDS_PER_QUERY] for start in range(0, len(keys), _IDS_PER_QUERY)]
    connection = connections[database]
    while True:
        is_new = connection.connection is None
        try:
            return {key: snapshot for chunk in chunks for key, snapshot in read(database, chunk).items()}
        except Error as error:
            connection.close_if_unusable_or_obsolete()
            if is_new or connection.connection is not None:
                return error


def _query_with_timeout(read: Reader[N], database: str, keys: Sequence[UUID], until: float) -> Mapping[UUID, N] | Error:
    """Run the query in a thread that can be abandoned: no driver gives up on a silent server.

    When it is abandoned outside a transaction, this thread gets a new connection, and the other thread closes the old
    one as soon as it can. Inside a transaction the connection stays: its next query waits for the same server.
    """
    connection = connections[database]
    answers: list[Mapping[UUID, N] | Error | BaseException] = []
    lock = threading.Lock()
    is_abandoned = False

    def run() -> None:
        connections[database] = connection
        answer: Mapping[UUID, N] | Error | BaseException
        try:
            answer = _query(read, database, keys)
        except BaseException as error:  # noqa: BLE001  # raised below, in the waiting thread
            answer = error
        with lock:
            answers.append(answer)
            if is_abandoned:
                connection.close()
            connection.dec_thread_sharing()

    name = threading.current_thread().name  # logs and traces of statements show the thread that waits
    thread = threading.Thread(target=copy_context().run, args=(run,), name=name, daemon=True)
    try:
        connection.inc_thread_sharing()
        thread.start()  # an interrupt may arrive once the new thread runs
        while thread.is_alive() and (left := until - time.monotonic()) > 0:
            thread.join(min(left, _FOLLOWER_SLEEP))
    finally:
        with lock:
            is_abandoned = not answers and (connection.connection is None or connection.autocommit)
            if is_abandoned:
                connections[database] = connection.copy()
    answer = answers[0] if answers else NoAnswer("the database has not answered in time")
    if isinstance(answer, BaseException) and not isinstance(answer, Error):
        raise answer
    return answer
