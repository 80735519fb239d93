"""The latest attempts and heartbeats on a task's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ...core.durations import format_duration
from ...core.status import BeatRole
from ...models import Heartbeat, Task, TaskAttempt, Worker
from ...ops.payload_view.contents import contents_of
from ..formatting import format_time, text_block
from ..links import Links

#: Maximum number of attempts, and of heartbeats, on a page.
MAX_ATTEMPTS: Final = 50
MAX_HEARTBEATS: Final = 10

#: Characters of the error message at the top of the page.
MAX_MESSAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """An attempt on a page. ``again`` says in words whether another one followed."""

    row: TaskAttempt
    again: str
    started: str
    finished: str
    waited: str
    ran: str
    worker: SafeString | str
    message: str
    traceback: SafeString | str


@dataclass(frozen=True, slots=True)
class HeartbeatRow:
    """A heartbeat on a page."""

    role: str
    sent: str
    ago: str
    sender: SafeString | str
    hostname: str
    pid: int


def latest_attempts(task: Task) -> list[TaskAttempt]:
    """Return the latest attempts of a task, oldest first. The result is cached on the instance."""
    if not task.attempt:
        return []
    found: list[TaskAttempt] | None = task.__dict__.get("_latest_attempts")
    if found is None:
        rows = TaskAttempt.objects.using(task._state.db).filter(task=task.pk).order_by("-attempt")
        found = task.__dict__["_latest_attempts"] = list(rows[:MAX_ATTEMPTS])[::-1]
    return found


def error_of(task: Task) -> tuple[str, str]:
    """Return a task's error code and message; for a task that waits for a retry, those of its latest attempt."""
    if task.error_code and task.finished_at is not None:
        return task.error_code, str(contents_of(task).error.get("message") or "")
    latest = latest_attempts(task)[-1:]
    return (latest[0].error_code or "-", latest[0].error_message) if latest else (task.error_code or "-", "")


def own_traceback(task: Task) -> str:
    """Return the traceback of a task's error; empty if one of its attempts has the same."""
    text = contents_of(task).traceback
    return "" if any(attempt.traceback == text for attempt in latest_attempts(task)) else text


def attempt_rows(task: Task, links: Links) -> list[AttemptRow]:
    """Return the latest attempts for the page, newest first. Leaves out what the top of the page already shows."""
    attempts = latest_attempts(task)
    starts = [task.sent_at, *(attempt.finished_at for attempt in attempts)]
    shown = [_shown(task, attempt, since, links) for attempt, since in zip(attempts, starts, strict=False)]
    if shown and len(shown[-1].message) <= MAX_MESSAGE and shown[-1].message == error_of(task)[1]:
        shown[-1] = replace(shown[-1], message="")
    return shown[::-1]


def _retry_text(task: Task, attempt: TaskAttempt) -> str:
    """Return whether a retry followed. Something else, such as a cancellation, may have ended the task first."""
    if not attempt.will_retry:
        return ""
    if task.attempt > attempt.attempt:
        return _("retried")
    return _("will be retried") if task.finished_at is None else _("was to be retried")


def _shown(task: Task, attempt: TaskAttempt, since: datetime, links: Links) -> AttemptRow:
    is_after_others = attempt.attempt > 1 and since > attempt.started_at
    return AttemptRow(
        attempt,
        _retry_text(task, attempt),
        format_time(attempt.started_at),
        format_time(attempt.finished_at),
        "-" if is_after_others else format_duration(attempt.started_at - since),
        format_duration(attempt.finished_at - attempt.started_at),
        links.to(Worker, attempt.worker_id) if attempt.worker_id else "-",
        attempt.error_message,
        text_block(attempt.traceback, end=True) if attempt.traceback else "",
    )


def latest_heartbeats(task: Task) -> list[Heartbeat]:
    """Return the latest heartbeats for a task, newest first. Takes one indexed query per role."""
    if not task.claim:
        return []
    rows = Heartbeat.objects.using(task._state.db).filter(task=task.pk).order_by("-sent_at")
    beats = [beat for role in BeatRole for beat in rows.filter(role=role)[:MAX_HEARTBEATS]]
    return sorted(beats, key=lambda beat: beat.sent_at, reverse=True)[:MAX_HEARTBEATS]


def heartbeat_rows(beats: Sequence[Heartbeat], now: datetime, links: Links) -> list[HeartbeatRow]:
    """Return heartbeats for the page; ``now`` is the database's current time."""
    return [
        HeartbeatRow(
            str(beat.get_role_display()),
            format_time(beat.sent_at),
            format_duration(now - beat.sent_at),
            links.to(Worker, beat.sender_id),
            beat.hostname,
            beat.pid,
        )
        for beat in beats
    ]
