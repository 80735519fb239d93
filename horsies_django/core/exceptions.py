"""What this package raises, and the classes that name an end without an exception of its own.

Django's framework tells of a failed task through an exception class that can be imported. A task that was cancelled,
expired, lost with its worker, or that returned an error as a value raised nothing, so these classes stand in for it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

if TYPE_CHECKING:
    from .results import TaskError
    from .workflow_errors import DefinitionError


#: The longest time that a body may put itself off.
LONGEST_DELAY: Final = timedelta(days=365)

#: Mistakes of a workflow that its exception prints; all of them are in the exception.
MISTAKES_SHOWN: Final = 50


class HorsiesError(Exception):
    """Base of every exception of this package."""


class NotRegistered(HorsiesError, LookupError, ImportError):
    """A row, or a caller, names a task, workflow, condition or dataclass that this process has not registered.

    An ImportError too, for code that expects one from a task's path that leads nowhere; nothing was imported.
    """


class TaskFailed(HorsiesError):
    """The task ended without an ok value.

    Raised by ``TaskHandle.value()`` and ``TaskResult.unwrap()``; ``error`` is the :class:`~horsies_django.TaskError`.
    ``__cause__`` is the exception behind it if the body ran in this process, and a handle raised this; else None.
    """

    def __init__(self, message: str = "", error: TaskError[Any] | None = None) -> None:
        super().__init__(message)
        self.error = error

    @property
    def exception_class_path(self) -> str | None:
        """The dotted name of the class of the exception behind it; None if there was no exception."""
        exception = None if self.error is None else self.error.exception
        path = exception.get("type") if isinstance(exception, Mapping) else None  # a row may hold anything
        return path if isinstance(path, str) else None

    @property
    def exception_class(self) -> type[BaseException] | None:
        """The class of that name if this process has imported it already, else None. Imports nothing."""
        path = self.exception_class_path
        return None if path is None else _imported_exception(path)


class WaitTimeout(HorsiesError, TimeoutError):
    """The task, or the workflow, had not ended when the caller's time was up; it goes on.

    Raised by ``TaskHandle.value()`` and ``TaskResult.unwrap()``. ``status`` is the last that was read, None if the
    database has not answered; ``error`` is the :class:`~horsies_django.TaskError`, whose code is ``WAIT_TIMEOUT``.
    """

    def __init__(self, message: str = "", error: TaskError[Any] | None = None) -> None:
        super().__init__(message)
        self.error = error
        self.status: str | None = (error.data or {}).get("status") if error is not None else None


class TaskCancelled(TaskFailed):
    """The task was cancelled."""


class TaskExpired(TaskFailed):
    """The task's ``good_until`` passed before its body began."""


class WorkerCrashed(TaskFailed):
    """The worker died, or stopped beating, while the body ran."""


class TaskNotResolved(TaskFailed):
    """The worker found no task under the row's name."""


class TaskTimedOut(TaskFailed):
    """The body ran longer than its time limit."""


class TaskDiscarded(TaskFailed):
    """The body gave up: it raised :class:`Discard`."""


class PayloadMismatch(HorsiesError):
    """A send has the ``task_id`` of a task that is another call; nothing was inserted.

    Or a workflow was started with the id, or the ``unique_key``, of another one, whose id is ``task_id`` then.
    ``differing`` names what is not the same: ``args``, ``queue_name``, …
    """

    code: Final = "PAYLOAD_MISMATCH"

    def __init__(self, task_id: UUID, differing: Sequence[str], found: str = "another call with task_id") -> None:
        super().__init__(f"{self.code}: there is {found} {task_id}; it differs in {', '.join(differing)}.")
        self.task_id = task_id
        self.differing = tuple(differing)


