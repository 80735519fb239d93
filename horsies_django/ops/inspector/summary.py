"""Tasks as lists show them, read without their large columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, cast
from uuid import UUID

from ...core.status import TaskStatus
from ...db.now import Now
from ...models import Task
from ...models.transitions import TaskQuerySet
from ..diagnosis.reason import backend_options
from ..payload_view.contents import PARTS
from ..payload_view.excerpt import excerpt_of, with_short_arguments
from .task_states import State, Wait, state_of, wait_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSummary:
    """A task's row as of the time it was read.

    Attributes:
        state: Its status; of a PENDING task, the kind.
        wait: Of a PENDING task, what it waits for as far as its row shows: *due* is a free slot, *blocked* its limit.
        is_orphaned: Whether the worker that holds it has been silent for longer than the settings allow.
        call: Its arguments on one line, masked and truncated.
        due_at: The earliest time that a worker may claim it, or could have claimed it.
        group_key: The key of a group that still accepts calls.
        item_count: The number of calls in its group. None: it is not a group.
        ended_at: When it ended. None: it has not ended.
        fingerprint: The error group of its last attempt, if it has failed or is retried.
        seen_at: When the row was read. All times are by the database's clock.
    """

    id: UUID
    task: str
    call: str
    state: State
    wait: Wait | None
    is_orphaned: bool
    queue: str
    priority: int
    backend: str
    attempt: int
    retry_count: int
    max_retries: int
    sent_at: datetime
    due_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    good_until: datetime | None
    worker_id: str | None
    error_code: str | None
    fingerprint: str | None
    workflow_id: UUID | None
    unique_key: str | None
    limit_key: str | None
    group_key: str | None
    item_count: int | None
    seen_at: datetime

    def as_json(self) -> dict[str, Any]:
        """Return a dict for JSON, with ids and times as strings."""
        return {name: as_text(value) for name, value in asdict(self).items()}


def as_text(value: Any) -> Any:
    """Return an id, state or time as a string, and any other value unchanged."""
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, UUID | StrEnum) else value


def with_summary_columns(rows: TaskQuerySet) -> TaskQuerySet:
    """Select the columns that a summary needs, and the database's time."""
    return cast(
        "TaskQuerySet", with_short_arguments(rows.annotate(seen_at=Now()).defer(*PARTS, "retry_policy", "progress"))
    )


def task_summaries(rows: Sequence[Any]) -> list[TaskSummary]:
    """Return summaries of rows from :func:`with_summary_columns`. Takes a statement per backend with held tasks."""
    orphans = orphaned_ids(rows)
    return [TaskSummary(**summary_fields(row), is_orphaned=row.pk in orphans, call=excerpt_of(row)) for row in rows]


def summary_fields(row: Any) -> dict[str, Any]:
    """Return the fields that summary and detail share, from a row that was read with ``seen_at``."""
    return {
        "id": row.pk,
        "task": row.task_name,
        "state": state_of(row, row.seen_at),
        "wait": wait_of(row, row.seen_at),
        "queue": row.queue_name,
        "priority": row.priority,
        "backend": row.backend,
        "attempt": row.attempt,
        "retry_count": row.retry_count,
        "max_retries": row.max_retries,
        "sent_at": row.sent_at,
        "due_at": row.due_at,
        "started_at": row.started_at,
        "ended_at": row.finished_at,
        "good_until": row.good_until,
        "worker_id": row.claimed_by_worker_id,
        "error_code": row.error_code,
        "fingerprint": row.fingerprint,
        "workflow_id": row.workflow_id,
        "unique_key": row.unique_key,
        "limit_key": row.limit_key,
        "group_key": row.group_key,
        "item_count": row.item_count,
        "seen_at": row.seen_at,
    }


def orphaned_ids(rows: Iterable[Task]) -> set[UUID]:
    """Return the ids of tasks whose worker has been silent for longer than their backend's settings allow."""
    held = [row for row in rows if row.claimed]
    found: set[UUID] = set()
    for backend in sorted({row.backend for row in held}):
        recovery = backend_options(backend).recovery
        mine = [row for row in held if row.backend == backend]
        every = Task.objects.using(mine[0]._state.db).filter(pk__in=[row.pk for row in mine])
        stale = every.stale_running(recovery.running_stale_after)
        if any(row.status == TaskStatus.CLAIMED for row in mine):
            stale = stale | every.stale_claimed(recovery.claimed_stale_after)
        found.update(stale.values_list("pk", flat=True))
    return found
