"""Executors: threads for functions, an event loop for coroutines, the caller's own thread for tests."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, Final, Protocol

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections
from django.db.backends.signals import connection_created

from ..core.current_task import current_run
from ..core.exceptions import TaskTimeLimit
from . import result_mapping, run_task
from .connection_cleanup import (
    SharedThreads,
    clean_up_connections,
    drop_connections,
    rolling_back_open_transactions,
)
from .context_isolation import isolated
from .execution import Execution
from .execution_result import ExecutionResult, NotStarted

logger = logging.getLogger("horsies_django.worker")

OnResult = Callable[[ExecutionResult | NotStarted], None]


class ResultSink(Protocol):
    """Takes results one by one, and wakes the producer once for many."""

    def add(self, item: ExecutionResult | NotStarted) -> None:
        """Take a result."""

    def wake(self, *, has_next: bool) -> None:
        """Wake the producer for the results so far; ``has_next`` if others follow at once."""


#: Seconds that the threads of an executor have to close their connections.
CLOSE_TIMEOUT: Final = 2.0

#: Seconds after which an event loop that does not answer counts as blocked.
LOOP_BLOCKED_AFTER: Final = 5.0


class Executor(Protocol):
    """Runs executions and delivers the result of each, or that it came too late to start."""

    def submit(self, executions: Collection[Execution]) -> None:
        """Take executions, to start each as soon as a slot is free for it. Does not block."""

    def first_waiting(self) -> Execution | None:
        """Return the first execution that has not started."""

    def withdraw(self) -> list[Execution]:
        """Take back the executions that have not started."""

    @property
    def is_unresponsive(self) -> bool:
        """Whether nothing can start now, because the event loop has not answered yet."""

    def is_blocked(self) -> bool:
        """Whether one execution that does not yield keeps all others from continuing."""

    def close(self) -> None:
        """Stop idle threads. Executions that still run end by themselves or with the process."""


class ThreadExecutor:
    """Runs executions on at most ``slots`` threads, which are started when they are first needed.

    Threads wake one another in a row: a thread that takes an execution wakes the next thread if more are waiting. So
    executions that wait for I/O run side by side, while the first thread gets through executions of microseconds alone,
    without a switch of threads in between.
    """

    def __init__(self, slots: int, on_result: OnResult) -> None:
        self._slots = slots
        self._on_result = on_result
        self._waiting: deque[Execution] = deque()
        self._wakeups: SimpleQueue[bool] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._is_waking = False
        self._lock = threading.Lock()
        self._uses_database = threading.local()
        connection_created.connect(self._on_connect)

    def _on_connect(self, **_: object) -> None:
        self._uses_database.value = True

    def submit(self, executions: Collection[Execution]) -> None:
        self._waiting.extend(executions)
        self._wake_thread()

    def first_waiting(self) -> Execution | None:
        return _first(self._waiting)

    def withdraw(self) -> list[Execution]:
        return _take_all(self._waiting)

    @property
    def is_unresponsive(self) -> bool:
        return False

    def is_blocked(self) -> bool:
        return False

    def close(self) -> None:
        connection_created.disconnect(self._on_connect)
        for _ in self._threads:
            self._wakeups.put(False)
        limit = time.monotonic() + CLOSE_TIMEOUT
        for thread in self._threads:
            thread.join(max(0.0, limit - time.monotonic()))

    def _wake_thread(self) -> None:
        """Wake or start a thread if an execution waits and no thread is waking already."""
        if self._is_waking or not self._waiting:
            return
        with self._lock:
            if self._is_waking:
                return
            self._is_waking = True
            if self._idle or len(self._threads) == self._slots:
                self._wakeups.put(True)
                return
            thread = threading.Thread(target=self._work, name=f"horsies-slot-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads: the existing ones do the work
            with self._lock:
                self._threads.remove(thread)
            if not self._threads:
                raise
            logger.error("thread not started threads=%d error=%s", len(self._threads), error)
            self._wakeups.put(True)

    def _work(self) -> None:
        is_running = True
        while is_running:
            self._is_waking = False  # first, so that whatever is submitted from here on wakes a thread
            while True:
                try:
                    execution = self._waiting.popleft()
                except IndexError:
                    break
                execution.has_next = bool(self._waiting)
                self._wake_thread()
                self._on_result(self._run(execution))
            current_run.set(None)
            with self._lock:
                self._idle += 1
            is_running = self._wakeups.get()
            with self._lock:
                self._idle -= 1
            close_old_connections()  # while the thread was idle, they may have become too old
        connections.close_all()

    def _run(self, execution: Execution) -> ExecutionResult | NotStarted:
        current_run.set(execution)  # the thread has no other context, and the next execution replaces it
        try:
            result = isolated(run_task.run_task, execution)
            # An interrupt may have come in the middle of a database's answer.
            if execution.stop_reason:
                drop_connections()
            elif getattr(self._uses_database, "value", False):  # to look for connections takes longer than a short task
                clean_up_connections(execution)
        except BaseException as error:  # noqa: BLE001  # the producer must get a result in any case
            return result_mapping.fallback(execution, error)
        return result


class LoopExecutor:
    """Runs at most ``slots`` coroutines at once, on one event loop in a thread of its own.

    Each coroutine has its own thread for the sync code that it calls (mostly the ORM), as a request has under ASGI, so
    that a slow query holds up no other coroutine.

    A coroutine that blocks the loop keeps later ones from starting. Those can be withdrawn, because each leaves the
    waiting list only when it starts. A ping then shows when the loop responds again.

    The results of one turn of the loop wake the producer once. They are in its inbox before, so that a coroutine that
    blocks the loop holds up no result of another.
    """

    def __init__(self, slots: int, results: ResultSink) -> None:
        self._slots = slots
        self._results = results
        self._context = copy_context()  # of the producer, which no coroutine changes
        self._has_results = False
        self._is_turn_ending = False
        self._waiting: deque[Execution] = deque()
        self._pinged_at: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop keeps only weak references
        self._thread = threading.Thread(target=self._main, name="horsies-loop", daemon=True)
        self._is_up = threading.Event()
        self._is_closing = False

    def submit(self, executions: Collection[Execution]) -> None:
        if self._loop is None:
            self._thread.start()
            self._is_up.wait()
        assert self._loop is not None
        self._waiting.extend(executions)
        self._loop.call_soon_threadsafe(self._start_waiting, context=self._context)

    def first_waiting(self) -> Execution | None:
        return _first(self._waiting)

    def withdraw(self) -> list[Execution]:
        if withdrawn := _take_all(self._waiting):
            self._ping()
        return withdrawn

    @property
    def is_unresponsive(self) -> bool:
        return self._pinged_at is not None

    def is_blocked(self) -> bool:
        return time.monotonic() - self._ping() > LOOP_BLOCKED_AFTER

    def _ping(self) -> float:
        """Ping the event loop unless a ping is unanswered; return since when one is, in monotonic seconds."""
        if (asked_at := self._pinged_at) is None:
            asked_at = time.monotonic()
            if self._loop is not None:
                self._pinged_at = asked_at
                self._loop.call_soon_threadsafe(self._on_pong)
        return asked_at

    def _on_pong(self) -> None:
        # A coroutine may have cancelled asyncio tasks of others before their first step.
        self._tasks = {task for task in self._tasks if not task.done()}
        self._pinged_at = None

    def close(self) -> None:
        self._is_closing = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_TIMEOUT)

    def _main(self) -> None:
        with asyncio.Runner() as runner:  # it cancels what is left and closes the loop
            self._loop = runner.get_loop()
            self._loop.set_default_executor(SharedThreads())
            self._is_up.set()
            while not self._is_closing:
                try:
                    self._loop.run_forever()
                except (SystemExit, KeyboardInterrupt):  # raised by an asyncio task that a coroutine has created
                    logger.exception("asyncio task of a coroutine raised: the event loop continues")

    def _start_waiting(self) -> None:
        """Start executions that wait, each in an asyncio task of its own, as far as slots are free."""
        assert self._loop is not None
        if self._is_turn_ending:
            return  # its end starts them, after the first step of every task that is there
        count = min(len(self._waiting), self._slots - len(self._tasks))
        for _ in range(count):
            self._tasks.add(self._loop.create_task(self._run_next()))
        if count > 0:
            self._end_turn_soon()

    def _end_turn_soon(self) -> None:
        """End this turn after the asyncio tasks that are ready now."""
        if not self._is_turn_ending:
            self._is_turn_ending = True
            asyncio.get_running_loop().call_soon(self._end_turn, context=self._context)

    def _end_turn(self) -> None:
        self._is_turn_ending = False
        if self._has_results:
            self._has_results = False
            self._results.wake(has_next=bool(self._waiting))
        self._start_waiting()

    async def _run_next(self) -> None:
        task = asyncio.current_task()
        try:
            execution = self._waiting.popleft()
        except IndexError:  # it was withdrawn
            self._tasks.discard(task)
            return
        execution.has_next = bool(self._waiting)
        current_run.set(execution)
        self._results.add(await _arun(execution, task))
        self._has_results = True
        self._tasks.discard(task)
        self._end_turn_soon()


class InlineExecutor:
    """Runs executions one after the other in the producer's own thread and on its connection.

    For a database that only one connection can see: SQLite in memory, or a test's transaction.
    """

    def __init__(self, on_result: OnResult) -> None:
        self._on_result = on_result

    def submit(self, executions: Collection[Execution]) -> None:
        for execution in executions:
            timer = threading.Timer(execution.time_limit or 0.0, self._stop, args=(execution,))
            if execution.time_limit is not None:
                timer.start()
            token = current_run.set(execution)
            try:
                with rolling_back_open_transactions(execution):
                    result = isolated(run_task.run_task, execution)
            finally:
                current_run.reset(token)
                timer.cancel()
            self._on_result(result)

    def first_waiting(self) -> Execution | None:
        return None

    def withdraw(self) -> list[Execution]:
        return []

    @property
    def is_unresponsive(self) -> bool:
        return False

    def _stop(self, execution: Execution) -> None:
        execution.request_stop(TaskTimeLimit)
        execution.interrupt()

    def is_blocked(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing: there are no threads."""


async def _arun(execution: Execution, task: asyncio.Task[Any] | None) -> ExecutionResult | NotStarted:
    """Run a coroutine in this asyncio task, with a thread of its own for sync code. Never raises."""
    try:
        # Not left unless it was used: to leave it takes longer than a short coroutine, and it ends with the task.
        context = await ThreadSensitiveContext().__aenter__()  # type: ignore[no-untyped-call]  # asgiref's
        result = await run_task.arun_task(execution, task)
        threads = SyncToAsync.context_to_thread_executor
        if threads and context in threads:
            try:
                await sync_to_async(clean_up_connections)(execution, close=True)
            finally:
                await context.__aexit__(None, None, None)
    except BaseException as error:  # noqa: BLE001  # the producer must get a result in any case
        return result_mapping.fallback(execution, error)
    return result


def _first(waiting: deque[Execution]) -> Execution | None:
    with suppress(IndexError):  # another thread may take it meanwhile
        return waiting[0]
    return None


def _take_all(waiting: deque[Execution]) -> list[Execution]:
    withdrawn: list[Execution] = []
    with suppress(IndexError):
        while True:
            withdrawn.append(waiting.pop())
    return withdrawn
