"""``ThreadExecutor``: runs sync tasks on threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from queue import Empty, SimpleQueue

from django.db import connections

from ..core.current_task import current_run
from . import result_mapping, run_task
from .body_connections import BodyConnections
from .execution import Execution, ExecutionResult, NotStarted
from .executor import CLOSE_TIMEOUT, Executor, OnResult
from .isolation import isolated

logger = logging.getLogger("horsies_django.worker")


class ThreadExecutor(Executor):
    """Runs executions on at most ``slots`` threads, which are started when they are first needed.

    Threads wake one another in a row: a thread that takes an execution wakes the next thread if more are waiting. So
    executions that wait for I/O run side by side, while the first thread gets through executions of microseconds alone,
    without a switch of threads in between.
    """

    def __init__(self, slots: int, on_result: OnResult, body_connections: BodyConnections) -> None:
        super().__init__()
        self._slots = slots
        self._on_result = on_result
        self._connections = body_connections
        self._wakeups: SimpleQueue[bool] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._is_waking = False
        self._lock = threading.Lock()

    def submit(self, executions: Collection[Execution]) -> None:
        self._waiting.extend(executions)
        self._wake_thread()

    def close(self) -> None:
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
        self._connections.adopt_thread()
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
            is_running = self._next_wakeup()
            with self._lock:
                self._idle -= 1
        connections.close_all()

    def _next_wakeup(self) -> bool:
        """Wait until an execution waits or the executor closes; close connections that become too old meanwhile."""
        while seconds_left := self._connections.seconds_left():
            try:
                return self._wakeups.get(timeout=seconds_left)
            except Empty:
                self._connections.close_old()
        return self._wakeups.get()

    def _run(self, execution: Execution) -> ExecutionResult | NotStarted:
        current_run.set(execution)  # the thread has no other context, and the next execution replaces it
        try:
            result = isolated(run_task.run_task, execution)
            self._connections.clean_up(execution)
        except BaseException as error:  # noqa: BLE001  # the producer must get a result in any case
            return result_mapping.fallback(execution, error)
        return result
