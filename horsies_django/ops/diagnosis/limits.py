"""Reasons from the limits of a task: those of its queue and that of its limit key."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db.models.functions import Coalesce
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...core.numbers import fill_numbers
from ...core.status import TaskStatus
from ...db.now import Now
from ...models import Task
from ...models.claim.query import DUE_AT
from ...models.concurrency_limiter import UNOCCUPIED, occupancy_of, room_of, with_first_task
from ...models.transitions import TaskQuerySet
from ..queue_status import QueueStatus, queue_status
from .reason import MAX_HOLDERS, Reason, ReasonCode, RelatedRow, database_of, now_of, tasks_in_database_of


def queue_limit_reasons(task: Task, rows: TaskQuerySet) -> Iterator[Reason]:
    """Yield a reason for each exhausted limit of the task's queue, with the tasks that use it."""
    status = queue_status(task.queue_name, database_of(task))
    if status.is_full:
        yield _queue_full(status, rows)
    if status.rules.rate is not None and status.next_in > 0:
        words = _("The queue %(queue)s has reached its rate limit of %(rate)s.")
        words %= {"queue": status.name, "rate": status.rules.rate}
        yield Reason(ReasonCode.RATE_LIMITED, words, now_of(task) + timedelta(seconds=status.next_in))


def _queue_full(status: QueueStatus, rows: TaskQuerySet) -> Reason:
    most = status.rules.max_concurrency
    if not most:
        words = _("The queue %s is stopped: its limit is 0 tasks.") % status.name
        return Reason(ReasonCode.QUEUE_FULL, words)
    words = ngettext(
        "The queue %(queue)s has reached its limit: %(held)d of %(most)d task in progress.",
        "The queue %(queue)s has reached its limit: %(held)d of %(most)d tasks in progress.",
        most,
    )
    words = fill_numbers(words, {"queue": status.name, "most": most, "held": status.held})
    about = holders_of(rows.active().filter(queue_name=status.name))
    return Reason(ReasonCode.QUEUE_FULL, words, about=about, more=max(0, status.held - len(about)))


def holders_of(rows: TaskQuerySet) -> tuple[RelatedRow, ...]:
    """Return the first of the tasks that hold a limit, those that have held it for longest."""
    held_since = Coalesce("started_at", "claimed_at", DUE_AT)
    first: Any = rows.annotate(held_since=held_since).order_by("held_since", "pk")
    return tuple(
        RelatedRow(Task, task.pk, task.task_name, task.get_status_display(), task.held_since)
        for task in first.only("task_name", "status")[:MAX_HOLDERS]
    )


def limit_key_reason(task: Task, now: datetime) -> Reason:
    """Return whether the task waits for a free place or for the rate of its limit, by the limiter's own arithmetic."""
    key = str(task.limit_key)
    inside = tasks_in_database_of(task).released().filter(limit_key=key)
    occupancy = occupancy_of(inside).get(key, UNOCCUPIED)
    limit = with_first_task(database_of(task), [key]).annotate(clock=Now()).first()
    if limit is not None:
        limit.adopt_declared()
        most, rate = limit.terms
        room = room_of(limit, occupancy)
        if most == 0:
            return Reason(ReasonCode.LIMIT_FULL, _("The limit %s is stopped: its maximum is 0 tasks.") % key)
        if most is not None and occupancy.free_places(most) <= 0:
            words = _("The limit %(key)s is reached: %(held)d of %(most)d in use.")
            words = fill_numbers(words, {"held": occupancy.held, "most": most, "key": key})
            about = holders_of(inside)
            return Reason(ReasonCode.LIMIT_FULL, words, about=about, more=max(0, occupancy.held - len(about)))
        if room.places <= 0 and limit.bucket is not None:
            terms = {"rate": rate, "key": key}
            if room.tokens < 1:
                next_at = now + timedelta(seconds=limit.bucket.wait(room.tokens))
                words = _("The rate limit of %(key)s is reached: %(rate)s.") % terms
                return Reason(ReasonCode.RATE_LIMITED, words, next_at)
            words = _("The rate limit of %(key)s (%(rate)s) admits more tasks once those admitted have started.")
            about = holders_of(inside.exclude(status=TaskStatus.RUNNING))
            more = max(0, occupancy.waiting - len(about))
            return Reason(ReasonCode.RATE_LIMITED, words % terms, about=about, more=more)
    words = (
        _("The limit %s has capacity: the task is admitted within seconds, at the latest in the reaper's next pass.")
        % key
    )
    return Reason(ReasonCode.LIMIT_FULL, words)
