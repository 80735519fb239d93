"""The exceptions of this package, including classes for tasks that ended without raising one.

Django's framework reports a failed task by an importable exception class. A task that was cancelled, expired, lost its
worker or returned an error raised nothing, so these classes represent its end.
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


#: The longest delay that a body may ask for.
LONGEST_DELAY: Final = timedelta(days=365)

#: Maximum mistakes of a workflow in the message of its exception. ``mistakes`` has all of them.
MISTAKES_SHOWN: Final = 50


class HorsiesError(Exception):
    """Base of every exception of this package."""


class NotRegistered(HorsiesError, LookupError, ImportError):
    """A row, or a caller, names a task, workflow, condition or dataclass that this process has not registered.

    Also an ImportError, for code that expects one from a wrong task path. Nothing was imported.
    """


class TaskFailed(HorsiesError):
    """The task ended without an ok value.

    Raised by ``TaskHandle.value()`` and ``TaskResult.unwrap()``; ``error`` is the :class:`~horsies_django.TaskError`.
    ``__cause__`` is the original exception if a handle raised this and the body ran in this process, else None.
    """

    def __init__(self, message: str = "", error: TaskError[Any] | None = None) -> None:
        super().__init__(message)
        self.error = error

    @property
    def exception_class_path(self) -> str | None:
        """The dotted name of the original exception's class; None if there was no exception."""
        exception = None if self.error is None else self.error.exception
        path = exception.get("type") if isinstance(exception, Mapping) else None  # a row may hold anything
        return path if isinstance(path, str) else None

    @property
    def exception_class(self) -> type[BaseException] | None:
        """The class of that name if this process has imported it already, else None. Imports nothing."""
        path = self.exception_class_path
        return None if path is None else _imported_exception(path)


class WaitTimeout(HorsiesError, TimeoutError):
    """The task or workflow did not end within the caller's timeout. It continues.

    Raised by ``TaskHandle.value()`` and ``TaskResult.unwrap()``. ``status`` is the last status read, None if the
    database did not answer; ``error`` is the :class:`~horsies_django.TaskError`, whose code is ``WAIT_TIMEOUT``.
    """

    def __init__(self, message: str = "", error: TaskError[Any] | None = None) -> None:
        super().__init__(message)
        self.error = error
        self.status: str | None = (error.data or {}).get("status") if error is not None else None


class TaskCancelled(TaskFailed):
    """The task was cancelled."""


class TaskExpired(TaskFailed):
    """The task's ``good_until`` passed before its body started."""


class WorkerCrashed(TaskFailed):
    """The worker died or stopped sending heartbeats while the body ran."""


class TaskNotResolved(TaskFailed):
    """The worker found no task under the row's name."""


class TaskTimedOut(TaskFailed):
    """The body ran longer than its time limit."""


class TaskDiscarded(TaskFailed):
    """The body gave up: it raised :class:`Discard`."""


class PayloadMismatch(HorsiesError):
    """A send used the ``task_id`` of a task with another call; nothing was inserted.

    Also raised for a workflow with the id or ``unique_key`` of another one, whose id is then ``task_id``.
    ``differing`` names the differences: ``args``, ``queue_name``, …
    """

    code: Final = "PAYLOAD_MISMATCH"

    def __init__(self, task_id: UUID, differing: Sequence[str], description: str = "another call with task_id") -> None:
        super().__init__(f"{self.code}: there is {description} {task_id}; it differs in {', '.join(differing)}.")
        self.task_id = task_id
        self.differing = tuple(differing)


class UniqueConflict(HorsiesError):
    """Another task holds the key of a unique call, which may not join or replace it; nothing was inserted.

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

    ``mistakes`` has all of them, each with its ``code``, ``workflow``, ``node``, ``problem`` and ``hint``.
    """

    def __init__(self, mistakes: Sequence[DefinitionError]) -> None:
        lines = [f"{mistake} {mistake.hint}" for mistake in mistakes[:MISTAKES_SHOWN]]
        if len(mistakes) > len(lines):
            lines.append(f"… and {len(mistakes) - len(lines):,} more (see .mistakes).")
        super().__init__("\n".join(lines))
        self.mistakes = tuple(mistakes)


