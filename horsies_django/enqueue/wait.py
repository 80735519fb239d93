"""Waits until tasks or workflows end: one thread of a process polls and listens for all its waiters.

The thread runs while it has waiters and two seconds longer, on a connection of its own. A waiter is a future; asyncio
wraps it. The thread polls at once for new waiters and for those whose ends are notified (see ``db/completions.py``),
and for all of them less and less often: these polls find ends whose notifications are lost. A waiter that only its own
connection can answer, because it is in a transaction for example, polls for itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import wait as wait_for_futures
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import Error, OperationalError, connections
from django.db.models import TextField
from django.db.models.functions import Cast
from django.utils.asyncio import async_unsafe

from ..core.backends import listen_database_of
from ..core.status import TASK_TERMINAL_STATES
from ..db import completions, notifications, postgres
from ..db.connection import is_visible_only_here, own_connection
from ..db.connection_listener import ConnectionListener

logger = logging.getLogger("horsies_django")

#: Seconds between two polls for all waiters: short at first and after each new waiter, then longer.
_FIRST_POLL: Final = 0.02
_LONGEST_POLL: Final = 0.5
#: The same on SQLite, which can't notify, and where a poll is no round trip.
_LONGEST_POLL_SQLITE: Final = 0.05

#: Mean seconds between polls for new waiters and for notified ends, however many there are.
_MIN_INTERVAL: Final = 0.005

#: Maximum ids in one query.
_IDS_PER_QUERY: Final = 500

#: Seconds for which a wait may outlast its timeout, until the database has answered.
_GRACE: Final = 1.0

#: Seconds after which a query without an answer makes the next waiter start another thread.
_HANGS_AFTER: Final = 5.0

#: Maximum seconds that a waiting thread sleeps at a time. It can be interrupted only between two sleeps.
_MAX_SLEEP: Final = 1.0

#: Seconds for which the thread runs on without waiters. PostgreSQL gives DROP DATABASE five seconds until other
#: connections must be gone.
_LINGER: Final = 2.0


class Snapshot(Protocol):
    """The state of a task or a workflow: enough to build its result without another query."""

    @property
    def is_final(self) -> bool:
        """Whether it has ended, so that the wait is over."""


N = TypeVar("N", bound=Snapshot)
K = TypeVar("K", bound=Hashable)  # the id of a task or a workflow, or a tuple that begins with one

#: Reads the snapshots of these keys from a database; keys without a row are left out.
Reader: TypeAlias = Callable[[str, Sequence[K]], Mapping[K, N]]


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


class _Waiter(Future[Answer[Any]]):
    """The answer to one call that waits for a task or a workflow."""

    def __init__(self, read: Reader[Any, Any], key: Hashable, deadline: float, is_urgent: bool) -> None:
        super().__init__()
        self.read, self.key, self.deadline, self.is_urgent = read, key, deadline, is_urgent
        task_or_workflow: Any = key[0] if isinstance(key, tuple) else key
        self.short_key = completions.short_key(task_or_workflow)

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def offer(self, answers: Mapping[Any, Any] | Error) -> bool:
        """Take the answer if it ends the wait; return whether the wait is over."""
        answer = answers if isinstance(answers, Error) else answers.get(self.key)
        if answer is None or isinstance(answer, Error) or answer.is_final or self.seconds_left <= 0:
            with suppress(InvalidStateError):  # the caller gave up
                self.set_result(answer)
        return self.done()


class _Poller:
    """The thread that polls and listens for all waiters of this process on one database."""

    def __init__(self, database: str, predecessor: _Poller | None = None) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._waiters: set[_Waiter] = set()
        if predecessor is not None:
            with predecessor._lock:
                self._waiters |= predecessor._waiters
        self._urgent: set[_Waiter] = set()  # new ones, and those whose ends were notified
        self._is_running = False
        self._stepped_at = math.inf
        self._used_at = self._polled_at = float("-inf")
        self._interval = _FIRST_POLL
        self._longest = _LONGEST_POLL_SQLITE if connections[database].vendor == "sqlite" else _LONGEST_POLL
        self._last_polls = deque([float("-inf")] * 2, maxlen=2)
        self._renew_at = math.inf
        self._wake: socket.socket
        self._woken: socket.socket

    @property
    def hangs(self) -> bool:
        """Whether the server does not answer its query: another connection may get an answer."""
        return self._is_running and time.monotonic() - self._stepped_at > _HANGS_AFTER

    def join(self, waiter: _Waiter) -> None:
        """Answer this waiter. Raises RuntimeError if the process can't start a thread."""
        with self._lock:
            if not self._is_running:
                self._start()
            self._waiters.add(waiter)
            if waiter.is_urgent:
                self._urgent.add(waiter)
                self._interval = _FIRST_POLL
                self._wake_up()

    def leave(self, waiter: _Waiter) -> None:
        """Forget this waiter."""
        waiter.cancel()
        with self._lock:
            self._waiters.discard(waiter)
            self._urgent.discard(waiter)

    def _start(self) -> None:
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._used_at, self._stepped_at = time.monotonic(), math.inf
        try:
            threading.Thread(target=self._run, name="horsies-waiter", daemon=True).start()
        except RuntimeError:
            self._stop()
            raise
        self._is_running = True

    def _wake_up(self) -> None:
        with suppress(OSError):  # it has been woken often enough, or has ended
            self._wake.send(b".")

    def _stop(self) -> None:
        self._is_running = False
        self._wake.close()
        self._woken.close()

    def _run(self) -> None:
        try:
            with own_connection(self._database, "waiter", is_busy=True), self._listening() as listener:
                while (pause := self._step()) is not None:
                    self._sleep(pause, listener)
                    if listener is not None:
                        self._receive(listener)
                    self._subscribe()
        except Exception as error:  # noqa: BLE001  # raised in the threads that wait
            with self._lock:
                waiters, self._waiters, self._urgent = self._waiters, set(), set()
                self._stop()
            for waiter in waiters:
                with suppress(InvalidStateError):
                    waiter.set_exception(error)
        finally:
            connections.close_all()

    def _step(self) -> float | None:
        """Poll if it is time to; return the seconds until the next step, or None to stop."""
        now = self._stepped_at = time.monotonic()
        with self._lock:
            if self._waiters:
                self._used_at = now
            elif now > self._used_at + _LINGER:
                self._stop()
                return None
            soonest = min((waiter.deadline for waiter in self._waiters), default=math.inf)
            due_at = self._polled_at + max(_FIRST_POLL, min(self._interval, soonest - self._polled_at))
            urgent_at = self._last_polls[0] + 2 * _MIN_INTERVAL if self._urgent else math.inf
            if now < min(due_at, urgent_at):
                return min(due_at, urgent_at) - now
            if now >= due_at:
                self._polled_at, self._interval = now, min(self._interval * 1.5, self._longest)
            waiters = list(self._waiters if now >= due_at else self._urgent)
            self._urgent = set()
        self._last_polls.append(now)
        for read in {waiter.read for waiter in waiters}:
            group = [waiter for waiter in waiters if waiter.read is read]
            answers = _query(read, self._database, list({waiter.key for waiter in group}))
            for waiter in group:
                if waiter.offer(answers):
                    self.leave(waiter)
        return 0.0

    @contextmanager
    def _listening(self) -> Iterator[ConnectionListener | None]:
        """Yield the listener on this thread's connection; None if there is none, or if another thread listens."""
        alias = listen_database_of(self._database)
        if not postgres.can_listen(self._database):
            yield None
        elif alias == self._database:
            yield ConnectionListener(alias, postgres.COMPLETIONS)
        else:
            from ..db.listen_thread import ListenThread  # here: only projects behind a pooler need it

            thread = ListenThread(alias, postgres.COMPLETIONS, "waiter listen", self._receive)
            thread.start()
            try:
                yield None
            finally:
                thread.stop()

    def _receive(self, listener: ConnectionListener) -> bool:
        """Receive notifications of ends, and return whether others may arrive. Without them, polls find the ends."""
        try:
            if listener.listen():
                with self._lock:
                    self._polled_at = self._renew_at = float("-inf")  # poll again for the ends before
                    self._wake_up()
            ended = set().union(*map(completions.loads, listener.receive(is_readable=True)))
        except Error as error:
            logger.info("completions not received, polling instead error=%s", error)
            return False
        if ended:
            with self._lock:
                self._urgent |= {waiter for waiter in self._waiters if waiter.short_key in ended}
                self._wake_up()
        return True

    def _subscribe(self) -> None:
        """Let workers send the ends of tasks, once there is a listener for them."""
        if time.monotonic() < self._renew_at:
            return
        try:
            notifications.send(self._database, [postgres.SUBSCRIBE])
            self._renew_at = time.monotonic() + completions.RENEW_INTERVAL
        except Error as error:
            logger.info("completions not subscribed to, polling instead error=%s", error)

    def _sleep(self, seconds: float, listener: ConnectionListener | None) -> None:
        """Sleep until there is a new waiter or a notification, ``seconds`` at most."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            if listener is not None and (descriptor := listener.fileno()) is not None:
                selector.register(descriptor, selectors.EVENT_READ)
            selector.select(seconds)
        with suppress(BlockingIOError):
            self._woken.recv(4096)


#: The poller of each database and process: a fork does not inherit the thread.
_pollers: Final[dict[tuple[str, int], _Poller]] = {}


def _join(waiter: _Waiter, database: str) -> _Poller | None:
    """Return the poller that answers the waiter; None if only this thread's connection can, or if one poll does."""
    connection = connections[database]
    is_in_transaction = connection.connection is not None and not connection.autocommit
    if waiter.seconds_left <= 0 or is_in_transaction or is_visible_only_here(database):
        return None
    place = database, os.getpid()
    poller = _pollers.setdefault(place, _Poller(database))
    if poller.hangs:
        poller = _pollers[place] = _Poller(database, poller)
    try:
        poller.join(waiter)
    except RuntimeError:  # this server has no threads
        return None
    return poller


