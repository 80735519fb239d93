"""What this package raises, and the classes that name an end without an exception of its own.

Django's framework tells of a failed task through an exception class that can be imported. A task that was cancelled,
expired, lost with its worker, or that returned an error as a value raised nothing, so these classes stand in for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .results import TaskError


class HorsiesError(Exception):
    """Base of every exception of this package."""


class TaskFailed(HorsiesError):
    """The task ended without an ok value.

    Raised by ``TaskHandle.value()`` and ``TaskResult.unwrap()``; ``error`` is the :class:`~horsies_django.TaskError`.
    """

    def __init__(self, message: str = "", error: TaskError[Any] | None = None) -> None:
        super().__init__(message)
        self.error = error


class TaskCancelled(TaskFailed):
    """The task was cancelled."""


class TaskExpired(TaskFailed):
    """The task's ``good_until`` passed before its body began."""


class WorkerCrashed(TaskFailed):
    """The worker died, or stopped beating, while the body ran."""


class TaskNotResolved(TaskFailed):
    """The worker found no task under the row's name."""
