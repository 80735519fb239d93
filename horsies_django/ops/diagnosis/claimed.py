"""Why a task that a worker holds does not run, or may not run any more."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from django.utils.translation import gettext as _

from ...core.options import RecoveryOptions
from ...core.status import BeatRole, TaskStatus
from ...models import Heartbeat, Task, Worker
from .reason import About, Reason, ReasonCode, database_of, options_of


class _Rule(NamedTuple):
    """When a worker's silence is taken for its death. Durations in milliseconds."""

    role: BeatRole
    interval: int
    threshold: int
    is_acted_on: bool


def of_held(task: Task, now: datetime) -> Iterator[Reason]:
    """Yield that it waits for a slot, and that its worker has fallen silent."""
    is_claimed = task.status == TaskStatus.CLAIMED
    worker_id = task.claimed_by_worker_id or ""
    about = (About(Worker, worker_id, worker_id),)
    if is_claimed:
        words = _("A worker has claimed it ahead, and will start it when a slot is free.")
        yield Reason(ReasonCode.CLAIMED, words, task.claimed_at, about)
    rule = _rule(options_of(task.backend).recovery, is_claimed=is_claimed)
    sign = _last_sign(task, rule.role, worker_id)
    if sign is not None and now - sign > timedelta(milliseconds=2 * rule.interval):
        until = sign + timedelta(milliseconds=rule.threshold) if rule.is_acted_on else None
        yield Reason(ReasonCode.SILENT, _silence(rule), until, about)


def _last_sign(task: Task, role: BeatRole, worker_id: str) -> datetime | None:
    """The last sign of life of the task's worker for it: a beat, else its claim or start."""
    beats = Heartbeat.objects.using(database_of(task)).filter(task=task.pk, role=role, sender_id=worker_id)
    beat = beats.order_by("-sent_at").values_list("sent_at", flat=True).first()
    return max(filter(None, (beat, task.claimed_at, task.started_at)), default=None)


def _rule(recovery: RecoveryOptions, *, is_claimed: bool) -> _Rule:
    if is_claimed:
        return _Rule(
            BeatRole.CLAIMER,
            recovery.claimer_heartbeat_interval_ms,
            recovery.claimed_stale_threshold_ms,
            recovery.auto_requeue_stale_claimed,
        )
    return _Rule(
        BeatRole.RUNNER,
        recovery.runner_heartbeat_interval_ms,
        recovery.running_stale_threshold_ms,
        recovery.auto_fail_stale_running,
    )


def _silence(rule: _Rule) -> str:
    if not rule.is_acted_on:
        return _("Its worker has fallen silent, and the settings say that its tasks are not taken from it.")
    if rule.role is BeatRole.CLAIMER:
        return _("Its worker has fallen silent: if it stays so, the reaper lets others claim the task.")
    return _("Its worker has fallen silent: if it stays so, the reaper retries the task or has it fail.")
