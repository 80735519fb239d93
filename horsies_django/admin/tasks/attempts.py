"""The error, the latest attempts with their timeline, and the heartbeats on a task's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...core.numbers import format_duration
from ...core.status import AttemptOutcome, BeatRole
from ...models import Heartbeat, Task, TaskAttempt, Worker
from ...ops.payload_view.contents import contents_of
from ..ages import relative_time
from ..errors.rows import same_error_link
from ..formatting import cut, format_time, text_block
from ..links import Links

#: Maximum number of attempts, and of heartbeats, on a page.
MAX_ATTEMPTS: Final = 50
MAX_HEARTBEATS: Final = 10

#: The width of the timeline, and the least of a bar, in units of its SVG.
WIDTH: Final = 1_000
MIN_WIDTH: Final = 3

#: Maximum characters of an error message on the page.
MAX_MESSAGE: Final = 4_000


@dataclass(frozen=True, slots=True)
class ErrorText:
    """An error on a page: exception class, code, message and traceback, each empty if there is none."""

    kind: str
    code: str
    message: str
    traceback: str


def latest_attempts(task: Task) -> list[TaskAttempt]:
    """Return the latest attempts of a task, oldest first. The result is cached on the instance."""
    if not task.attempt:
        return []
    attempts: list[TaskAttempt] | None = task.__dict__.get("_latest_attempts")
    if attempts is None:
        rows = TaskAttempt.objects.using(task._state.db).filter(task=task.pk).order_by("-attempt")
        attempts = task.__dict__["_latest_attempts"] = list(rows[:MAX_ATTEMPTS])[::-1]
    return attempts


def error_of(task: Task) -> ErrorText | None:
    """Return the error in the result of a failed task, or that of the latest attempt of one that waits for a retry."""
    if task.error_code and task.finished_at is not None:
        contents = contents_of(task)
        message = str(contents.error.get("message") or "")
        return ErrorText(cut(contents.exception_type), task.error_code, message, contents.traceback)
    latest = latest_attempts(task)[-1:] if task.retry_count and task.finished_at is None else []
    return _error_of_attempt(latest[0]) if latest else None


def is_single_run(task: Task) -> bool:
    """Return whether its only attempt ended it, so that the task's own times and worker are those of the attempt."""
    attempts = latest_attempts(task)
    is_only = len(attempts) == 1 and attempts[0].attempt == 1
    return is_only and task.finished_at is not None and task.started_at == attempts[0].started_at


def attempt_rows(task: Task, links: Links) -> list[dict[str, Any]]:
    """Return the latest attempts for the page, newest first; none if the page shows the only one as the task itself."""
    if is_single_run(task):
        return []
    return [_shown(task, attempt, links) for attempt in latest_attempts(task)[::-1]]


def process_of(attempt: TaskAttempt) -> str:
    """Return the host and the process id of an attempt, as far as they are known."""
    return ", ".join(filter(None, (attempt.hostname, "" if attempt.pid is None else str(attempt.pid))))


def _error_of_attempt(attempt: TaskAttempt) -> ErrorText:
    kind = attempt.exception_class.removeprefix("builtins.")
    return ErrorText(kind, attempt.error_code, attempt.error_message, attempt.traceback)


def _retry_text(task: Task, attempt: TaskAttempt) -> str:
    """Return whether a retry followed. Something else, such as a cancellation, may have ended the task first."""
    if not attempt.will_retry:
        return ""
    if task.attempt > attempt.attempt:
        return _("retried")
    return _("will be retried") if task.finished_at is None else _("was to be retried")


def _shown(task: Task, attempt: TaskAttempt, links: Links) -> dict[str, Any]:
    error, top = _error_of_attempt(attempt), error_of(task)
    # The error of the latest attempt stands at the top of the page, and is not repeated.
    is_shown_above = attempt.attempt == task.attempt and top is not None and top.code == error.code
    key = f"horsies-traceback-text-{attempt.attempt}"
    return {
        "row": attempt,
        "again": _retry_text(task, attempt),
        "started": format_time(attempt.started_at),
        "waited": format_duration(attempt.started_at - attempt.due_at),
        "ran": format_duration(attempt.finished_at - attempt.started_at),
        "worker": links.to(Worker, attempt.worker_id) if attempt.worker_id else "",
        "process": process_of(attempt),
        "error": error if error.code and not is_shown_above else None,
        "traceback": text_block(error.traceback, end=True, key=key) if error.traceback else "",
        "traceback_key": key,
        "same_error": same_error_link(attempt.fingerprint, links),
        "is_shown_above": is_shown_above,
    }


class Bar(NamedTuple):
    """A wait or a run in the timeline of attempts. ``kind`` is its CSS class; ``x`` and ``width`` are in units."""

    kind: str
    took: timedelta
    x: float
    width: float


#: What the kinds of bars are called in the legend.
KINDS: Final = {
    "later": gettext_lazy("Waiting until due"),
    "waits": gettext_lazy("Waiting for a worker"),
    "runs": gettext_lazy("Running"),
    "fails": gettext_lazy("Running, failed"),
}


def timeline(task: Task, attempts: Sequence[TaskAttempt]) -> tuple[list[Bar], list[tuple[str, Any, str]]]:
    """Return the waits and runs of several attempts as bars, and each kind with its words and its total duration.

    A single attempt has no timeline.
    """
    if len(attempts) < 2:
        return [], []
    since = task.sent_at if attempts[0].attempt == 1 else attempts[0].due_at
    steps = list[tuple[str, timedelta]]()
    for attempt in attempts:
        kind = "runs" if attempt.outcome == AttemptOutcome.COMPLETED else "fails"
        for name, until in (("later", attempt.due_at), ("waits", attempt.started_at), (kind, attempt.finished_at)):
            if until > since:
                steps.append((name, until - since))
                since = until
    totals = {kind: sum((took for name, took in steps if name == kind), timedelta()) for kind in KINDS}
    legend = [(kind, words, format_duration(totals[kind])) for kind, words in KINDS.items() if totals[kind]]
    return _side_by_side(steps), legend


def _side_by_side(steps: Sequence[tuple[str, timedelta]]) -> list[Bar]:
    """Return bars as wide as the steps are long, with a minimum width."""
    total = sum((took for _kind, took in steps), timedelta())
    free, x, bars = max(WIDTH - MIN_WIDTH * len(steps), 0), 0.0, []
    for kind, took in steps:
        width = MIN_WIDTH + free * (took / total)
        bars.append(Bar(kind, took, round(x, 2), round(width, 2)))
        x += width
    return bars


def latest_heartbeats(task: Task) -> list[Heartbeat]:
    """Return the latest heartbeats for a task, newest first. Takes one indexed query per role."""
    if not task.claim:
        return []
    rows = Heartbeat.objects.using(task._state.db).filter(task=task.pk).order_by("-sent_at")
    beats = [beat for role in BeatRole for beat in rows.filter(role=role)[:MAX_HEARTBEATS]]
    return sorted(beats, key=lambda beat: beat.sent_at, reverse=True)[:MAX_HEARTBEATS]


def heartbeat_rows(beats: Sequence[Heartbeat], now: datetime, links: Links) -> list[dict[str, Any]]:
    """Return heartbeats for the page; ``now`` is the database's current time."""
    return [
        {
            "role": beat.get_role_display(),
            "sent": format_time(beat.sent_at),
            "ago": relative_time(beat.sent_at, now),
            "sender": links.to(Worker, beat.sender_id),
            "hostname": beat.hostname,
            "pid": beat.pid,
        }
        for beat in beats
    ]
