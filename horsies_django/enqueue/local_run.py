"""``LocalRun``: what a task's context asks of its run, without a worker and without a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.utils import timezone

from ..core.compat import FrameworkTask
from ..core.names import name_of
from ..core.serialization import dumps
from ..models.claims import ClaimedTask, WorkerInfo
from .task_run import TaskRun

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
