"""What each executor does: run executions and deliver their results. The simplest one uses the thread of its caller."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection
from typing import ClassVar, Final

from ..core.current_task import current_run
from ..core.exceptions import TaskTimeLimit
from . import run_task
from .execution import Execution, ExecutionResult, NotStarted
from .isolation import isolated, rolling_back_open_transactions

OnResult = Callable[[ExecutionResult | NotStarted], None]

#: Seconds that the threads of an executor have to close their connections.
CLOSE_TIMEOUT: Final = 2.0

#: Seconds after which an event loop that does not answer counts as blocked.
LOOP_BLOCKED_AFTER: Final = 5.0


class Executor(ABC):
    """Runs executions and delivers the result of each, or that it came too late to start.

    ``_waiting`` are the executions that it has taken and not started. Threads take from it without a lock.
    """

    #: Whether it runs executions in the thread of the producer.
    is_inline: ClassVar[bool] = False

    def __init__(self) -> None:
        self._waiting: deque[Execution] = deque()

    @abstractmethod
    def submit(self, executions: Collection[Execution]) -> None:
        """Take executions, to start each as soon as a slot is free for it. Does not block."""

    def first_waiting(self) -> Execution | None:
        """Return the first execution that has not started."""
        try:
            return self._waiting[0] if self._waiting else None
        except IndexError:  # another thread has taken it meanwhile
            return None

    def withdraw(self) -> list[Execution]:
        """Take back the executions that have not started; return them, the last first."""
        withdrawn: list[Execution] = []
        while self._waiting:
            try:
                withdrawn.append(self._waiting.pop())
            except IndexError:
                break
        return withdrawn

    @property
    def is_unresponsive(self) -> bool:
        """Whether nothing can start now, because the event loop has not answered yet."""
        return False

    def is_blocked(self) -> bool:
        """Whether one execution that does not yield keeps all others from continuing."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Stop idle threads. Executions that still run end by themselves or with the process."""


class InlineExecutor(Executor):
    """Runs executions one after the other in the producer's own thread and on its connection.

    For a database that only one connection can see: SQLite in memory, or a test's transaction.
    """

    is_inline = True

    def __init__(self, on_result: OnResult) -> None:
        super().__init__()
        self._on_result = on_result

    def submit(self, executions: Collection[Execution]) -> None:
        """Run the executions."""
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

    def close(self) -> None:
        """Do nothing: there are no threads."""

    def _stop(self, execution: Execution) -> None:
        execution.request_stop(TaskTimeLimit)
        execution.interrupt()
