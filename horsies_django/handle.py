"""A handle on one task that was sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from uuid import UUID

from asgiref.sync import sync_to_async

from .compat import DEFAULT_TASK_BACKEND_ALIAS, task_backends
from .results import OperationalCode, RetrievalCode, TaskError, TaskResult
from .serializers import decode
from .states import TaskStatus

if TYPE_CHECKING:
    from .models.transitions import TaskQuerySet

T = TypeVar("T")

#: Seconds between two looks of ``get()``: soon at first, then less often.
_FIRST_LOOK: Final = 0.02
_LONGEST_LOOK: Final = 0.5

_NOT_FINAL: Final = frozenset({RetrievalCode.WAIT_TIMEOUT, RetrievalCode.TASK_NOT_FOUND})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """What a row said when it was read (S4-59)."""

    id: UUID
    name: str
    queue_name: str
    priority: int
    status: TaskStatus
    attempt: int
    retry_count: int
    max_retries: int
    sent_at: datetime
    enqueued_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    next_retry_at: datetime | None
    good_until: datetime | None
    worker_id: str | None
    error_code: str | None
    result: TaskResult[Any, TaskError[Any]] | None


class TaskHandle(Generic[T]):
    """One task, by its id. Costs no query until asked, and can be rebuilt from the id anywhere."""

    def __init__(self, id: UUID | str, *, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> None:
        self.id = id if isinstance(id, UUID) else UUID(id)
        self.backend = backend
        self._final: TaskResult[T, TaskError[Any]] | None = None

    def __repr__(self) -> str:
        return f"TaskHandle({str(self.id)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskHandle) and (self.id, self.backend) == (other.id, other.backend)

    def __hash__(self) -> int:
        return hash(self.id)

    def status(self) -> TaskStatus | None:
        """Return the task's status now, None if there is no such task."""
        status = self._rows().values_list("status", flat=True).first()
        return TaskStatus(status) if status else None

    def info(self) -> TaskInfo | None:
        """Return a snapshot of the task (S4-58), None if there is no such task."""
        row = self._rows().first()
        if row is None:
            return None
        return TaskInfo(
            id=row.pk,
            name=row.task_name,
            queue_name=row.queue_name,
            priority=row.priority,
            status=TaskStatus(row.status),
            attempt=row.attempt,
            retry_count=row.retry_count,
            max_retries=row.max_retries,
            sent_at=row.sent_at,
            enqueued_at=row.enqueued_at,
            claimed_at=row.claimed_at,
            started_at=row.started_at,
            completed_at=row.completed_at,
            failed_at=row.failed_at,
            next_retry_at=row.next_retry_at,
            good_until=row.good_until,
            worker_id=row.claimed_by_worker_id,
            error_code=row.error_code,
            result=self._kept(row.status, row.result, row.rich),
        )

    def get(self, timeout: float | None = None) -> TaskResult[T, TaskError[Any]]:
        """Wait for the task to end, at most ``timeout`` seconds, and return its result.

        Never raises for how the task came out. None waits for ever, 0 looks once. ``WAIT_TIMEOUT``, ``TASK_NOT_FOUND``
        and ``RESULT_NOT_AVAILABLE`` are error results.
        """
        for pause in self._looks(timeout):
            result = self._look()
            if result is not None:
                return self._keep(result)
            time.sleep(pause)
        return _gave_up(timeout)

    async def aget(self, timeout: float | None = None) -> TaskResult[T, TaskError[Any]]:
        """See :meth:`get`."""
        for pause in self._looks(timeout):
            result = await sync_to_async(self._look)()
            if result is not None:
                return self._keep(result)
            await asyncio.sleep(pause)
        return _gave_up(timeout)

    def value(self, timeout: float | None = None) -> T:
        """Return the ok value, or raise :class:`~horsies_django.exceptions.TaskFailed`. See :meth:`get`."""
        return self.get(timeout).unwrap()

    async def avalue(self, timeout: float | None = None) -> T:
        """See :meth:`value`."""
        return (await self.aget(timeout)).unwrap()

    def cancel(self, include_running: bool = False) -> bool:
        """Cancel the task if it has not ended, and has not begun unless asked; return whether it was cancelled."""
        return self._rows().cancel(include_running=include_running) == 1

    def retry(self) -> bool:
        """Run a failed, cancelled or expired task again with a fresh budget; return whether it was one (S4-72)."""
        self._final = None
        return self._rows().retry() == 1

    async def astatus(self) -> TaskStatus | None:
        """See :meth:`status`."""
        return await sync_to_async(self.status)()

    async def ainfo(self) -> TaskInfo | None:
        """See :meth:`info`."""
        return await sync_to_async(self.info)()

    async def acancel(self, include_running: bool = False) -> bool:
        """See :meth:`cancel`."""
        return await sync_to_async(self.cancel)(include_running)

    async def aretry(self) -> bool:
        """See :meth:`retry`."""
        return await sync_to_async(self.retry)()

    def _rows(self) -> TaskQuerySet:
        from .models import Task

        backend: Any = task_backends[self.backend]
        return Task.objects.using(backend.config.database).filter(pk=self.id)

    def _looks(self, timeout: float | None) -> Iterator[float]:
        """Yield the pause after each look, the last look falling on the deadline."""
        if timeout is not None and not timeout >= 0:  # NaN is neither
            raise ValueError(f"timeout is {timeout!r}; allowed: seconds from 0 on, or None to wait for ever.")
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_LOOK
        while True:
            left = pause if deadline is None else deadline - time.monotonic()
            yield max(0.0, min(pause, left))
            if left <= 0:
                return
            pause = min(pause * 1.5, _LONGEST_LOOK)

    def _look(self) -> TaskResult[T, TaskError[Any]] | None:
        """Return the result if there is one to return; None while the task lives."""
        if self._final is not None:
            return self._final
        found = self._rows().values_list("status", "result", "rich").first()
        if found is None:
            return _retrieval(RetrievalCode.TASK_NOT_FOUND, f"There is no task {self.id}.")
        return self._kept(*found)

    def _kept(self, status: str, stored: Any, rich: bool) -> TaskResult[T, TaskError[Any]] | None:
        """The result of a task that has ended; None while it lives."""
        if not TaskStatus(status).is_terminal:
            return None
        if stored is None:
            return _retrieval(RetrievalCode.RESULT_NOT_AVAILABLE, f"Task {self.id} is {status} and kept no result.")
        return _read(stored, rich)

    def _keep(self, result: TaskResult[T, TaskError[Any]]) -> TaskResult[T, TaskError[Any]]:
        if result.err is None or result.err.error_code not in _NOT_FINAL:
            self._final = result
        return result


def _read(stored: Any, rich: bool) -> TaskResult[Any, TaskError[Any]]:
    try:
        if "err" in stored:
            error = TaskError.from_json(stored["err"])
            return TaskResult(err=error)
        return TaskResult(ok=decode(stored["ok"], rich=rich))
    except Exception as error:  # noqa: BLE001  # whatever a damaged value does to its decoder, the caller gets a result
        message = f"The stored result can't be read: {error!r}."
        return TaskResult(err=TaskError(error_code=OperationalCode.RESULT_DESERIALIZATION_ERROR, message=message))


def _retrieval(code: RetrievalCode, message: str) -> TaskResult[Any, TaskError[Any]]:
    return TaskResult(err=TaskError(error_code=code, message=message))


def _gave_up(timeout: float | None) -> TaskResult[Any, TaskError[Any]]:
    return _retrieval(RetrievalCode.WAIT_TIMEOUT, f"The task had not ended after {timeout:g} seconds.")
