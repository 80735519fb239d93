"""The connections of bodies: how long a thread keeps them, and what the next body finds in them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Literal, TypeVar

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from ..core.current_task import current_run
from ..core.option_parsers import INHERIT
from ..db import postgres
from .execution import Execution
from .isolation import is_in_transaction, isolated, log_open_transaction

T = TypeVar("T")


class _Thread(threading.local):
    is_adopted = False
    has_connections = False


class BodyConnections:
    """Decides about the connections of the threads that it has adopted, and of no others in this process.

    Django closes a connection that is older than its ``CONN_MAX_AGE``, and checks one before its next use if
    ``CONN_HEALTH_CHECKS`` is set. Here each connection gets values of its own, because those of the settings have to be
    right for the site. Connections of a pool go back to it after each body.
    """

    def __init__(self, max_age: float | Literal["inherit"] | None, *, resets_sessions: bool = False) -> None:
        self._max_age = max_age
        self.resets_sessions = resets_sessions
        self._thread = _Thread()
        connection_created.connect(self._on_connect)

    def adopt_thread(self) -> None:
        """Decide about the connections of this thread from now on."""
        self._thread.is_adopted = True

    def _on_connect(self, connection: BaseDatabaseWrapper, **_: object) -> None:
        if not self._thread.is_adopted:
            return
        self._thread.has_connections = True
        # A body must not be the first to notice that its connection died.
        connection.health_check_enabled = True  # type: ignore[attr-defined]  # the stubs lack it
        if connection.settings_dict["OPTIONS"].get("pool"):
            if self.resets_sessions:  # a body that closes its connection gives the session back as it is
                postgres.reset_session(connection)
        elif self._max_age != INHERIT:
            connection.close_at = None if self._max_age is None else time.monotonic() + float(self._max_age)

    def clean_up(self, execution: Execution | None) -> None:
        """Clean up this thread's connections after a body: drop those in a transaction, close old and broken ones.

        With DEBUG, Django logs the queries of each connection: the log begins anew, as it does for each request.
        """
        is_interrupted = execution is not None and execution.stop_reason is not None
        if not (self._thread.has_connections or is_interrupted):  # to look for them takes longer than a short body
            return
        for connection in connections.all(initialized_only=True):
            connection.queries_log.clear()
            if is_interrupted:  # perhaps while it connected, or in the middle of an answer
                _drop(connection)
            elif is_in_transaction(connection):
                _drop(connection)
                log_open_transaction(execution, connection.alias)
            else:
                if self.resets_sessions:
                    _reset(connection)
                connection.close_if_unusable_or_obsolete()

    def seconds_left(self) -> float | None:
        """Return for how many seconds this thread may keep its connections: 0 if it has none; None for any time."""
        if not self._thread.has_connections:
            return 0.0
        opened = [
            connection for connection in connections.all(initialized_only=True) if connection.connection is not None
        ]
        self._thread.has_connections = bool(opened)
        limits = [connection.close_at for connection in opened if connection.close_at is not None]
        if opened and not limits:
            return None
        return max(0.001, min(limits) - time.monotonic()) if limits else 0.0

    def close_old(self) -> None:
        """Close those connections of this idle thread that are too old."""
        for connection in connections.all(initialized_only=True):
            if connection.close_at is not None and time.monotonic() >= connection.close_at:
                connection.close_at = None  # Django never closes a database in memory
                with suppress(Error):
                    connection.close()


class DaemonThreads(ThreadPoolExecutor):
    """At most ``count`` threads, each started when no other is idle, which close their connections when they end.

    The end of the interpreter does not wait for them.

    Nothing is inherited: asyncio accepts only this class as an executor of its event loop.
    """

    def __init__(self, count: int, name: str, body_connections: BodyConnections) -> None:
        self._count = count
        self._name = name
        self._body_connections = body_connections
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # None: no more follow
        self._started: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        self._is_shut_down = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See Executor."""
        if self._is_shut_down:
            raise RuntimeError("The worker stops: no thread takes another call.")
        future: Future[T] = Future()
        self._calls.put(partial(_complete, future, partial(fn, *args, **kwargs)))
        if not self._idle.acquire(blocking=False) and len(self._started) < self._count:
            self._started.append(threading.Thread(target=self._work, name=self._name, daemon=True))
            self._started[-1].start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See Executor."""
        self._is_shut_down = True
        self._calls.put(None)
        for thread in self._started if wait else ():
            thread.join()

    def _work(self) -> None:
        self._body_connections.adopt_thread()
        while call := self._next_call():
            call()
        connections.close_all()
        self._calls.put(None)

    def _next_call(self) -> Callable[[], None] | None:
        try:
            return self._calls.get_nowait()
        except Empty:
            self._idle.release()
            return self._calls.get()


def _complete(future: Future[T], call: Callable[[], T]) -> None:
    """Call, and give the future what is returned or raised."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  # as the executors of the standard library
        future.set_exception(error)
    else:
        future.set_result(result)