class BatchEnded(HorsiesError):
    """A call can't be added to a batch that has ended or was cancelled; nothing was added."""

    def __init__(self, batch_id: UUID) -> None:
        super().__init__(f"Batch {batch_id} has ended; allowed: calls while one of its calls has not.")
        self.batch_id = batch_id


class TaskInterrupt(BaseException):
    """Raised inside a body to stop it, at any line.

    Not an Exception, so that a body's ``except Exception`` does not catch it. Catch it to clean up, and re-raise it.
    """


class TaskTimeLimit(TaskInterrupt):
    """The body has run longer than its time limit."""


class TaskRevoked(TaskInterrupt):
    """The task was cancelled or taken from this worker, which seemed dead. Its result is discarded."""


class TaskSuspended(TaskInterrupt):
    """The body waits, and its slot is given up: it starts again from the top once ``waits_for`` has come.

    ``waits_for`` names what it waits for, such as ``event:approved``; None if it goes on as soon as it can. ``delay``
    is the number of seconds after which it goes on at the latest.
    """

    def __init__(self, waits_for: str | None, delay: float) -> None:
        super().__init__(f"The task waits for {waits_for}." if waits_for else "The task goes back to its queue.")
        self.waits_for = waits_for
        self.delay = delay


class TaskRestarted(TaskSuspended):
    """The body goes on as a fresh run, with new values of ``columns`` of its row as JSON texts."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        super().__init__(None, 0.0)
        self.columns = columns


class StepMismatch(TaskInterrupt):
    """The body asks for a step that is not the next of those that were recorded: its code has changed."""


class StepFailed(HorsiesError):
    """A step has failed for good. ``error`` is its :class:`~horsies_django.TaskError`; it is the same on replay.

    ``__cause__`` is the exception of the step's function in the run in which it failed, later None.
    """

    def __init__(self, message: str = "", error: TaskError[Any] | None = None) -> None:
        super().__init__(message)
        self.error = error


class _ControlException(HorsiesError):
    """An exception that a body raises to control what happens to its task."""


class Retry(_ControlException):
    """Raise it in a body to retry, whatever codes the policy lists.

    ``after`` is the delay in seconds or a timedelta; None uses the delay of the task's policy. It counts as a retry: if
    none is left, the task is FAILED. A task without a policy has two. With ``raise Retry(…) from error``, the attempt
    reports that error. Raises ValueError for a bad delay.
    """

    def __init__(self, message: str = "", *, after: float | timedelta | None = None) -> None:
        super().__init__(message or "The task asked for another attempt.")
        self.after = None if after is None else delay_seconds("Retry(after=)", after)


def reported_error(raised: BaseException) -> BaseException:
    """Return the exception to report: for ``raise Retry(…) from cause`` the cause, else ``raised`` itself."""
    return (isinstance(raised, Retry) and raised.__cause__) or raised


class Snooze(_ControlException):
    """Raise it in a body to run again ``after`` a delay (seconds or a timedelta). The run does not count as an attempt.

    Raises ValueError for a bad delay.
    """

    def __init__(self, after: float | timedelta) -> None:
        self.after = delay_seconds("Snooze(after=)", after)
        super().__init__(f"The task snoozes for {self.after:g} seconds.")


class Discard(_ControlException):
    """Raise it in a body to give up: the task is FAILED with ``TASK_DISCARDED``, even if retries are left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "The task gave up.")


def _imported_exception(path: str) -> type[BaseException] | None:
    """Return the exception class of a dotted name if its module is imported, else None.

    The name comes from a row, so this calls no module's ``__getattr__``, which could import something.
    """
    parts = path.split(".")
    modules = ((sys.modules.get(".".join(parts[:count])), parts[count:]) for count in range(len(parts) - 1, 0, -1))
    target, names = next(((module, names) for module, names in modules if module is not None), (None, []))
    for name in names:
        target = vars(target).get(name) if isinstance(target, ModuleType | type) else None
    return target if isinstance(target, type) and issubclass(target, BaseException) else None


def delay_seconds(where: str, value: object) -> float:
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
