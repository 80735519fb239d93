"""Delete rows past their retention: ended tasks and workflows, heartbeats, and the rows of dead workers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from functools import reduce
from operator import or_
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db.models import BooleanField, ExpressionWrapper, F, Q, QuerySet
from django.db.models.deletion import Collector
from django.db.models.functions import Coalesce

from ..core.options import Options
from ..core.status import TASK_TERMINAL_STATES, TaskStatus
from ..core.unique import UniqueUntil
from ..db.expressions import NowPlus, where_in
from ..db.now import Now
from ..models import Heartbeat, Lease, Task, Worker, Workflow, WorkflowEvent, WorkflowTask
from ..models.lease import EMBEDDED_PREFIX
from ..models.transitions import BATCH, TaskQuerySet
from ..models.workflow import WorkflowQuerySet
from .batches import Rows, delete_all, in_batches

#: Maximum root workflows deleted in one transaction, and maximum nodes deleted in one statement.
TREES: Final = 200
NODES: Final = 2_000

#: Seconds without a heartbeat after which a worker's row is deleted. No other row refers to it.
WORKER_RETENTION: Final = 86_400


def prune_tasks(options: Options) -> Iterator[int]:
    """Delete ended tasks past their ``kept_until``, with their attempts and heartbeats."""
    return _prune_tasks(Task.objects.using(options.database).all())


def prune_workflows(options: Options) -> Iterator[int]:
    """Delete ended workflows past their ``kept_until``, with their nodes, events and subworkflows."""
    return _prune_workflows(Workflow.objects.using(options.database).all())


def _prune_tasks(tasks: TaskQuerySet) -> Iterator[int]:
    return in_batches(past_retention(tasks).order_by("kept_until"), delete)


def _prune_workflows(workflows: WorkflowQuerySet) -> Iterator[int]:
    return in_batches(workflows.past_retention().order_by("kept_until"), delete_trees, TREES)


def prune_heartbeats(options: Options) -> Iterator[int]:
    """Delete heartbeats older than ``heartbeat_retention_hours``. Keys grow with time, so no index is needed."""
    seconds = heartbeat_retention(options)
    if seconds is None:
        return
    beats = Heartbeat.objects.using(options.database)
    is_old = ExpressionWrapper(Q(sent_at__lt=NowPlus(-seconds)), BooleanField())
    oldest = beats.order_by("pk").values_list("pk", is_old)[:BATCH]
    while old := [key for key, is_old in oldest.all() if is_old]:
        yield beats.filter(pk__in=old).delete()[0]
        if len(old) < BATCH:
            return


def heartbeat_retention(options: Options) -> float | None:
    """Return the seconds for which heartbeats are kept, at least the longest stale threshold; None keeps them all."""
    recovery = options.recovery
    if recovery.heartbeat_retention_hours is None:
        return None
    hours = timedelta(hours=recovery.heartbeat_retention_hours)
    return max(hours.total_seconds(), recovery.claimed_stale_after, recovery.running_stale_after)


def prune_workers(options: Options) -> Iterator[int]:
    """Delete the rows of workers without a heartbeat for a day, and with them the leases that embedded ones left."""
    workers = Worker.objects.using(options.database).filter(last_beat_at__lt=NowPlus(-WORKER_RETENTION))
    leases = Lease.objects.using(options.database).filter(name__startswith=EMBEDDED_PREFIX)
    for count in delete_all(workers):
        yield count
        if count:
            yield from delete_all(leases.filter(renewed_at__lt=NowPlus(-WORKER_RETENTION / 2)))


def past_retention(tasks: TaskQuerySet) -> TaskQuerySet:
    """Select ended tasks past their ``kept_until``, except those whose unique period still runs."""
    counts = Q(unique_until=UniqueUntil.PERIOD.value, unique_expires_at__gt=Now())
    return tasks.filter(~counts, kept_until__lte=Now(), status__in=sorted(TASK_TERMINAL_STATES))


class _Collector(Collector):
    """Names tasks to the statements of a cascade as one parameter, not as one for each."""

    def related_objects(self, related_model: Any, related_fields: Any, objs: Any) -> QuerySet[Any]:
        """Return the rows that refer to these rows."""
        if type(objs[0]) is not Task:  # rows of a project's own model that refer to tasks
            return super().related_objects(related_model, related_fields, objs)
        keys = [task.pk for task in objs]
        rows: QuerySet[Any] = related_model._base_manager.using(self.using)
        return rows.filter(reduce(or_, (where_in(self.using, keys, field.attname) for field in related_fields)))


def delete(tasks: TaskQuerySet) -> int:
    """Delete tasks with their attempts, heartbeats and steps, except locked ones; return how many."""
    collector = _Collector(tasks.db)  # a queryset's delete() would read the rows again
    collector.collect([Task.from_db(tasks.db, ["id"], [key]) for key in tasks.lock().values_list("pk", flat=True)])
    _, counts = collector.delete()
    return counts.get(Task._meta.label, 0)


def delete_trees(roots: WorkflowQuerySet) -> int:
    """Delete root workflows with their subworkflows, except locked ones; return how many roots.

    Tasks have their own retention. Rows are deleted without being loaded, as no cascade applies.
    """
    locked = roots.lock(list(roots.values_list("pk", flat=True)), skip=True)
    root_ids = set(
        roots.filter(pk__in=locked).values_list("pk", flat=True)
    )  # one may have been retried before the lock
    workflows = Workflow.objects.using(roots.db)
    trees = Q(pk__in=root_ids) | Q(root_id__in=root_ids, depth__gt=0)
    counts = dict(workflows.filter(trees).values_list("pk", "node_count"))
    _delete_nodes(WorkflowTask.objects.using(roots.db), counts)
    _delete(WorkflowEvent.objects.using(roots.db).filter(workflow__in=counts))
    _delete(workflows.filter(pk__in=counts))
    return len(root_ids)


def _delete_nodes(nodes: QuerySet[WorkflowTask], counts: Mapping[UUID, int]) -> None:
    """Delete the nodes of workflows; ``counts`` maps each to its number of nodes.

    One statement deletes at most ``NODES`` nodes: a part of a long workflow, or all nodes of several short ones.
    """
    pending: list[UUID] = []
    total = 0
    for key, count in counts.items():
        parts = range(0, count - NODES, NODES)
        for first in parts:
            _delete(nodes.filter(workflow=key, task_index__range=(first, first + NODES - 1)))
        rest = count - len(parts) * NODES
        if total + rest > NODES:
            _delete(nodes.filter(workflow__in=pending))
            pending, total = [], 0
        pending.append(key)
        total += rest
    _delete(nodes.filter(workflow__in=pending))


def _delete(rows: QuerySet[Any]) -> None:
    rows._raw_delete(rows.db)  # delete() would first load related rows


class Pruned(NamedTuple):
    """How many rows were deleted, or would be; ``workflows`` counts root workflows, deleted with subworkflows."""

    tasks: int
    workflows: int
    heartbeats: int


def prune(options: Options, tasks: TaskQuerySet, workflows: WorkflowQuerySet, *, dry_run: bool = False) -> Pruned:
    """Delete ``tasks`` and ``workflows`` past their retention, and expired heartbeats; only count with ``dry_run``."""
    if dry_run:
        return Pruned(past_retention(tasks).count(), workflows.past_retention().count(), _expired_heartbeats(options))
    return Pruned(
        sum(_prune_tasks(tasks)),
        sum(_prune_workflows(workflows)),
        sum(prune_heartbeats(options)),
    )


def prune_older_than(
    tasks: TaskQuerySet,
    workflows: WorkflowQuerySet,
    age: timedelta,
    states: Collection[TaskStatus],
    *,
    dry_run: bool = False,
) -> Pruned:
    """Delete ``tasks`` and ``workflows``, all in ``states``, that ended before ``age`` ago, whatever their retention.

    No index covers this, so each table is scanned once by primary key in bounded steps. With ``dry_run``, only count.
    """
    since = NowPlus(-age.total_seconds())
    task_ended = Coalesce(*(F(f"{state.lower()}_at") for state in sorted(states)), "sent_at")
    workflow_ended = Coalesce("completed_at", "cancelled_at", "sent_at")
    old_tasks = tasks.alias(ended_at=task_ended).filter(ended_at__lt=since)
    old_trees = workflows.ended_trees().alias(ended_at=workflow_ended).filter(ended_at__lt=since)
    return Pruned(_prune_in_batches(old_tasks, delete, dry_run), _prune_in_batches(old_trees, delete_trees, dry_run), 0)


def _prune_in_batches(wanted: Rows, act: Callable[[Rows], int], dry_run: bool) -> int:
    """Apply ``act`` to the ``wanted`` rows, or count them, in order of primary key."""
    count, last = 0, None
    while step := _next_keys(wanted.model._default_manager.using(wanted.db), last):
        last = step[-1]
        batch = wanted.filter(pk__in=step)
        count += batch.count() if dry_run else sum(in_batches(batch, act))
    return count


def _next_keys(rows: QuerySet[Any], last: UUID | None) -> list[UUID]:
    further = rows.filter(pk__gt=last) if last else rows.all()
    return list(further.order_by("pk").values_list("pk", flat=True)[:BATCH])


def _expired_heartbeats(options: Options) -> int:
    seconds = heartbeat_retention(options)
    beats = Heartbeat.objects.using(options.database)
    return 0 if seconds is None else beats.filter(sent_at__lt=NowPlus(-seconds)).count()