class CoroutineThreads:
    """The threads in which coroutines run sync code: one for each coroutine that needs it, for as long as it runs.

    An idle thread is kept for later coroutines until its connections are too old.
    """

    def __init__(self, body_connections: BodyConnections, shared: SharedThreads) -> None:
        self._connections = body_connections
        self._idle: dict[DaemonThreads, asyncio.TimerHandle | None] = {}
        self.shared = shared

    def take(self) -> DaemonThreads:
        """Return a thread that no coroutine uses: the one that was used last, or a new one."""
        try:
            thread, timer = self._idle.popitem()
        except KeyError:
            return DaemonThreads(1, "horsies-coroutine", self._connections)
        if timer is not None:
            timer.cancel()
        return thread

    async def give_back(self, thread: DaemonThreads, execution: Execution) -> None:
        """Clean up after a coroutine, and keep its thread while that has connections."""
        loop = asyncio.get_running_loop()
        seconds_left: float | None = 0.0
        try:
            seconds_left = await loop.run_in_executor(thread, self._clean_up, execution)
        finally:
            if seconds_left == 0:
                thread.shutdown(wait=False)
        if seconds_left != 0:
            self._idle[thread] = None if seconds_left is None else loop.call_later(seconds_left, self._end, thread)

    def close(self) -> None:
        """Close the connections of idle threads, and end them."""
        for thread in list(self._idle):
            self._end(thread, wait=True)

    def _clean_up(self, execution: Execution) -> float | None:
        self._connections.clean_up(execution)
        return self._connections.seconds_left()

    def _end(self, thread: DaemonThreads, *, wait: bool = False) -> None:
        del self._idle[thread]
        thread.shutdown(wait=wait)


class CoroutineThread(Executor):
    """The thread of one coroutine, from its first call of sync code until it ends; then the shared threads.

    Calls come later than that from asyncio tasks and callbacks that the coroutine has left behind.
    """

    def __init__(self, threads: CoroutineThreads) -> None:
        self._threads = threads
        self._current: DaemonThreads | None = None

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See Executor."""
        if self._current is None:
            self._current = self._threads.take()
        return self._current.submit(fn, *args, **kwargs)

    async def end(self, execution: Execution) -> None:
        """Give the thread back, if the coroutine has used one."""
        thread, self._current = self._current, self._threads.shared
        if thread is not None:
            await self._threads.give_back(thread, execution)


class SharedThreads(DaemonThreads):
    """The threads in which coroutines run sync code that needs no thread of its own.

    Each call cleans up its connections. DATABASES decides how long they are kept, because an idle thread can't close
    them.
    """

    def __init__(self, *, resets_sessions: bool) -> None:
        self._connections = BodyConnections(INHERIT, resets_sessions=resets_sessions)
        super().__init__(min(32, (os.cpu_count() or 1) + 4), "horsies-shared", self._connections)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See Executor. Remembers the calling execution for the log."""
        return super().submit(self._call, current_run.get(), fn, *args, **kwargs)

    def _call(self, execution: Execution | None, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        try:
            return isolated(fn, *args, **kwargs)  # loop.run_in_executor() gives it no context of its own
        finally:
            self._connections.clean_up(execution)


def _reset(connection: BaseDatabaseWrapper) -> None:
    """Undo what a body has set in a session; close the connection where that is not possible."""
    is_reset = False
    with suppress(Error):
        is_reset = connection.connection is not None and postgres.reset_session(connection)
    if not is_reset:
        connection.close()


def _drop(connection: BaseDatabaseWrapper) -> None:
    """Close a connection and drop what Django keeps of it.

    An interrupt may arrive while a transaction begins or ends. Django's state of the connection is then wrong for good:
    even after a close it would assume that the transaction is open. A pool gets a closed connection back, and replaces
    it.
    """
    del connections[connection.alias]
    with suppress(Error):
        if connection.connection is not None:
            with connection.wrap_database_errors:
                connection.connection.close()
        connection.close()
