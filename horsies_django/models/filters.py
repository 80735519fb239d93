"""Filters of tasks, for operators, workers and the reaper."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, Final, Self
from uuid import UUID

from django.db.models import Exists, Model, OuterRef, Q, QuerySet
from django.db.models.lookups import LessThan

from ..core.status import TASK_LIVE_STATES, BeatRole, TaskStatus
from ..core.unique import HOLDING, UniqueUntil
from ..db.expressions import BoundParam, NowPlus
from ..db.now import Now
from ..db.row_key import KeysOf, KeyText, root_model, row_ref
from .claim.query import DUE_AT, ClaimQuerySet, RowT
from .heartbeat import Heartbeat

#: The condition of the index of held rows. ``claim >= 0`` is true of every row: a query that states it, to find rows by
#: worker, gets the index. Queries by primary key must not use it: it fills with dead entries while vacuum can't run.
IS_HELD: Final = Q(status__in=[TaskStatus.CLAIMED, TaskStatus.RUNNING], claim__gte=0)

#: The condition of the index of tasks that have a place of their limit: they wait for a slot, or a worker holds them.
IS_RELEASED: Final = Q(status__in=sorted(TASK_LIVE_STATES), deferred=False, limit_key__isnull=False)


def _status_in(until: UniqueUntil) -> Q:
    """Compare the states one by one: SQLite does not match a list of parameters with the list in the index."""
    return reduce(or_, [Q(status=status.value) for status in sorted(HOLDING[until])])


#: The condition of the index that makes unique keys unique. It can't compare times: to take over the key of a task past
#: its period, an update has to release it first.
HOLDS_UNIQUE_KEY: Final = Q(unique_key__isnull=False) & (
    Q(_status_in(UniqueUntil.DONE), Q(unique_until__isnull=True) | Q(unique_until=UniqueUntil.DONE.value))
    | Q(_status_in(UniqueUntil.STARTED), unique_until=UniqueUntil.STARTED.value)
    | Q(_status_in(UniqueUntil.SUCCESS), unique_until=UniqueUntil.SUCCESS.value)
    | Q(unique_until=UniqueUntil.PERIOD.value)
)

#: With these values a task no longer holds its key once it has started.
_RELEASED_KEYS: Final = [UniqueUntil.STARTED.value, UniqueUntil.RELEASED.value]


#: The reasons why a PENDING task is not due yet: it waits without a slot for what ``waits_for`` names, it waits for
#: another attempt, its group is open, or it was sent for later. A group that was ever claimed is not open.
IS_AWAITING: Final = Q(enqueued_at__gt=Now(), waits_for__isnull=False)
IS_RETRYING: Final = Q(enqueued_at__gt=Now(), next_retry_at__isnull=False)
IS_AGGREGATING: Final = Q(enqueued_at__gt=Now(), next_retry_at__isnull=True, group_key__isnull=False, claim=0)
IS_SCHEDULED: Final = Q(enqueued_at__gt=Now(), next_retry_at__isnull=True, waits_for__isnull=True) & (
    Q(group_key__isnull=True) | Q(claim__gt=0)
)


def due_before(moment: Any) -> Q:
    """Match tasks whose ``due_at`` is before this time; a blocked task is not due."""
    return Q(LessThan(DUE_AT, moment), blocked=False)


class TaskFilterQuerySet(ClaimQuerySet[RowT]):
    """Filters of tasks. They change nothing."""

    def deferred(self) -> Self:
        """Tasks outside the index of claims: scheduled, retrying, or due since the last move into it."""
        return self.pending().filter(deferred=True, blocked=False)

    def blocked(self) -> Self:
        """Tasks that wait for a place of their limit, or that a paused workflow holds."""
        return self.pending().filter(blocked=True)

    def suspended(self) -> Self:
        """Tasks that paused workflows hold back: claimed ones, and those with records. They keep their ids."""
        return self.blocked().filter(limit_key__isnull=True)

    def released(self) -> Self:
        """Tasks that have a place of their limit."""
        return self.filter(IS_RELEASED)

    def limit_keys(self) -> list[str]:
        """Return the distinct limit keys of these tasks."""
        limited = self.filter(limit_key__isnull=False).order_by()
        return [key for key in limited.values_list("limit_key", flat=True).distinct() if key is not None]

    def scheduled(self) -> Self:
        """Tasks that wait for their scheduled time."""
        return self.pending().filter(IS_SCHEDULED)

    def aggregating(self) -> Self:
        """Groups that wait for more calls (the name is asynq's); a due group is ready."""
        return self.pending().filter(IS_AGGREGATING)

    def awaiting(self, name: str | None = None) -> Self:
        """Tasks whose bodies wait without a slot; with ``name`` for this, such as ``event:approved``."""
        return self.pending().filter(IS_AWAITING, **({} if name is None else {"waits_for": name}))

    def retrying(self) -> Self:
        """Tasks that wait for the time of another attempt; a due retry is ready."""
        return self.pending().filter(IS_RETRYING)

    def ready(self) -> Self:
        """Due tasks that wait for a worker, retries included (asynq calls them pending)."""
        return self.pending().filter(enqueued_at__lte=Now())

    def active(self) -> Self:
        """Tasks that a worker holds."""
        return self.filter(IS_HELD)

    def archived(self) -> Self:
        """Failed tasks."""
        return self.filter(status=TaskStatus.FAILED)

    def completed(self) -> Self:
        """Completed tasks."""
        return self.filter(status=TaskStatus.COMPLETED)

    def held_by(self, worker_id: str | BoundParam) -> Self:
        """Tasks that this worker holds."""
        return self.active().filter(claimed_by_worker_id=worker_id)

    def about(self, instance: Model) -> Self:
        """The tasks about a row. Raises TypeError or ValueError for anything but a saved instance."""
        row = row_ref(instance)
        return self.filter(about_model=row.model, about_id=row.key)

    def about_any(self, rows: QuerySet[Any]) -> Self:
        """The tasks about the rows of a queryset: ``Task.objects.about_any(Order.objects.filter(…))``."""
        keys = KeysOf(rows.values_list(KeyText(rows.model)))
        return self.filter(about_model=root_model(rows.model)._meta.label, about_id__in=keys)

    def about_outer(self, model: type[Model]) -> Self:
        """The tasks about the row of an outer queryset of ``model``.

        ``Order.objects.filter(Exists(Task.objects.archived().about_outer(Order)))`` are the orders with a failed task.
        """
        key = KeyText(model, is_outer=True)
        return self.filter(about_model=root_model(model)._meta.label, about_id=key)

    def holding_unique_key(self, *unique_keys: str) -> Self:
        """The tasks that hold these unique keys, at most one per key."""
        return self.filter(HOLDS_UNIQUE_KEY, unique_key__in=unique_keys)

    def retryable_without_key(self) -> Self:
        """Of ended tasks, those that would hold no unique key after a retry."""
        return self.filter(Q(unique_key__isnull=True) | Q(unique_until__in=_RELEASED_KEYS))

    def retryable_with_key(self) -> list[UUID]:
        """Return the ids of ended tasks that could all hold their unique keys again at the same time.

        Of tasks with the same key that is the oldest, and none if another task holds the key.
        """
        keyed = self.filter(unique_key__isnull=False).exclude(unique_until__in=_RELEASED_KEYS)
        others = self.model._base_manager.using(self.db).exclude(pk=OuterRef("pk"))
        free = keyed.filter(~Exists(others.filter(HOLDS_UNIQUE_KEY, unique_key=OuterRef("unique_key"))))
        firsts: dict[str, UUID] = {}
        for key, task_id in free.order_by("pk").values_list("unique_key", "pk"):
            firsts.setdefault(str(key), task_id)
        return list(firsts.values())

    def open_group(self, task_name: str, queue_name: str, key: str) -> Self:
        """The open group of this key, which no worker has claimed yet, so calls may still join."""
        return self.pending().filter(task_name=task_name, queue_name=queue_name, group_key=key, claim=0)

    def overdue(self) -> Self:
        """PENDING tasks whose ``good_until`` has passed: they must not start, and a reaper expires them."""
        return self.pending().filter(good_until__lte=Now())

    def stale_claimed(self, threshold: float) -> Self:
        """CLAIMED tasks whose claimer has sent no heartbeat for ``threshold`` seconds."""
        return self._stale(TaskStatus.CLAIMED, "claimed_at", BeatRole.CLAIMER, threshold)

    def stale_running(self, threshold: float) -> Self:
        """RUNNING tasks whose runner has sent no heartbeat for ``threshold`` seconds."""
        return self._stale(TaskStatus.RUNNING, "started_at", BeatRole.RUNNER, threshold)

    def _stale(self, status: TaskStatus, since: str, role: BeatRole, threshold: float) -> Self:
        horizon = NowPlus(-threshold)
        beats = Heartbeat.objects.using(self.db).filter(
            task=OuterRef("pk"), role=role, sender_id=OuterRef("claimed_by_worker_id"), sent_at__gte=horizon
        )
        silent = Q(**{f"{since}__isnull": True}) | Q(**{f"{since}__lt": horizon})
        return self.active().filter(silent, ~Exists(beats), status=status)


def in_error_group(fingerprint: str) -> Q:
    """Match the tasks in an error group. A worker of the previous release completes a retry without leaving it."""
    return Q(fingerprint=fingerprint, error_code__isnull=False)