class UniqueConflict(HorsiesError):
    """A unique call found another that is the same, and was not to stand back for it; nothing was inserted.

    ``task_id`` and ``status`` are those of the task that holds the ``unique_key``.
    """

    code: Final = "UNIQUE_CONFLICT"

    def __init__(self, task_id: UUID, status: str, unique_key: str, why: str = "") -> None:
        super().__init__(f"{self.code}: task {task_id}, which is {status}, has the unique key {unique_key!r}{why}.")
        self.task_id = task_id
        self.status = status
        self.unique_key = unique_key


class InvalidWorkflow(HorsiesError):
    """A workflow's definition has mistakes; nothing was started.

    ``mistakes`` are all of them, each with its ``code``, ``workflow``, ``node``, ``problem`` and ``hint``.
    """

    def __init__(self, mistakes: Sequence[DefinitionError]) -> None:
        lines = [f"{mistake} {mistake.hint}" for mistake in mistakes[:MISTAKES_SHOWN]]
        if len(mistakes) > len(lines):
            lines.append(f"… and {len(mistakes) - len(lines):,} more (see .mistakes).")
        super().__init__("\n".join(lines))
        self.mistakes = tuple(mistakes)


class BatchEnded(HorsiesError):
    """A call was to be added to a batch whose calls have all ended, or that was cancelled; nothing was added."""

    def __init__(self, batch_id: UUID) -> None:
        super().__init__(f"Batch {batch_id} has ended; allowed: calls while any of it has not.")
        self.batch_id = batch_id


class TaskInterrupt(BaseException):
    """Raised in a body that is to stop, wherever it is.

    Not an Exception, so that a body's ``except Exception`` does not take it for an error of its own. Catch it to clean
    up, and raise it again.
    """


class TaskTimeLimit(TaskInterrupt):
    """The body has run longer than its time limit."""


class TaskRevoked(TaskInterrupt):
    """The task was cancelled, or taken away from a worker that seemed dead: its result is not wanted any more."""


class _ControlException(HorsiesError):
    """What a body asks for by raising it."""


class Retry(_ControlException):
    """Raise it in a body for another attempt, whatever codes the policy lists.

    ``after`` are the seconds until then, None for the delay of the task's policy. It counts as a retry: with none left,
    the task is FAILED. A task without a policy has two. Raises ValueError for a bad delay.
    """

    def __init__(self, message: str = "", *, after: float | timedelta | None = None) -> None:
        super().__init__(message or "The task asked for another attempt.")
        self.after = None if after is None else _seconds("Retry(after=)", after)


class Snooze(_ControlException):
    """Raise it in a body to run again ``after`` so many seconds, as if this run had not been: it burns no attempt.

    Raises ValueError for a bad delay.
    """

    def __init__(self, after: float | timedelta) -> None:
        self.after = _seconds("Snooze(after=)", after)
        super().__init__(f"The task snoozes for {self.after:g} seconds.")


class Discard(_ControlException):
    """Raise it in a body to give up: the task is FAILED with ``TASK_DISCARDED``, whatever retries are left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "The task gave up.")


def _imported_exception(path: str) -> type[BaseException] | None:
    """Return the exception class of a dotted name if its module is imported, else None.

    A row names it, so no ``__getattr__`` of a module is called, which could import something.
    """
    parts = path.split(".")
    modules = ((sys.modules.get(".".join(parts[:count])), parts[count:]) for count in range(len(parts) - 1, 0, -1))
    found, names = next(((module, names) for module, names in modules if module is not None), (None, []))
    for name in names:
        found = vars(found).get(name) if isinstance(found, ModuleType | type) else None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _seconds(where: str, value: object) -> float:
    """Return a delay. Raises ValueError."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if (
        isinstance(seconds, int | float)
        and not isinstance(seconds, bool)
        and 0 <= seconds <= LONGEST_DELAY.total_seconds()
    ):
        return float(seconds)
    raise ValueError(f"{where} got {value!r}; allowed: seconds from 0 to a year, or a timedelta.")


# Tracebacks and rows name the module from which users import these classes.
for _class in list(vars().values()):
    if isinstance(_class, type) and issubclass(_class, BaseException) and _class.__module__ == __name__:
        _class.__module__ = "horsies_django.exceptions"
