"""One task with all that is known of it, masked as in the admin."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from django.db.models.functions import Now

from ..models.transitions import TaskQuerySet
from ..reasons import reasons_of
from ..registry import registry
from ..showing.contents import Contents, as_texts, contents_of, give_values, with_texts
from ..showing.excerpt import LENGTH
from ..showing.json_text import head, pieces
from .listed import ListedTask, as_text, facts_by_name, orphans_among

#: What is told of an attempt.
ATTEMPT: Final = (
    "attempt",
    "outcome",
    "will_retry",
    "started_at",
    "finished_at",
    "error_code",
    "error_message",
    "exception_class",
    "worker_id",
    "hostname",
)

#: What a task carries.
CARRIED: Final = ("args", "kwargs", "result", "metadata", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTask(ListedTask):
    """What a row said when it was read, and what was known beside it.

    Attributes:
        why: Why it is not running, in words, the nearest reason first; empty if it runs or has ended.
        carried: Its arguments, result, metadata and checkpoint, masked; those that are not empty.
        progress: How far its body said it is.
        attempts: What each run of its body came to, the first first.
        timeout: Seconds that its body may take. None: as the worker says.
        traceback: Of its error; it does not stand in ``carried["result"]`` as well.
        is_registered: Whether the process that read the row has a task of its name.
    """

    why: Sequence[str]
    carried: Mapping[str, Any]
    progress: Any
    attempts: Sequence[Mapping[str, Any]]
    timeout: float | None
    traceback: str
    is_registered: bool

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it: ids and times are texts."""
        values = {entry.name: as_text(getattr(self, entry.name)) for entry in fields(self)}
        attempts = [{name: as_text(value) for name, value in attempt.items()} for attempt in self.attempts]
        return {**values, "why": list(self.why), "carried": dict(self.carried), "attempts": attempts}


def shown(rows: TaskQuerySet) -> ShownTask | None:
    """Return the task that these rows are, None if there is none. At most ten statements."""
    task = with_texts(as_texts(rows.annotate(seen_at=Now()), "progress"), *CARRIED).first()
    if task is None:
        return None
    give_values(task, "progress")
    contents = contents_of(task)
    return ShownTask(
        **facts_by_name(task),
        call=", ".join(_line(contents, part) for part in ("args", "kwargs") if contents.is_filled(part)),
        is_orphaned=bool(orphans_among([task])),
        why=tuple(reason.words for reason in reasons_of(task, task.seen_at)),
        carried={part: _seen(contents, part) for part in CARRIED if contents.is_filled(part)},
        progress=task.progress,
        attempts=list(task.attempts.order_by("attempt").values(*ATTEMPT)),
        timeout=task.timeout,
        traceback=contents.traceback,
        is_registered=registry.has_task(task.task_name),
    )


def _line(contents: Contents, part: str) -> str:
    text, is_all = head(contents.seen(part), contents.mask, LENGTH)
    return " ".join(text.split()) + ("" if is_all else "…")


def _seen(contents: Contents, part: str) -> Any:
    """Return what may be seen of a value, masked however deep it is; as text if that is more than Python reads."""
    value = contents.seen_result() if part == "result" else contents.seen(part)
    text = "".join(pieces(value, contents.mask))
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