@async_unsafe("A thread that runs an event loop can't wait for an end: use aget().")
def wait_for_end(read: Reader[K, N], database: str, key: K, deadline: float, *, is_urgent: bool = True) -> Answer[N]:
    """Block this thread until the snapshot of ``key`` is final or ``deadline``, by time.monotonic(), has passed.

    One that is not urgent waits for the next poll from the beginning.
    """
    waiter = _Waiter(read, key, deadline, is_urgent)
    if (poller := _join(waiter, database)) is not None:
        try:
            while not waiter.done() and (left := waiter.seconds_left + _GRACE) > 0:
                wait_for_futures([waiter], min(left, _MAX_SLEEP))
            answer: Answer[N] = waiter.result() if waiter.done() else NoAnswer()
        finally:
            poller.leave(waiter)
        if answer is not None or not _has_own_connection(database):
            return answer
        waiter = _Waiter(read, key, deadline, is_urgent)
    while not waiter.offer(_query(read, database, [key])):
        time.sleep(min(_FIRST_POLL, max(0.0, waiter.seconds_left)))
    return waiter.result()


async def await_end(read: Reader[K, N], database: str, key: K, deadline: float, *, is_urgent: bool = True) -> Answer[N]:
    """The same as :func:`wait_for_end` for coroutines."""
    waiter = _Waiter(read, key, deadline, is_urgent)
    try:
        poller = await sync_to_async(_join)(waiter, database)
    except asyncio.CancelledError:  # its thread may let it join all the same; then the next poll lets it go
        waiter.cancel()
        raise
    if poller is not None:
        answer: Answer[N] = NoAnswer()
        timeout = None if deadline == math.inf else waiter.seconds_left + _GRACE
        try:
            answer = await asyncio.wait_for(asyncio.wrap_future(waiter), timeout)
        except TimeoutError:
            pass
        finally:
            poller.leave(waiter)
        if answer is not None or not await sync_to_async(_has_own_connection)(database):
            return answer
        waiter = _Waiter(read, key, deadline, is_urgent)
    while True:
        if waiter.offer(await sync_to_async(_query)(read, database, [key])):
            return waiter.result()
        await asyncio.sleep(min(_FIRST_POLL, max(0.0, waiter.seconds_left)))


def _has_own_connection(database: str) -> bool:
    """Whether this thread has a connection. It may see a row that the poller does not: it may have a search_path."""
    return connections[database].connection is not None


def _query(read: Reader[K, N], database: str, keys: Sequence[K]) -> Mapping[K, N] | Error:
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
