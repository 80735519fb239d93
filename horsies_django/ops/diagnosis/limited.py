"""Reason for a task that waits for its limit key."""

from __future__ import annotations

from django.db.models.functions import Now
from django.utils.translation import gettext as _

from ...models import Limit, Task
from .reason import MAX_RELATED, Reason, ReasonCode, RelatedRow, database_of, tasks_in_database_of


def limit_key_reason(task: Task) -> Reason:
    """Return whether the task waits for a free place or for the rate of its limit."""
    key = str(task.limit_key)
    inside = tasks_in_database_of(task).released().filter(limit_key=key).order_by("enqueued_at")
    limits = Limit.objects.using(database_of(task)).annotate(clock=Now())
    limit = limits.filter(pk=key).first()
    most = None if limit is None else limit.max_concurrency
    if most is not None and (held := inside.count()) >= most:
        words = _("It waits for a place: %(held)d of %(most)d of %(key)s are taken.")
        about = tuple(RelatedRow(Task, pk, str(pk)) for pk in inside.values_list("pk", flat=True)[:MAX_RELATED])
        return Reason(ReasonCode.LIMIT_FULL, words % {"held": held, "most": most, "key": key}, about=about)
    if limit is not None and limit.rate is not None:
        words = _("It waits for its turn: no more than %(rate)s of %(key)s may begin.") % {
            "rate": limit.rate,
            "key": key,
        }
        return Reason(ReasonCode.RATE_LIMITED, words, limit.next_at)
    words = _("%s has room for it: it will be let in within seconds, at the latest in the reaper's next pass.") % key
    return Reason(ReasonCode.LIMIT_FULL, words)
