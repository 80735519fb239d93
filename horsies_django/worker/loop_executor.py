"""``LoopExecutor``: runs coroutines on an event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Collection
from contextvars import copy_context
from typing import Any, Protocol

from asgiref.sync import SyncToAsync, ThreadSensitiveContext

from ..core.current_task import current_run
from . import result_mapping, run_task
from .body_connections import BodyConnections, CoroutineThread, CoroutineThreads, SharedThreads
from .execution import Execution, ExecutionResult, NotStarted
from .executor import CLOSE_TIMEOUT, LOOP_BLOCKED_AFTER, Executor

logger = logging.getLogger("horsies_django.worker")


class ResultSink(Protocol):
    """Takes results one by one, and wakes the producer once for many."""

    def add(self, item: ExecutionResult | NotStarted) -> None:
        """Take a result."""

    def wake(self, *, has_next: bool) -> None:
        """Wake the producer for the results so far; ``has_next`` if others follow at once."""


class LoopExecutor(Executor):
    """Runs at most ``slots`` coroutines at once, on one event loop in a thread of its own.

    Each coroutine has its own thread for the sync code that it calls (mostly the ORM), as a request has under ASGI, so
    that a slow query holds up no other coroutine. An asyncio task or a callback that the body leaves behind uses the
    shared threads from then on.

    A coroutine that blocks the loop keeps later ones from starting. Those can be withdrawn, because each leaves the
    waiting list only when it starts. A ping then shows when the loop responds again.

    The results of one turn of the loop wake the producer once. They are in its inbox before, so that a coroutine that
    blocks the loop holds up no result of another.
    """

    def __init__(self, slots: int, results: ResultSink, body_connections: BodyConnections) -> None:
        super().__init__()
        self._slots = slots
        self._results = results
        self._context = copy_context()  # of the producer, which no coroutine changes
        self._has_results = False
        self._is_turn_ending = False
        self._pinged_at: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop keeps only weak references
        self._shared_threads = SharedThreads(resets_sessions=body_connections.resets_sessions)
        self._own_threads = CoroutineThreads(body_connections, self._shared_threads)
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

    def withdraw(self) -> list[Execution]:
        if withdrawn := super().withdraw():
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
            self._loop.set_default_executor(self._shared_threads)
            self._is_up.set()
            while not self._is_closing:
                try:
                    self._loop.run_forever()
                except (SystemExit, KeyboardInterrupt):  # raised by an asyncio task that a coroutine has created
                    logger.exception("asyncio task of a coroutine raised: the event loop continues")
            self._own_threads.close()
            if left := asyncio.all_tasks(self._loop) - self._tasks:
                logger.warning("asyncio tasks that bodies left behind are cancelled count=%d", len(left))

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
        self._results.add(await self._arun(execution, task))
        self._has_results = True
        self._tasks.discard(task)
        self._end_turn_soon()

    async def _arun(self, execution: Execution, task: asyncio.Task[Any] | None) -> ExecutionResult | NotStarted:
        """Run a coroutine in this asyncio task, with a thread of its own for sync code. Never raises."""
        try:
            # Never left: that would take longer than a short coroutine, and give what it left behind a new thread.
            context = await ThreadSensitiveContext().__aenter__()  # type: ignore[no-untyped-call]  # asgiref's
            thread = SyncToAsync.context_to_thread_executor[context] = CoroutineThread(self._own_threads)
            result = await run_task.arun_task(execution, task)
            await thread.end(execution)
        except BaseException as error:  # the producer must get a result in any case
            if self._is_closing and isinstance(error, asyncio.CancelledError):  # it has ended
                raise
            return result_mapping.fallback(execution, error)
        return result
