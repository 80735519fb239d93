"""Reasons for a task that a worker holds: it waits for a slot, or its worker is silent or stands still."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from django.utils.translation import gettext as _

from ...core.options import RecoveryOptions
from ...core.status import BeatRole, TaskStatus
from ...models import Heartbeat, Task, Worker
from .reason import Reason, ReasonCode, RelatedRow, backend_options, database_of


class _SilenceRule(NamedTuple):
    """When the reaper takes a silent worker for dead. Durations are in milliseconds."""

    role: BeatRole
    interval: int
    threshold: int
    is_enforced: bool


def claimed_reasons(task: Task, now: datetime) -> Iterator[Reason]:
    """Yield a reason if the task waits for a slot, and one if its worker has gone silent or stands still."""
    is_claimed = task.status == TaskStatus.CLAIMED
    worker_id = task.claimed_by_worker_id or ""
    about = (RelatedRow(Worker, worker_id, worker_id),)
    if is_claimed:
        words = _("A worker has claimed the task in advance and starts it when a slot is free.")
        yield Reason(ReasonCode.CLAIMED, words, task.claimed_at, about)
    rule = _silence_rule(backend_options(task.backend).recovery, is_claimed=is_claimed)
    sign = _last_sign_of_life(task, rule.role, worker_id)
    if sign is not None and now - sign > timedelta(milliseconds=2 * rule.interval):
        until = sign + timedelta(milliseconds=rule.threshold) if rule.is_enforced else None
        yield Reason(ReasonCode.SILENT, _silence_message(rule), until, about)
    elif stalled_since := _stalled_since(task, worker_id):
        words = _("Its worker stands still. If it stays that way, its supervisor kills it and recovers the task.")
        yield Reason(ReasonCode.STALLED, words, stalled_since, about)


def _last_sign_of_life(task: Task, role: BeatRole, worker_id: str) -> datetime | None:
    """Return the time of the latest heartbeat for the task, or of its claim or start if that is later."""
    beats = Heartbeat.objects.using(database_of(task)).filter(task=task.pk, role=role, sender_id=worker_id)
    beat = beats.order_by("-sent_at").values_list("sent_at", flat=True).first()
    return max(filter(None, (beat, task.claimed_at, task.started_at)), default=None)


def _stalled_since(task: Task, worker_id: str) -> datetime | None:
    workers = Worker.objects.using(database_of(task)).filter(pk=worker_id)
    return workers.values_list("stalled_since", flat=True).first()


def _silence_rule(recovery: RecoveryOptions, *, is_claimed: bool) -> _SilenceRule:
    if is_claimed:
        return _SilenceRule(
            BeatRole.CLAIMER,
            recovery.claimer_heartbeat_interval_ms,
            recovery.claimed_stale_threshold_ms,
            recovery.auto_requeue_stale_claimed,
        )
    return _SilenceRule(
        BeatRole.RUNNER,
        recovery.runner_heartbeat_interval_ms,
        recovery.running_stale_threshold_ms,
        recovery.auto_fail_stale_running,
    )


def _silence_message(rule: _SilenceRule) -> str:
    if not rule.is_enforced:
        return _("Its worker is not responding, and the settings do not let other workers take over its tasks.")
    if rule.role is BeatRole.CLAIMER:
        return _("Its worker is not responding. If it stays that way, the reaper releases the task for other workers.")
    return _("Its worker is not responding. If it stays that way, the reaper retries or fails the task.")
