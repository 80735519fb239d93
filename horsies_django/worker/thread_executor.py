"""``ThreadExecutor``: runs sync tasks on threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from queue import SimpleQueue

from django.db import close_old_connections, connections
from django.db.backends.signals import connection_created

from ..core.current_task import current_run
from . import result_mapping, run_task
from .execution import Execution, ExecutionResult, NotStarted
from .executor import CLOSE_TIMEOUT, Executor, OnResult
from .isolation import clean_up_connections, drop_connections, isolated

logger = logging.getLogger("horsies_django.worker")


class ThreadExecutor(Executor):
    """Runs executions on at most ``slots`` threads, which are started when they are first needed.

    Threads wake one another in a row: a thread that takes an execution wakes the next thread if more are waiting. So
    executions that wait for I/O run side by side, while the first thread gets through executions of microseconds alone,
    without a switch of threads in between.
    """

    def __init__(self, slots: int, on_result: OnResult) -> None:
        super().__init__()
        self._slots = slots
        self._on_result = on_result
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
