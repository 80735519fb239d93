"""``LocalRun``: what a task's context asks of its run, without a worker and without a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.utils import timezone

from ..core.compat import FrameworkTask
from ..core.exceptions import TaskInterrupt
from ..core.names import name_of
from ..core.options import Options
from ..core.serialization import dumps
from ..models.claims import ClaimedTask, WorkerInfo, metadata_of

#: The worker of such a run.
LOCAL_WORKER = WorkerInfo("local", "local", None)


@dataclass(slots=True)
class LocalRun:
    """A run in this process that keeps progress and state in memory."""

    claim: ClaimedTask
    options: Options
    is_typed: bool
    state: Any = None
    stop_reason: type[TaskInterrupt] | None = None
    progress: str | None = None
    runner: WorkerInfo = LOCAL_WORKER
    _metadata: dict[str, Any] | None = None

    @property
    def task_id(self) -> UUID:
        """The id of the task."""
        return self.claim.task_id

    @property
    def database(self) -> str:
        """The alias of the queue's database."""
        return self.options.database

    def request_stop(self, why: type[TaskInterrupt]) -> None:
        """Ask the body to stop at its next checkpoint. Only the first reason counts."""
        self.stop_reason = self.stop_reason or why

    def raise_if_stopping(self) -> None:
        """Raise the reason to stop, if there is one."""
        if self.stop_reason is not None:
            raise self.stop_reason

    @property
    def metadata(self) -> dict[str, Any]:
        """The task's metadata, the same dict each time."""
        if self._metadata is None:
            self._metadata = metadata_of(self.claim)
        return self._metadata

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
