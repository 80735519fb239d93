"""The attempts and the beats on the page of a task: the latest ones, however many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.utils.safestring import SafeString

from ...durations import lasting
from ...models import Heartbeat, Task, TaskAttempt, Worker
from ...states import BeatRole
from ..links import Links
from ..readable import at, block

#: Attempts and beats that a page shows, the latest.
ATTEMPTS: Final = 50
BEATS: Final = 10


@dataclass(frozen=True, slots=True)
class ShownAttempt:
    """An attempt as a page has it."""

    row: TaskAttempt
    started: str
    finished: str
    waited: str
    ran: str
    worker: SafeString | str
    traceback: SafeString | str


@dataclass(frozen=True, slots=True)
class ShownBeat:
    """A beat as a page has it."""

    role: str
    sent: str
    ago: str
    sender: SafeString | str
    hostname: str
    pid: int


def latest_attempts(task: Task) -> list[TaskAttempt]:
    """Return the latest attempts of a task, in their order."""
    if not task.attempt:
        return []
    rows = TaskAttempt.objects.using(task._state.db).filter(task=task.pk).order_by("-attempt")
    return list(rows[:ATTEMPTS])[::-1]


def shown_attempts(attempts: Sequence[TaskAttempt], sent_at: datetime, links: Links) -> list[ShownAttempt]:
    """Return attempts for a page, the latest first."""
    ends = [sent_at, *(attempt.finished_at for attempt in attempts)]
    shown = [_shown(attempt, end, links) for attempt, end in zip(attempts, ends, strict=False)]
    return shown[::-1]


def _shown(attempt: TaskAttempt, since: datetime, links: Links) -> ShownAttempt:
    is_after_others = attempt.attempt > 1 and since > attempt.started_at
    return ShownAttempt(
        attempt,
        at(attempt.started_at),
        at(attempt.finished_at),
        "-" if is_after_others else lasting(attempt.started_at - since),
        lasting(attempt.finished_at - attempt.started_at),
        links.to(Worker, attempt.worker_id) if attempt.worker_id else "-",
        block(attempt.traceback, end=True) if attempt.traceback else "",
    )


def latest_beats(task: Task) -> list[Heartbeat]:
    """Return the latest beats for a task, the latest first; by its index, a role at a time."""
    if not task.claim:
        return []
    rows = Heartbeat.objects.using(task._state.db).filter(task=task.pk).order_by("-sent_at")
    beats = [beat for role in BeatRole for beat in rows.filter(role=role)[:BEATS]]
    return sorted(beats, key=lambda beat: beat.sent_at, reverse=True)[:BEATS]


def shown_beats(beats: Sequence[Heartbeat], now: datetime, links: Links) -> list[ShownBeat]:
    """Return beats for a page; ``now`` is the database's clock."""
    return [
        ShownBeat(
            str(beat.get_role_display()),
            at(beat.sent_at),
            lasting(now - beat.sent_at),
            links.to(Worker, beat.sender_id),
            beat.hostname,
            beat.pid,
        )
        for beat in beats
    ]
