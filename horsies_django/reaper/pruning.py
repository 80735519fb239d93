"""Deleting what was kept long enough: ended tasks and workflows, beats, and the rows of workers that are gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.db.models.functions import Now

from ..core.options import Options
from ..core.status import TASK_TERMINAL_STATES
from ..core.unique import UniqueUntil
from ..db.expressions import NowPlus
from ..models import Heartbeat, Task, Worker, Workflow, WorkflowEvent, WorkflowTask
from ..models.transitions import BATCH, TaskQuerySet
from ..models.workflow import WorkflowQuerySet
from .batches import BatchResult, SkippedRows, run_batch

#: Workflows, each with all below it, that are deleted in one transaction at most, and their nodes in one statement.
TREES: Final = 200
NODES: Final = 2_000

#: Seconds after which a worker that left no word is forgotten. Nothing hangs on its row.
WORKER_RETENTION: Final = 86_400


def prune_tasks(options: Options, refused: SkippedRows) -> BatchResult:
    """Ended tasks past their ``kept_until`` go, with their attempts and beats."""
    past = past_retention(Task.objects.using(options.database).all())
    return run_batch(past.order_by("kept_until"), delete, refused)


def prune_workflows(options: Options, refused: SkippedRows) -> BatchResult:
    """Ended workflows past their ``kept_until`` go, with their nodes, events and all that is below them."""
    past = Workflow.objects.using(options.database).past_retention()
    return run_batch(past.order_by("kept_until"), delete_trees, refused, TREES)


def prune_heartbeats(options: Options, _: SkippedRows) -> BatchResult:
    """Beats older than ``heartbeat_retention_hours`` go. Their keys grow with time: no index is needed."""
    seconds = heartbeat_retention(options)
    if seconds is None:
        return BatchResult(0, 0)
    beats = Heartbeat.objects.using(options.database)
    is_old = ExpressionWrapper(Q(sent_at__lt=NowPlus(-seconds)), BooleanField())
    oldest = list(beats.order_by("pk").values_list("pk", is_old)[:BATCH])
    old = [key for key, is_old in oldest if is_old]
    return BatchResult(len(old), beats.filter(pk__in=old).delete()[0] if old else 0)


def heartbeat_retention(options: Options) -> float | None:
    """The seconds for which beats are kept, never fewer than a threshold looks back; None for ever."""
    recovery = options.recovery
    if recovery.heartbeat_retention_hours is None:
        return None
    longest_ms = max(recovery.claimed_stale_threshold_ms, recovery.running_stale_threshold_ms)
    return max(recovery.heartbeat_retention_hours * 3_600, longest_ms / 1_000)


def prune_workers(options: Options, _: SkippedRows) -> BatchResult:
    """Rows of workers that have not beaten for a day go: their machines have died."""
    silent = Worker.objects.using(options.database).filter(last_beat_at__lt=NowPlus(-WORKER_RETENTION))
    keys = list(silent.values_list("pk", flat=True)[:BATCH])
    return BatchResult(len(keys), silent.filter(pk__in=keys).delete()[0] if keys else 0)


def past_retention(tasks: TaskQuerySet) -> TaskQuerySet:
    """Those of ``tasks`` that have ended and were kept long enough; while a period counts, others must find them."""
    counts = Q(unique_until=UniqueUntil.PERIOD.value, unique_expires_at__gt=Now())
    return tasks.filter(~counts, kept_until__lte=Now(), status__in=sorted(TASK_TERMINAL_STATES))


def delete(tasks: TaskQuerySet) -> int:
    """Delete tasks, with their attempts and beats; return how many. What others have locked stays for now."""
    keys = list(tasks.lock().values_list("pk", flat=True))
    _, counts = tasks.all_rows().filter(pk__in=keys).only("pk").delete()
    return counts.get(Task._meta.label, 0)


def delete_trees(roots: WorkflowQuerySet) -> int:
    """Delete workflows with all that is below them; return how many roots. What others have locked stays for now.

    Tasks have a retention of their own. Rows go without being read: nothing that Django does not know hangs on them.
    """
    locked = roots.lock(list(roots.values_list("pk", flat=True)), skip=True)
    held = set(roots.filter(pk__in=locked).values_list("pk", flat=True))  # one may have been retried before the lock
    workflows = Workflow.objects.using(roots.db)
    trees = Q(pk__in=held) | Q(root_id__in=held, depth__gt=0)
    counts = dict(workflows.filter(trees).values_list("pk", "node_count"))
    _delete_nodes(WorkflowTask.objects.using(roots.db), counts)
    _delete(WorkflowEvent.objects.using(roots.db).filter(workflow__in=counts))
    _delete(workflows.filter(pk__in=counts))
    return len(held)


def _delete_nodes(nodes: QuerySet[WorkflowTask], counts: Mapping[UUID, int]) -> None:
    """Delete the nodes of workflows that have so many: a part of a long one in one statement, or many short ones."""
    some: list[UUID] = []
    total = 0
    for key, count in counts.items():
        parts = range(0, count - NODES, NODES)
        for first in parts:
            _delete(nodes.filter(workflow=key, task_index__gte=first, task_index__lt=first + NODES))
        rest = count - len(parts) * NODES
        if total + rest > NODES:
            _delete(nodes.filter(workflow__in=some))
            some, total = [], 0
        some.append(key)
        total += rest
    _delete(nodes.filter(workflow__in=some))


def _delete(rows: QuerySet[Any]) -> None:
    rows._raw_delete(rows.db)  # delete() would first read what hangs on each row
