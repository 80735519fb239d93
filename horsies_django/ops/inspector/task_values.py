"""Tasks as values: as lists show them, without their large columns, and one with everything known about it.

Values are masked as in the admin.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, cast
from uuid import UUID

from django.db.models import TextField
from django.db.models.functions import Cast

from ...core.registry import registry
from ...core.status import TaskStatus
from ...db.now import Now
from ...models import Task, TaskItem, TaskStep
from ...models.transitions import TaskQuerySet
from ..diagnosis.retries import describe_retry_policy
from ..diagnosis.waiting import backend_options, reasons_of
from ..payload_view.contents import (
    PARTS,
    Contents,
    contents_of,
    decode,
    decode_text_columns,
    with_payload_texts,
    with_text_columns,
)
from ..payload_view.excerpt import MAX_LENGTH, excerpt_of, with_short_arguments
from ..payload_view.json_text import chunks, head
from ..task_states import State, Wait, state_of, wait_of

#: The fields of an attempt.
ATTEMPT_FIELDS: Final = (
    "attempt",
    "outcome",
    "will_retry",
    "due_at",
    "started_at",
    "finished_at",
    "error_code",
    "error_message",
    "exception_class",
    "location",
    "fingerprint",
    "worker_id",
    "hostname",
)

#: The payload columns of a task.
PAYLOADS: Final = ("args", "kwargs", "result", "metadata", "checkpoint")

#: The fields of a step: all but its result, which may be sensitive.
STEP_FIELDS: Final = ("name", "number", "kind", "status", "attempts", "started_at", "completed_at", "due_at")

#: Maximum numbers of a group's calls, and of a task's steps, that are returned.
MAX_ITEMS: Final = 50
MAX_STEPS: Final = 100


#: The columns of a summary that have other names in the row, and its fields that are no columns.
_COLUMNS: Final = {
    "id": "pk",
    "task": "task_name",
    "queue": "queue_name",
    "ended_at": "finished_at",
    "worker_id": "claimed_by_worker_id",
}
_DERIVED: Final = frozenset({"call", "state", "wait", "is_orphaned"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSummary:
    """A task's row as of the time it was read.

    Attributes:
        state: Its status; of a PENDING task, the kind.
        wait: Of a PENDING task, what it waits for as far as its row shows: *due* is a free slot, *blocked* its limit.
        is_orphaned: Whether the worker that holds it has been silent for longer than the settings allow.
        call: Its arguments on one line, masked and truncated.
        due_at: The earliest time that a worker may claim it, or could have claimed it.
        waits_for: What a task that has begun waits for without a slot, such as ``event:approved``.
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
    waits_for: str | None
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
    names = [field.name for field in fields(TaskSummary) if field.name not in _DERIVED]
    values = {name: getattr(row, _COLUMNS.get(name, name)) for name in names}
    return values | {"state": state_of(row, row.seen_at), "wait": wait_of(row, row.seen_at)}


