"""Everything known about one task, with values masked as in the admin."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from django.db.models import TextField
from django.db.models.functions import Cast

from ...core.registry import registry
from ...db.now import Now
from ...models import Task, TaskItem
from ...models.transitions import TaskQuerySet
from ..diagnosis import reasons_of
from ..payload_view.contents import (
    Contents,
    contents_of,
    decode,
    decode_text_columns,
    with_payload_texts,
    with_text_columns,
)
from ..payload_view.excerpt import MAX_LENGTH
from ..payload_view.json_text import chunks, head
from ..payload_view.retry_policy import describe_retry_policy
from .summary import TaskSummary, as_text, orphaned_ids, summary_fields

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

#: Maximum number of a group's calls that are returned.
MAX_ITEMS: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDetail(TaskSummary):
    """A task's row and everything related to it, as of the time it was read.

    Attributes:
        why: Why it is not running, as translated sentences, the most immediate first; empty if it runs or has ended.
        payload: The non-empty values among arguments, result, metadata and checkpoint, masked.
        progress: The progress that its body reported.
        items: The first calls of its group, masked, in the order of arrival.
        attempts: Its attempts, the oldest first.
        retries: A description of the retry policy in force.
        timeout: Time limit of an attempt in seconds. None: the worker's default.
        traceback: The traceback of its error, which ``payload["result"]`` leaves out.
        is_registered: Whether a task with its name is registered in this process.
    """

    why: Sequence[str]
    payload: Mapping[str, Any]
    progress: Any
    items: Sequence[Any]
    attempts: Sequence[Mapping[str, Any]]
    retries: str
    timeout: float | None
    traceback: str
    is_registered: bool

    def as_json(self) -> dict[str, Any]:
        """Return a dict for JSON, with ids and times as strings."""
        values = {entry.name: as_text(getattr(self, entry.name)) for entry in fields(self)}
        attempts = [{name: as_text(value) for name, value in attempt.items()} for attempt in self.attempts]
        lists = {"why": list(self.why), "items": list(self.items), "attempts": attempts}
        return {**values, **lists, "payload": dict(self.payload)}


def task_detail(rows: TaskQuerySet) -> TaskDetail | None:
    """Return the first of these rows in full, or None if there are none. Takes at most eleven statements."""
    task = with_payload_texts(with_text_columns(rows.annotate(seen_at=Now()), "progress"), *PAYLOADS).first()
    if task is None:
        return None
    decode_text_columns(task, "progress")
    contents = contents_of(task)
    return TaskDetail(
        **summary_fields(task),
        call=", ".join(_line(contents, part) for part in ("args", "kwargs") if contents.is_filled(part)),
        is_orphaned=bool(orphaned_ids([task])),
        why=tuple(reason.as_text(task.seen_at) for reason in reasons_of(task, task.seen_at)),
        payload={part: _masked_part(contents, part) for part in PAYLOADS if contents.is_filled(part)},
        progress=task.progress,
        items=[] if task.item_count is None else _items(task, contents),
        attempts=list(task.attempts.order_by("attempt").values(*ATTEMPT_FIELDS)),
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
