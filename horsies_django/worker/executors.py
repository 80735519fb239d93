"""Where bodies run: threads for sync tasks, an event loop for coroutines, the caller's own thread for a test."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from queue import SimpleQueue
from typing import Final, Protocol

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections

from ..core.exceptions import TaskTimeLimit
from . import result_mapping, run_task
from .connection_cleanup import (
    SharedThreads,
    clean_up_connections,
    current_execution,
    drop_connections,
    rolling_back_leftovers,
)
from .context_isolation import isolated
from .execution import Execution
from .execution_result import ExecutionResult, NotStarted

logger = logging.getLogger("horsies_django.worker")

OnResult = Callable[[ExecutionResult | NotStarted], None]

#: Seconds that an executor's threads get to close their connections.
CLOSE_TIMEOUT: Final = 2.0

#: Seconds after which an event loop that does not answer counts as blocked.
LOOP_BLOCKED_AFTER: Final = 5.0


class Executor(Protocol):
    """Runs bodies and delivers each one's outcome, or that it came too late to begin."""

    def submit(self, executions: Collection[Execution]) -> None:
        """Take bodies, to begin each as soon as a slot is free for it. Nothing here waits."""

    def waiting(self) -> Execution | None:
        """Return the first of those that have not begun."""

    def withdraw(self) -> list[Execution]:
        """Take back those that have not begun."""

    @property
    def is_silent(self) -> bool:
        """Whether no body could begin now, for what was asked of the event loop has not been answered."""

    def is_blocked(self) -> bool:
        """Whether nothing can go on here because of one body that does not let go."""

    def close(self) -> None:
        """Let the idle threads go. Bodies that still run are left to end, or to die with the process."""


