"""``TaskHandle``: reads, awaits and controls one task that was sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db.models import TextField
from django.db.models.functions import Cast

from ..core import recent_exceptions
from ..core.compat import DEFAULT_TASK_BACKEND_ALIAS, task_backends
from ..core.exceptions import TaskFailed
from ..core.ids import parse_uuid
from ..core.operations import log_operation
from ..core.results import RetrievalCode, TaskError, TaskResult
from ..core.status import TaskStatus
from . import result_reader, wait

if TYPE_CHECKING:
    from ..models.transitions import TaskQuerySet
    from .output import OutputChunk

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress that a body reported last."""

    done: float
    total: float | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """A snapshot of a task's row.

    ``error_code`` is the code of the task's error or, while a retry is due, of its last attempt.
    """

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
    cancelled_at: datetime | None
    expired_at: datetime | None
    next_retry_at: datetime | None
    good_until: datetime | None
    worker_id: str | None
    error_code: str | None
    progress: Progress | None
    result: TaskResult[Any, TaskError[Any]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInfo:
    """A snapshot of what a task has recorded of a step.

    ``number`` counts from 1 within a name. ``kind`` is step, batches, event, wait, sleep or patch; ``status`` is
    WAITING, RUNNING, UNREAD (an event that the body has not read), COMPLETED or FAILED. ``result`` is None before that.
    """

    name: str
    number: int
    kind: str
    status: str
    attempts: int
    result: TaskResult[Any, TaskError[Any]] | None
    started_at: datetime
    completed_at: datetime | None


class TaskHandle(Generic[T]):
    """One task, by its id. Runs no query until a method needs one, and can be rebuilt from the id anywhere.

    ``replayed`` says that the send behind this handle inserted no row, because a task with its ``task_id`` or
    ``unique_key`` existed already. Raises ValueError for an invalid id.
    """

    def __init__(self, id: UUID | str, *, backend: str = DEFAULT_TASK_BACKEND_ALIAS, replayed: bool = False) -> None:
        self.id = id if isinstance(id, UUID) else parse_uuid(id)
        self.backend = backend
        self.replayed = replayed
        self._final: TaskResult[T, TaskError[Any]] | None = None

    def __repr__(self) -> str:
        return f"TaskHandle({str(self.id)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskHandle) and (self.id, self.backend) == (other.id, other.backend)

    def __hash__(self) -> int:
        return hash(self.id)

    def status(self) -> TaskStatus | None:
        """Return the task's current status, None if there is no such task."""
        status = self._rows().values_list("status", flat=True).first()
        return TaskStatus(status) if status else None

    def info(self) -> TaskInfo | None:
        """Return a snapshot of the task, None if there is no such task."""
        stored = Cast("result", TextField())
        row: Any = self._rows().defer("result").annotate(stored_result=stored).first()
        if row is None:
            return None
        values = {
            "name": row.task_name,
            "status": TaskStatus(row.status),
            "worker_id": row.claimed_by_worker_id,
            "progress": _progress(row.progress),
            "result": self._stored_result(wait.TaskSnapshot(row.status, row.stored_result, row.typed_payload)),
        }
        columns = {entry.name for entry in fields(TaskInfo)} - values.keys()
        return TaskInfo(**{name: getattr(row, name) for name in columns}, **values)

    def get(self, timeout: float | None = None) -> TaskResult[T, TaskError[Any]]:
        """Wait for the task to end, at most ``timeout`` seconds, and return its result.

        None waits without limit, 0 polls once. Never raises for the outcome of the task or of the query. Besides the
        error codes of the task itself, the result may have ``WAIT_TIMEOUT`` (the task has not ended, or the database
        has not answered), ``TASK_NOT_FOUND`` (there is no such row, or it was deleted), ``RESULT_NOT_AVAILABLE`` (the
        task has ended without a stored result), ``RESULT_DESERIALIZATION_ERROR`` or ``BROKER_ERROR`` (the query
        failed). The first two and the last are not cached: the next call asks again.

        One thread polls for all waiters of a process, every 20 ms at first, later every 0.5 s (on SQLite 50 ms). In a
        transaction, and with the timeout 0, a waiter polls on its own connection: there a server that does not answer
        can outlast the timeout. A transaction never sees the end of a task that it has sent itself.
        """
        deadline = wait.deadline_of(timeout)
        return self._final or self._to_result(
            wait.wait_for_end(wait.of_tasks, self._database, self.id, deadline), timeout
        )

    async def aget(self, timeout: float | None = None) -> TaskResult[T, TaskError[Any]]:
        """See :meth:`get`."""
        deadline = wait.deadline_of(timeout)
        return self._final or self._to_result(
            await wait.await_end(wait.of_tasks, self._database, self.id, deadline), timeout
        )

    def value(self, timeout: float | None = None) -> T:
        """Return the ok value, or raise ``TaskFailed`` or ``WaitTimeout`` (a TimeoutError). See :meth:`get`.

        If the body ran in this process, a ``TaskFailed`` has the body's exception as its ``__cause__``.
        """
        return self._unwrapped(self.get(timeout))

    async def avalue(self, timeout: float | None = None) -> T:
        """See :meth:`value`."""
        return self._unwrapped(await self.aget(timeout))

    def cancel(self, include_running: bool = False) -> bool:
        """Cancel the task if it waits or, with ``include_running``, runs; return whether it was cancelled."""
        return self._logged("task.cancel", self._rows().cancel(include_running=include_running))

    def retry(self) -> bool:
        """Run a failed, cancelled or expired task again with all its attempts; return whether its status allowed it."""
        self._final = None
        return self._logged("task.retry", self._rows().retry())

    def send_event(self, name: str, payload: Any = None) -> bool:
        """Send an event to the body, which waits for it now or later; return whether the task was live.

        Part of the current transaction: the event comes with its commit. Raises ValueError for an invalid name and for
        a task with 1,000 events that its body has not read, TypeError or ValueError for a payload that can't be stored.
        """
        from ..steps import events

        if events.send(name, {self.backend: {self.id: payload}}):
            return True
        if events.live(self._database, [self.id]):
            raise ValueError(f"{self!r} has 1,000 events that its body has not read; allowed: no more.")
        return False

    def steps(self) -> list[StepInfo]:
        """Return what the task has recorded, in the order of its body; then its waits and unread events."""
        from ..core.backends import reads_typed
        from ..models import TaskStep

        columns = [entry.name for entry in fields(StepInfo)]
        rows = TaskStep.objects.using(self._database).filter(task=self.id).in_order()
        listed = rows.values(*columns, "task__backend", "task__typed_payload")
        infos = []
        for row in listed:
            typed = reads_typed(row.pop("task__backend"), row.pop("task__typed_payload"))
            stored = row.pop("result")
            infos.append(StepInfo(**row, result=None if stored is None else result_reader.restore(stored, typed)))
        return infos

    def output(self, after: int = 0) -> list[OutputChunk]:
        """Return what the body has written and logged so far, after the chunk with this sequence.

        Raises ValueError for a bad sequence.
        """
        from . import output

        return output.read(self._database, self.id, after)

    def follow(self, after: int = 0) -> AsyncIterator[OutputChunk]:
        """Return an iterator that yields each chunk as it comes, until the task has ended: ``async for chunk in …``.

        A chunk comes about a second after the body wrote it. One thread polls for all that wait in a process, as for
        :meth:`get`. Raises ValueError for a bad sequence, and the error of a query that fails.
        """
        from . import output

        return output.afollow(self._database, self.id, after)

    def stream_token(self, max_age: float = 3600) -> str:
        """Return a token with which a browser may read the events of this task for ``max_age`` seconds.

        It goes to ``tasks/<id>/events/?token=`` of :mod:`horsies_django.urls`, which shows its bearer everything
        unmasked. Runs no query. Raises ValueError for an age that is not above 0 and at most ten years.
        """
        from ..core import stream_token

        return stream_token.make(self.backend, self.id, max_age)

    def fork(self, from_step: str | None = None, kwargs: Mapping[str, Any] | None = None) -> TaskHandle[T]:
        """Run the task again as a new one, and return its handle.

        The new task has the records before the first one of the name ``from_step``, and none without it, so it repeats
        the rest. ``kwargs`` replace arguments of the same names. It has no unique key, and its keys for other services
        are its own. Raises ValueError for an unknown step, which names the known ones, and for a task that can't be
        sent alone; TypeError or ValueError for arguments that don't fit.
        """
        from .fork import fork

        return fork(self, from_step, kwargs)

    def _unwrapped(self, result: TaskResult[T, TaskError[Any]]) -> T:
        try:
            return result.unwrap()
        except TaskFailed as failed:
            cause = recent_exceptions.find(self.id, failed.exception_class_path)
            if cause is None:
                raise
            raise failed from cause

    def _logged(self, operation: str, count: int) -> bool:
        log_operation(operation, count, ids=[self.id])
        return count == 1

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

    async def asteps(self) -> list[StepInfo]:
        """See :meth:`steps`."""
        return await sync_to_async(self.steps)()

    async def aoutput(self, after: int = 0) -> list[OutputChunk]:
        """See :meth:`output`."""
        return await sync_to_async(self.output)(after)

    async def afork(self, from_step: str | None = None, kwargs: Mapping[str, Any] | None = None) -> TaskHandle[T]:
        """See :meth:`fork`."""
        return await sync_to_async(self.fork)(from_step, kwargs)

    async def asend_event(self, name: str, payload: Any = None) -> bool:
        """See :meth:`send_event`."""
        return await sync_to_async(self.send_event)(name, payload)

    @property
    def _database(self) -> str:
        backend: Any = task_backends[self.backend]
        return str(backend.config.database)

    def _rows(self) -> TaskQuerySet:
        from ..models import Task

        return Task.objects.using(self._database).filter(pk=self.id)

    def _to_result(
        self, answer: wait.Answer[wait.TaskSnapshot], timeout: float | None
    ) -> TaskResult[T, TaskError[Any]]:
        """Return the result for an answer, and cache it if it is the task's own."""
        if isinstance(answer, wait.NoAnswer):
            return result_reader.timed_out("task", timeout, None)
        if not isinstance(answer, wait.TaskSnapshot):
            return result_reader.not_found(f"task {self.id}", answer)
        if (result := self._stored_result(answer)) is None:
            return result_reader.timed_out("task", timeout, answer.status)
        self._final = result
        return result

    def _stored_result(self, row: wait.TaskSnapshot) -> TaskResult[T, TaskError[Any]] | None:
        """Return the result of a task that has ended, None before."""
        from ..core.backends import reads_typed

        if not row.is_final:
            return None
        if row.result is None or row.result == "null":
            message = f"Task {self.id} is {row.status} and kept no result."
            return result_reader.error(RetrievalCode.RESULT_NOT_AVAILABLE, message)
        return result_reader.read(row.result, reads_typed(self.backend, row.typed_payload))


def send_events(payloads: Mapping[TaskHandle[Any] | UUID | str, Any], name: str) -> int:
    """Send an event to many tasks, each with its payload; return how many have got it.

    The keys are handles, or ids of tasks of the default backend. Part of the current transaction: the events come with
    its commit. Left out are tasks that have ended or do not exist, and those with 1,000 events that their bodies have
    not read. Raises ValueError for an invalid name or id, TypeError or ValueError for a payload that can't be stored.
    """
    from ..steps import events

    by_backend = defaultdict[str, dict[UUID, Any]](dict)
    for key, payload in payloads.items():
        handle = key if isinstance(key, TaskHandle) else TaskHandle[Any](key)
        by_backend[handle.backend][handle.id] = payload
    return len(events.send(name, by_backend))


async def asend_events(payloads: Mapping[TaskHandle[Any] | UUID | str, Any], name: str) -> int:
    """See :func:`send_events`."""
    return await sync_to_async(send_events)(payloads, name)


def _progress(stored: Any) -> Progress | None:
    """Return the stored progress; None if there is none or it is malformed."""
    match stored:
        case {"done": int() | float() as done, "total": int() | float() | None as total, "message": str() as message}:
            return Progress(done=done, total=total, message=message)
    return None
