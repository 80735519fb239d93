"""Our verbs under another backend of Django's task framework, such as its immediate and its dummy backend.

A project's tests may put one of these in the place of a HorsiesBackend. It knows nothing of retries, deadlines, unique
keys or workflows; so a task's other options have no effect there.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from asgiref.sync import sync_to_async
from django.db.models import QuerySet
from django.utils import timezone

from ..core.compat import (
    BaseTaskBackend,
    FrameworkTask,
    FrameworkTaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
)
from ..core.compat import TaskContext as FrameworkContext
from ..core.ids import uuid7
from ..core.options import Options
from ..core.results import OperationalCode, RetrievalCode, TaskError, TaskResult
from ..core.status import TaskStatus
from ..steps.task_run import LocalRun, local_claim
from . import result_reader
from .context import TaskContext
from .handle import TaskHandle, TaskInfo
from .many_calls import checked

T = TypeVar("T")

_STATUSES: Final = {
    TaskResultStatus.READY: TaskStatus.PENDING,
    TaskResultStatus.RUNNING: TaskStatus.RUNNING,
    TaskResultStatus.SUCCESSFUL: TaskStatus.COMPLETED,
    TaskResultStatus.FAILED: TaskStatus.FAILED,
}


class FrameworkHandle(TaskHandle[T]):
    """A handle of the framework's own result, whose ``id`` is the backend's text."""

    def __init__(self, result: FrameworkTaskResult[..., Any]) -> None:
        self.id = result.id  # type: ignore[assignment]  # a text of the backend's own
        self.backend = result.backend
        self.replayed = False
        self._final = None
        self._result = result

    def status(self) -> TaskStatus | None:
        """Return the status that stands for the framework's."""
        return _STATUSES[self._read().status]

    def info(self) -> TaskInfo | None:
        """Return None: the backend keeps no row."""
        return None

    def get(self, timeout: float | None = None) -> TaskResult[T, TaskError[Any]]:
        """Return the result; ``WAIT_TIMEOUT`` at once if the task has not ended, as waiting would not end it."""
        result = self._read()
        if result.status == TaskResultStatus.SUCCESSFUL:
            return TaskResult(ok=result.return_value)
        if result.status != TaskResultStatus.FAILED:
            return result_reader.timed_out("task", timeout or 0.0, _STATUSES[result.status])
        if not result.errors:
            return result_reader.error(RetrievalCode.RESULT_NOT_AVAILABLE, f"Task {self.id} failed without an error.")
        error = result.errors[-1]
        message = error.traceback.strip().splitlines()[-1] if error.traceback else error.exception_class_path
        shown = {"type": error.exception_class_path, "message": message, "traceback": error.traceback}
        code = OperationalCode.UNHANDLED_EXCEPTION
        return TaskResult(err=TaskError(error_code=code, message=message, exception=shown))

    async def aget(self, timeout: float | None = None) -> TaskResult[T, TaskError[Any]]:
        """See :meth:`get`."""
        return await sync_to_async(self.get)(timeout)

    def cancel(self, include_running: bool = False) -> bool:
        """Return False: the framework has no way to cancel."""
        return False

    def retry(self) -> bool:
        """Return False: the framework has no way to retry."""
        return False

    def _read(self) -> FrameworkTaskResult[..., Any]:
        result = self._result
        if not result.is_finished and result.task.get_backend().supports_get_result:
            with suppress(TaskResultDoesNotExist):  # it is as it was when it was enqueued
                result.refresh()
        return result


class FrameworkVerbs:
    """Sends calls through a backend that has only the framework's methods."""

    def __init__(self, backend: BaseTaskBackend) -> None:
        self._backend = backend

    def send(self, task: Any, args: Any, kwargs: Any, *, own: Mapping[str, Any] | None = None) -> TaskHandle[Any]:
        """Enqueue a call and return its handle."""
        return FrameworkHandle(self._backend.enqueue(task, list(args), dict(kwargs)))

    async def asend(self, task: Any, args: Any, kwargs: Any) -> TaskHandle[Any]:
        """See :meth:`send`."""
        return FrameworkHandle(await self._backend.aenqueue(task, list(args), dict(kwargs)))

    def send_many(self, task: Any, calls: Iterable[Mapping[str, Any]]) -> Sequence[TaskHandle[Any]]:
        """Enqueue a call for each dict of keyword arguments, one after the other."""
        return [self.send(task, (), call) for call in list(checked(calls))]

    async def asend_many(
        self, task: Any, calls: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]]
    ) -> Sequence[TaskHandle[Any]]:
        """See :meth:`send_many`."""
        if isinstance(calls, AsyncIterable) and not isinstance(calls, QuerySet):
            calls = [call async for call in calls]
        batch = await sync_to_async(lambda: list(checked(calls)))()
        return [await self.asend(task, (), call) for call in batch]

    def cancel(self, unique_key: str, *, include_running: bool = False) -> bool:
        """Return False: no task has a unique key there."""
        return False


def run_after_of(backend: BaseTaskBackend, run_after: datetime | timedelta | None) -> datetime | None:
    """Return the time that this backend takes: an aware datetime, or None if it can't defer and runs at once."""
    if not backend.supports_defer or run_after is None:
        return None
    return timezone.now() + run_after if isinstance(run_after, timedelta) else run_after


def own_context(task: FrameworkTask[..., Any], args: Sequence[Any]) -> Sequence[Any]:
    """Return arguments whose first, if it is the framework's own context, is replaced by one with our methods.

    Progress and saved state are kept in memory, and lost when the call ends.
    """
    if not task.takes_context or not args or type(args[0]) is not FrameworkContext:
        return args
    result = args[0].task_result
    metadata = getattr(task, "metadata", None) or {}
    claim = local_claim(task, uuid7(), (), {}, metadata, attempt=max(1, result.attempts), max_attempts=1)
    run = LocalRun(claim._replace(max_retries=claim.retry_count), Options())
    return (TaskContext(task_result=result, run=run), *args[1:])


def plain_value(value: Any) -> Any:
    """Return the ok value of a TaskResult, which the framework can't store, and any other value as it is.

    Raises TaskFailed for an error.
    """
    return value.unwrap() if isinstance(value, TaskResult) else value