class ThreadExecutor:
    """A body on each of at most ``slots`` threads, which begin when they are first needed.

    Threads are called one after the other: who finds something to do calls the next if there is more. Bodies that wait
    for something so begin side by side, and those that are done in microseconds are all done by the first, with no
    switch of threads in between.
    """

    def __init__(self, slots: int, deliver: OnResult) -> None:
        self._slots = slots
        self._deliver = deliver
        self._waiting: deque[Execution] = deque()
        self._wakeups: SimpleQueue[bool] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._is_waking = False
        self._lock = threading.Lock()

    def submit(self, executions: Collection[Execution]) -> None:
        self._waiting.extend(executions)
        self._wake_thread()

    def waiting(self) -> Execution | None:
        return _first(self._waiting)

    def withdraw(self) -> list[Execution]:
        return _taken_from(self._waiting)

    @property
    def is_silent(self) -> bool:
        return False

    def is_blocked(self) -> bool:
        return False

    def close(self) -> None:
        for _ in self._threads:
            self._wakeups.put(False)
        limit = time.monotonic() + CLOSE_TIMEOUT
        for thread in self._threads:
            thread.join(max(0.0, limit - time.monotonic()))

    def _wake_thread(self) -> None:
        """Call a thread if there is something to do and none is on its way."""
        if self._is_waking or not self._waiting:
            return
        with self._lock:
            if self._is_waking:
                return
            self._is_waking = True
            if self._idle or len(self._threads) == self._slots:
                self._wakeups.put(True)
                return
            thread = threading.Thread(target=self._loop, name=f"horsies-slot-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives no more; those that there are do the work
            with self._lock:
                self._threads.remove(thread)
            if not self._threads:
                raise
            logger.error("thread not started, going on with threads=%d: %s", len(self._threads), error)
            self._wakeups.put(True)

    def _loop(self) -> None:
        is_called = True
        while is_called:
            self._is_waking = False  # first, so that what comes from here on is called for
            while True:
                try:
                    execution = self._waiting.popleft()
                except IndexError:
                    break
                execution.has_next = bool(self._waiting)
                self._wake_thread()
                self._deliver(self._outcome_of(execution))
            with self._lock:
                self._idle += 1
            is_called = self._wakeups.get()
            with self._lock:
                self._idle -= 1
        connections.close_all()

    def _outcome_of(self, execution: Execution) -> ExecutionResult | NotStarted:
        try:
            close_old_connections()
            outcome = isolated(run_task.run_task, execution)
            # An interrupt may have come in the middle of an answer of the database.
            drop_connections() if execution.stop_reason else clean_up_connections(execution)
        except BaseException as error:  # noqa: BLE001  # whatever it is, the pump has to hear of the body's end
            return result_mapping.broken(execution, error)
        return outcome


class LoopExecutor:
    """Coroutines on one event loop in a thread of its own.

    Each body has its own thread for the sync code it calls (the ORM, mostly), as a request has under ASGI, so that one
    body's slow query does not hold up the others.

    A body that blocks the loop keeps those that were submitted after it from beginning. They can be withdrawn then, for
    each is taken from the waiting ones only when it is its turn; the loop is asked then when it goes on.
    """

    def __init__(self, deliver: OnResult) -> None:
        self._deliver = deliver
        self._waiting: deque[Execution] = deque()
        self._pinged_at: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps weak references only
        self._thread = threading.Thread(target=self._main, name="horsies-loop", daemon=True)
        self._is_up = threading.Event()
        self._is_closing = False

    def submit(self, executions: Collection[Execution]) -> None:
        if self._loop is None:
            self._thread.start()
            self._is_up.wait()
        assert self._loop is not None
        self._waiting.extend(executions)
        self._loop.call_soon_threadsafe(self._start, self._loop, len(executions))

    def waiting(self) -> Execution | None:
        return _first(self._waiting)

    def withdraw(self) -> list[Execution]:
        if withdrawn := _taken_from(self._waiting):
            self._ping()
        return withdrawn

    @property
    def is_silent(self) -> bool:
        return self._pinged_at is not None

    def is_blocked(self) -> bool:
        return time.monotonic() - self._ping() > LOOP_BLOCKED_AFTER

    def _ping(self) -> float:
        """Ask the event loop for an answer, if none is awaited; return since when one is, in monotonic seconds."""
        if (asked_at := self._pinged_at) is None:
            asked_at = time.monotonic()
            if self._loop is not None:
                self._pinged_at = asked_at
                self._loop.call_soon_threadsafe(self._on_pong)
        return asked_at

    def _on_pong(self) -> None:
        self._pinged_at = None

    def close(self) -> None:
        self._is_closing = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_TIMEOUT)

    def _main(self) -> None:
        with asyncio.Runner() as runner:  # it cancels what is left, and closes the loop
            self._loop = runner.get_loop()
            self._loop.set_default_executor(SharedThreads())
            self._is_up.set()
            while not self._is_closing:
                try:
                    self._loop.run_forever()
                except (SystemExit, KeyboardInterrupt):  # of a task that a body has started and left behind
                    logger.exception("an asyncio task that a coroutine had created raised: the event loop goes on")

    def _start(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        for _ in range(count):
            task = loop.create_task(self._run_next())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run_next(self) -> None:
        try:
            execution = self._waiting.popleft()
        except IndexError:
            return  # it was withdrawn
        execution.has_next = bool(self._waiting)
        current_execution.set(execution)
        outcome: ExecutionResult | NotStarted
        try:
            async with ThreadSensitiveContext() as context:
                outcome = await run_task.arun_task(execution)
                if context in SyncToAsync.context_to_thread_executor:  # it has used its thread
                    await sync_to_async(clean_up_connections)(execution, close=True)
        except BaseException as error:  # noqa: BLE001  # whatever it is, the pump has to hear of the body's end
            outcome = result_mapping.broken(execution, error)
        self._deliver(outcome)


class InlineExecutor:
    """Bodies one after the other in the pump's own thread and on its connection.

    For a database that only one connection can see: SQLite in memory, or a test's transaction.
    """

    def __init__(self, deliver: OnResult) -> None:
        self._deliver = deliver

    def submit(self, executions: Collection[Execution]) -> None:
        for execution in executions:
            timer = threading.Timer(execution.time_limit or 0.0, self._stop, args=(execution,))
            if execution.time_limit is not None:
                timer.start()
            try:
                with rolling_back_leftovers(execution):
                    outcome = isolated(run_task.run_task, execution)
            finally:
                timer.cancel()
            self._deliver(outcome)

    def waiting(self) -> Execution | None:
        return None

    def withdraw(self) -> list[Execution]:
        return []

    @property
    def is_silent(self) -> bool:
        return False

    def _stop(self, execution: Execution) -> None:
        execution.request_stop(TaskTimeLimit)
        execution.interrupt()

    def is_blocked(self) -> bool:
        return False

    def close(self) -> None:
        """There is nothing to let go."""


def _first(waiting: deque[Execution]) -> Execution | None:
    with suppress(IndexError):  # another thread may take it in between
        return waiting[0]
    return None


def _taken_from(waiting: deque[Execution]) -> list[Execution]:
    withdrawn: list[Execution] = []
    with suppress(IndexError):
        while True:
            withdrawn.append(waiting.pop())
    return withdrawn
