"""Reasons from the limits of a task: those of its queue and that of its limit key."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...models import Task
from ...models.concurrency_limiter import with_first_task
from ...models.transitions import TaskQuerySet
from ..queue_status import QueueStatus, queue_status
from .reason import MAX_RELATED, Reason, ReasonCode, RelatedRow, database_of, now_of, tasks_in_database_of


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
    words %= {"queue": status.name, "most": most, "held": status.held}
    held = (
        rows.active().filter(queue_name=status.name).order_by("claimed_at").values_list("pk", "task_name")[:MAX_RELATED]
    )
    return Reason(ReasonCode.QUEUE_FULL, words, about=tuple(RelatedRow(Task, key, name) for key, name in held))


def limit_key_reason(task: Task) -> Reason:
    """Return whether the task waits for a free place or for the rate of its limit."""
    key = str(task.limit_key)
    inside = tasks_in_database_of(task).released().filter(limit_key=key).order_by("enqueued_at")
    if (limit := with_first_task(database_of(task), [key]).first()) is not None:
        limit.adopt_declared()
    most, rate = (None, None) if limit is None else limit.terms
    if most is not None and (held := inside.count()) >= most:
        words = _("The limit %(key)s is reached: %(held)d of %(most)d in use.")
        about = tuple(RelatedRow(Task, pk, str(pk)) for pk in inside.values_list("pk", flat=True)[:MAX_RELATED])
        return Reason(ReasonCode.LIMIT_FULL, words % {"held": held, "most": most, "key": key}, about=about)
    if limit is not None and rate is not None:
        words = _("The rate limit of %(key)s is reached: %(rate)s.") % {"rate": rate, "key": key}
        return Reason(ReasonCode.RATE_LIMITED, words, limit.next_at)
    words = (
        _("The limit %s has capacity: the task is admitted within seconds, at the latest in the reaper's next pass.")
        % key
    )
    return Reason(ReasonCode.LIMIT_FULL, words)
