"""Pruning at once what a reaper would prune bit by bit, and more if asked."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import F, QuerySet
from django.db.models.functions import Coalesce

from ..core.options import Options
from ..core.status import TaskStatus
from ..db.expressions import NowPlus
from ..models import Heartbeat
from ..models.transitions import BATCH, TaskQuerySet
from ..models.workflow import WorkflowQuerySet
from .batches import Refused, Rows, all_batches, one_batch
from .pruning import TREES, beats_count_for, delete, delete_trees, past_keeping, prune_heartbeats


class Pruned(NamedTuple):
    """How many rows went, or would go; workflows are those at the top, each with all below it."""

    tasks: int
    workflows: int
    heartbeats: int


def prune(options: Options, tasks: TaskQuerySet, workflows: WorkflowQuerySet, *, dry_run: bool = False) -> Pruned:
    """Delete those of ``tasks`` and ``workflows`` that are past their retention, and every beat that is too old."""
    past, trees = past_keeping(tasks), workflows.past_keeping()
    if dry_run:
        return Pruned(past.count(), trees.count(), _old_beats(options))
    return Pruned(
        all_batches(lambda refused: one_batch(past.order_by("kept_until"), delete, refused)),
        all_batches(lambda refused: one_batch(trees.order_by("kept_until"), delete_trees, refused, TREES)),
        all_batches(lambda refused: prune_heartbeats(options, refused)),
    )


def prune_older_than(
    tasks: TaskQuerySet,
    workflows: WorkflowQuerySet,
    age: timedelta,
    states: Collection[TaskStatus],
    *,
    dry_run: bool = False,
) -> Pruned:
    """Delete those of these, all in ``states``, that ended longer ago than ``age``, whatever their retention.

    No index leads to them, so each table is walked once, by primary key, a bounded step at a time.
    """
    since = NowPlus(-age.total_seconds())
    task_ended = Coalesce(*(F(f"{state.lower()}_at") for state in sorted(states)), "sent_at")
    workflow_ended = Coalesce("completed_at", "cancelled_at", "sent_at")
    old_tasks = tasks.alias(ended_at=task_ended).filter(ended_at__lt=since)
    old_trees = workflows.closed().alias(ended_at=workflow_ended).filter(ended_at__lt=since)
    return Pruned(_walk(old_tasks, delete, dry_run), _walk(old_trees, delete_trees, dry_run), 0)


def _walk(wanted: Rows, act: Callable[[Rows], int], dry_run: bool) -> int:
    """Do ``act`` with what is wanted, or count it, along the primary key."""
    count, last = 0, None
    while step := _step(wanted.model._default_manager.using(wanted.db), last):
        last = step[-1]
        found = wanted.filter(pk__in=step)
        count += found.count() if dry_run else one_batch(found, act, Refused()).done
    return count


def _step(rows: QuerySet[Any], last: UUID | None) -> list[UUID]:
    further = rows.filter(pk__gt=last) if last else rows.all()
    return list(further.order_by("pk").values_list("pk", flat=True)[:BATCH])


def _old_beats(options: Options) -> int:
    seconds = beats_count_for(options)
    beats = Heartbeat.objects.using(options.database)
    return 0 if seconds is None else beats.filter(sent_at__lt=NowPlus(-seconds)).count()
