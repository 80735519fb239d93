"""``InlineExecutor``: runs tasks in the thread of the producer."""

from __future__ import annotations

import threading
from collections.abc import Collection

from ..core.current_task import current_run
from ..core.exceptions import TaskTimeLimit
from . import run_task
from .connection_cleanup import rolling_back_open_transactions
from .context_isolation import isolated
from .execution import Execution
from .executor import OnResult


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