def orphaned_ids(rows: Iterable[Task]) -> set[UUID]:
    """Return the ids of tasks whose worker has been silent for longer than their backend's settings allow."""
    held = [row for row in rows if row.claimed]
    orphans: set[UUID] = set()
    for backend in sorted({row.backend for row in held}):
        recovery = backend_options(backend).recovery
        mine = [row for row in held if row.backend == backend]
        every = Task.objects.using(mine[0]._state.db).filter(pk__in=[row.pk for row in mine])
        stale = every.stale_running(recovery.running_stale_after)
        if any(row.status == TaskStatus.CLAIMED for row in mine):
            stale = stale | every.stale_claimed(recovery.claimed_stale_after)
        orphans.update(stale.values_list("pk", flat=True))
    return orphans


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDetail(TaskSummary):
    """A task's row and everything related to it, as of the time it was read.

    Attributes:
        about: The row that it is about, such as ``shop.Order:5``; the row may be gone.
        why: Why it is not running, as translated sentences, the most immediate first; empty if it runs or has ended.
        payload: The non-empty values among arguments, result, metadata and checkpoint, masked.
        progress: The progress that its body reported.
        items: The first calls of its group, masked, in the order of arrival.
        attempts: Its attempts, the oldest first.
        steps: Its last steps and waits, without results, in the order of its body; then those that are open.
        step_count: The number of all of them.
        retries: A description of the retry policy in force.
        timeout: Time limit of an attempt in seconds. None: the worker's default.
        traceback: The traceback of its error, which ``payload["result"]`` leaves out.
        is_registered: Whether a task with its name is registered in this process.
    """

    about: str | None
    why: Sequence[str]
    payload: Mapping[str, Any]
    progress: Any
    items: Sequence[Any]
    attempts: Sequence[Mapping[str, Any]]
    steps: Sequence[Mapping[str, Any]]
    step_count: int
    retries: str
    timeout: float | None
    traceback: str
    is_registered: bool

    def as_json(self) -> dict[str, Any]:
        """Return a dict for JSON, with ids and times as strings."""
        values = {entry.name: as_text(getattr(self, entry.name)) for entry in fields(self)}
        attempts, steps = (
            [{name: as_text(value) for name, value in row.items()} for row in rows]
            for rows in (self.attempts, self.steps)
        )
        lists = {"why": list(self.why), "items": list(self.items), "attempts": attempts, "steps": steps}
        return {**values, **lists, "payload": dict(self.payload)}


def task_detail(rows: TaskQuerySet) -> TaskDetail | None:
    """Return the first of these rows in full, or None if there are none. Takes at most thirteen statements."""
    task = with_payload_texts(with_text_columns(rows.annotate(seen_at=Now()), "progress"), *PAYLOADS).first()
    if task is None:
        return None
    decode_text_columns(task, "progress")
    contents = contents_of(task)
    steps = TaskStep.objects.using(rows.db).filter(task=task.pk).in_order()
    last = list(steps.reverse().values(*STEP_FIELDS)[:MAX_STEPS])[::-1]
    return TaskDetail(
        **summary_fields(task),
        call=", ".join(_line(contents, part) for part in ("args", "kwargs") if contents.is_filled(part)),
        is_orphaned=bool(orphaned_ids([task])),
        about=None if task.about_row is None else str(task.about_row),
        why=tuple(reason.as_text(task.seen_at) for reason in reasons_of(task, task.seen_at)),
        payload={part: _masked_part(contents, part) for part in PAYLOADS if contents.is_filled(part)},
        progress=task.progress,
        items=[] if task.item_count is None else _items(task, contents),
        attempts=list(task.attempts.order_by("attempt").values(*ATTEMPT_FIELDS)),
        steps=last,
        step_count=len(last) if len(last) < MAX_STEPS else steps.count(),
        retries=describe_retry_policy(task),
        timeout=task.timeout,
        traceback=contents.traceback,
        is_registered=registry.has_task(task.task_name),
    )


def _items(task: Task, contents: Contents) -> list[Any]:
    rows = TaskItem.objects.using(task._state.db).filter(task=task.pk).order_by("position")
    texts = rows.values_list(Cast("kwargs", TextField()), flat=True)[:MAX_ITEMS]
    return [_masked(decode(text), contents) for text in texts]


def _line(contents: Contents, part: str) -> str:
    text, is_all = head(contents.visible(part), contents.mask, MAX_LENGTH)
    return " ".join(text.split()) + ("" if is_all else "…")


def _masked_part(contents: Contents, part: str) -> Any:
    """Return a value masked at every depth; as text if it is nested too deeply for Python to parse."""
    return _masked(contents.visible_result() if part == "result" else contents.visible(part), contents)


def _masked(value: Any, contents: Contents) -> Any:
    text = "".join(chunks(value, contents.mask))
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
