"""What each executor does: run executions and deliver their results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, Protocol

from .execution import Execution
from .execution_result import ExecutionResult, NotStarted

OnResult = Callable[[ExecutionResult | NotStarted], None]

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


class WaitingList(deque[Execution]):
    """Executions that an executor has taken and not started. Threads append to it and take from it without a lock."""

    def first(self) -> Execution | None:
        """Return the first execution, and leave it in the list."""
        with suppress(IndexError):  # another thread may take it meanwhile
            return self[0]
        return None

    def take_all(self) -> list[Execution]:
        """Remove all executions and return them, the last first."""
        taken: list[Execution] = []
        with suppress(IndexError):
            while True:
                taken.append(self.pop())
        return taken
