"""``TaskRun``: a run of a task, as its context and its input resolvers use it, and ``LocalRun``, one without a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.utils import timezone

from ..core.compat import FrameworkTask
from ..core.exceptions import TaskInterrupt
from ..core.options import Options
from ..core.registry import name_of
from ..core.serialization import dumps
from ..models.claims import ClaimedTask, WorkerInfo, metadata_of


@dataclass(eq=False, slots=True)
class TaskRun(ABC):
    """The state of a run. ``state`` is what ``context.save()`` stored last, encoded; ``progress`` is JSON."""

    claimed: ClaimedTask
    options: Options
    runner: WorkerInfo
    stop_reason: type[TaskInterrupt] | None = None
    state: Any = None
    progress: str | None = None
    is_atomic: bool = False  # the end of the task is part of the transaction in which its function runs
    _metadata: dict[str, Any] | None = None

    @property
    def task_id(self) -> UUID:
        """The id of the task's row."""
        return self.claimed.task_id

    @property
    def database(self) -> str:
        """The alias of the queue's database."""
        return self.options.database

    @property
    @abstractmethod
    def is_typed(self) -> bool:
        """Whether the values of the row carry type tags."""

    @property
    def metadata(self) -> dict[str, Any]:
        """The task's metadata, the same dict each time."""
        if self._metadata is None:
            self._metadata = metadata_of(self.claimed)
        return self._metadata

    def request_stop(self, reason: type[TaskInterrupt]) -> None:
        """Ask the function to stop at its next checkpoint. The first reason counts."""
        if self.stop_reason is None:
            self.stop_reason = reason

    def raise_if_stopping(self) -> None:
        """Raise the reason to stop, if there is one: a checkpoint."""
        if self.stop_reason is not None:
            raise self.stop_reason

    @abstractmethod
    def store_columns(self, **columns: Any) -> bool:
        """Store columns of the task's row; return whether the run still holds it."""


#: The worker of such a run.
LOCAL_WORKER = WorkerInfo("local", "local", None)


@dataclass(eq=False, slots=True)
class LocalRun(TaskRun):
    """A run in this process that keeps progress and state in memory."""

    runner: WorkerInfo = LOCAL_WORKER
    is_typed: bool = False

    def store_columns(self, **columns: Any) -> bool:
        """Do nothing: there is no row."""
        return True


def local_claim(
    task: FrameworkTask[..., Any],
    task_id: UUID,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    metadata: Mapping[str, Any],
    *,
    attempt: int,
    max_attempts: int,
    is_typed: bool = False,
) -> ClaimedTask:
    """Return the claim of a call that has no row. Arguments and metadata are JSON values."""
    return ClaimedTask(
        task_id=task_id,
        task_name=name_of(task),
        queue_name=task.queue_name,
        backend=task.backend,
        priority=int(task.priority),
        args=dumps(list(args)),
        kwargs=dumps(dict(kwargs)),
        typed_payload=is_typed,
        claim=1,
        attempt=attempt,
        retry_count=attempt - 1,
        max_retries=max_attempts - 1,
        retry_policy=None,
        is_async=False,
        metadata=dumps(dict(metadata)) if metadata else None,
        enqueued_at=timezone.now().isoformat(),
        timeout=None,
        retention=None,
        workflow_id=None,
        has_inputs=False,
    )
