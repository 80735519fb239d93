"""Pruning at once what a reaper would prune bit by bit, and more if asked."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from django.db.models import F
from django.db.models.functions import Coalesce

from ..conf import Options
from ..expressions import FromNow
from ..models import Heartbeat
from ..models.transitions import BATCH, TaskQuerySet
from ..states import TaskStatus
from .batches import Refused, all_batches, one_batch
from .pruning import beats_count_for, delete, past_keeping, prune_heartbeats


class Pruned(NamedTuple):
    """How many rows went, or would go."""

    tasks: int
    heartbeats: int


def prune(options: Options, tasks: TaskQuerySet, *, dry_run: bool = False) -> Pruned:
    """Delete those of ``tasks`` that are past their retention, and every beat that is too old."""
    past = past_keeping(tasks)
    if dry_run:
        return Pruned(past.count(), _old_beats(options))
    gone = all_batches(lambda refused: one_batch(past.order_by("kept_until"), delete, refused))
    return Pruned(gone, all_batches(lambda refused: prune_heartbeats(options, refused)))


def prune_older_than(
    tasks: TaskQuerySet, age: timedelta, states: Collection[TaskStatus], *, dry_run: bool = False
) -> Pruned:
    """Delete those of ``tasks``, all in ``states``, that ended longer ago than ``age``, whatever their retention.

    No index leads to these, so the table is walked once, by primary key, a bounded step at a time.
    """
    ended_at = Coalesce(*(F(f"{state.lower()}_at") for state in sorted(states)), "sent_at")
    wanted = tasks.alias(ended_at=ended_at).filter(ended_at__lt=FromNow(-age.total_seconds()))
    count, last = 0, None
    while step := _step(tasks.rows(), last):
        last = step[-1]
        found = wanted.filter(pk__in=step)
        count += found.count() if dry_run else one_batch(found, delete, Refused()).done
    return Pruned(count, 0)


def _step(rows: TaskQuerySet, last: UUID | None) -> list[UUID]:
    further = rows.filter(pk__gt=last) if last else rows.all()
    return list(further.order_by("pk").values_list("pk", flat=True)[:BATCH])


def _old_beats(options: Options) -> int:
    seconds = beats_count_for(options)
    beats = Heartbeat.objects.using(options.database)
    return 0 if seconds is None else beats.filter(sent_at__lt=FromNow(-seconds)).count()
