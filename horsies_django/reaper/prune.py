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
from .batches import Rows, SkippedRows, run_all_batches, run_batch
from .pruning import TREES, delete, delete_trees, heartbeat_retention, past_retention, prune_heartbeats


class Pruned(NamedTuple):
    """How many rows went, or would go; workflows are those at the top, each with all below it."""

    tasks: int
    workflows: int
    heartbeats: int


def prune(options: Options, tasks: TaskQuerySet, workflows: WorkflowQuerySet, *, dry_run: bool = False) -> Pruned:
    """Delete those of ``tasks`` and ``workflows`` that are past their retention, and every beat that is too old."""
    past, trees = past_retention(tasks), workflows.past_retention()
    if dry_run:
        return Pruned(past.count(), trees.count(), _expired_heartbeats(options))
    return Pruned(
        run_all_batches(lambda refused: run_batch(past.order_by("kept_until"), delete, refused)),
        run_all_batches(lambda refused: run_batch(trees.order_by("kept_until"), delete_trees, refused, TREES)),
        run_all_batches(lambda refused: prune_heartbeats(options, refused)),
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
    old_trees = workflows.ended_trees().alias(ended_at=workflow_ended).filter(ended_at__lt=since)
    return Pruned(_prune_in_batches(old_tasks, delete, dry_run), _prune_in_batches(old_trees, delete_trees, dry_run), 0)


def _prune_in_batches(wanted: Rows, act: Callable[[Rows], int], dry_run: bool) -> int:
    """Do ``act`` with what is wanted, or count it, along the primary key."""
    count, last = 0, None
    while step := _next_keys(wanted.model._default_manager.using(wanted.db), last):
        last = step[-1]
        found = wanted.filter(pk__in=step)
        count += found.count() if dry_run else run_batch(found, act, SkippedRows()).done
    return count


def _next_keys(rows: QuerySet[Any], last: UUID | None) -> list[UUID]:
    further = rows.filter(pk__gt=last) if last else rows.all()
    return list(further.order_by("pk").values_list("pk", flat=True)[:BATCH])


def _expired_heartbeats(options: Options) -> int:
    seconds = heartbeat_retention(options)
    beats = Heartbeat.objects.using(options.database)
    return 0 if seconds is None else beats.filter(sent_at__lt=NowPlus(-seconds)).count()
