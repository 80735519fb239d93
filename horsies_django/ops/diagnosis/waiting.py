"""Find why a task or a workflow node is not running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Model, Q, Subquery
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _

from ...core.compat import task_backends
from ...core.numbers import format_lower_bound
from ...core.options import Options
from ...core.status import BeatRole, StepStatus, TaskStatus
from ...core.workflow_status import NodeKind, WorkflowStatus, WorkflowTaskStatus
from ...db.fields import indexes_in, strings_in
from ...db.now import Now
from ...enqueue.backend import HorsiesBackend
from ...models import Heartbeat, Queue, Task, TaskStep, Worker, Workflow, WorkflowTask
from ...models.claim.query import DUE_AT
from ...models.release_blocked import UNOCCUPIED, occupancy_of, room_of, with_first_task
from ...models.transitions import TaskQuerySet
from ..queue_status import queue_status
from ..task_states import waits_until
from .reason import WAITS, Reason, ReasonCode, RelatedRow

#: Upper bound for counting tasks ahead in the queue and tasks that workers hold.
MAX_COUNTED: Final = 1_000

#: How many workers are examined, those with the latest heartbeats first.
MAX_WORKERS: Final = 200

#: Maximum number of rows that one reason names, and of tasks that hold a limit.
MAX_RELATED: Final = 20
MAX_HOLDERS: Final = 5


def backend_options(alias: str) -> Options:
    """Return the options of a backend; the defaults if the settings no longer have it as a HorsiesBackend."""
    backend = task_backends[alias] if alias in task_backends.settings else None
    return backend.parsed.options if isinstance(backend, HorsiesBackend) else Options()


def reasons_of(task: Task, now: datetime | None = None) -> list[Reason]:
    """Return why a task is not running, the most immediate reason first.

    The list is empty for a running task, unless its worker has gone silent or stands still, and for an ended one.
    ``now`` is the database's current time, if the caller has just read it. Takes at most seven statements.

    >>> reasons_of(Task.objects.get(pk=handle.id))  # doctest: +SKIP
    [Reason(code=ReasonCode.QUEUE_PAUSED, words='The queue emails is paused.', …)]
    """
    if task.finished_at is not None:
        return []
    if now is None:
        rows = _tasks_beside(task).filter(pk=task.pk)
        now = rows.values_list(Now(), flat=True).first() or task.sent_at  # the row may be gone
    return list(_held(task, now) if task.claimed else _pending(task, now))


def reasons_of_node(node: WorkflowTask) -> list[Reason]:
    """Return why a workflow node has not started, or what it sleeps or waits for.

    The list is empty if the node's task has the reasons. Reads ``node.workflow``; takes at most three statements.
    """
    return [] if WorkflowTaskStatus(node.status).is_terminal else list(_node(node))


def _pending(task: Task, now: datetime) -> Iterator[Reason]:
    if task.good_until is not None and task.good_until <= now:
        yield Reason.of(ReasonCode.PAST_DEADLINE, task.good_until)
        return
    is_due = task.enqueued_at <= now
    reasons = _workflow(task) if task.workflow_id is not None else []
    stored = task.unknown_to
    if versions := strings_in(stored.get("versions")) if isinstance(stored, dict) else []:
        words = ", ".join(versions)
        reasons.append(Reason.of(ReasonCode.OTHER_VERSION, None if is_due else task.enqueued_at, versions=words))
    elif not is_due and task.waits_for is not None:
        reasons.append(_wait(task, task.waits_for, now))
    elif not is_due:
        code = ReasonCode.SCHEDULED if task.next_retry_at is None else ReasonCode.RETRYING
        reasons.append(Reason.of(code, task.enqueued_at, attempt=task.attempt))
    if task.blocked and task.limit_key is not None:
        reasons += _limit(task, task.limit_key, now)
    reasons += _queue_and_workers(task, now, is_due=is_due and not task.blocked)
    yield from reasons or [Reason.of(ReasonCode.NOTHING)]


def _wait(task: Task, waits_for: str, now: datetime) -> Reason:
    """Return what a task that has begun waits for, and when that ends at the latest."""
    kind, _colon, name = waits_for.partition(":")
    about = [RelatedRow(Workflow, name, name)] if kind == "workflow" else []
    return Reason.of(WAITS.get(kind, ReasonCode.SLEEPS), waits_until(task, now), about, name=name)


def waits_since(task: Task) -> datetime | None:
    """Return since when a task waits for what it waits for now."""
    waits = TaskStep.objects.using(task._state.db).filter(task=task.pk, status=StepStatus.WAITING)
    return waits.order_by("-started_at").values_list("started_at", flat=True).first()


def _held(task: Task, now: datetime) -> Iterator[Reason]:
    """Yield a reason if the task waits for a slot, and one if its worker has gone silent or stands still."""
    worker_id = task.claimed_by_worker_id or ""
    about = (RelatedRow(Worker, worker_id, worker_id),)
    recovery = backend_options(task.backend).recovery
    if task.status == TaskStatus.CLAIMED:
        yield Reason.of(ReasonCode.CLAIMED, task.claimed_at, about)
        role, interval = BeatRole.CLAIMER, recovery.claimer_heartbeat_interval_ms
        threshold, is_recovered = recovery.claimed_stale_threshold_ms, recovery.auto_requeue_stale_claimed
    else:
        role, interval = BeatRole.RUNNER, recovery.runner_heartbeat_interval_ms
        threshold, is_recovered = recovery.running_stale_threshold_ms, recovery.auto_fail_stale_running
    beats = Heartbeat.objects.using(task._state.db).filter(task=task.pk, role=role, sender_id=worker_id)
    beat = beats.order_by("-sent_at").values_list("sent_at", flat=True).first()
    sign = max(filter(None, (beat, task.claimed_at, task.started_at)), default=now)
    if now - sign > timedelta(milliseconds=2 * interval):
        yield Reason.of(ReasonCode.SILENT, sign + timedelta(milliseconds=threshold) if is_recovered else None, about)
        return
    worker = Worker.objects.using(task._state.db).filter(pk=worker_id)
    if (since := worker.values_list("stalled_since", flat=True).first()) is not None:
        yield Reason.of(ReasonCode.STALLED, since, about)


def _node(node: WorkflowTask) -> Iterator[Reason]:
    has_not_begun = node.status in (WorkflowTaskStatus.PENDING, WorkflowTaskStatus.READY)
    if has_not_begun and node.workflow.status == WorkflowStatus.PAUSED:
        yield _paused(node.workflow)
    if has_not_begun and (node.open_deps or node.open_ctx):
        places = {*indexes_in(node.waits_for), *indexes_in(node.ctx_from)}
        nodes = WorkflowTask.objects.using(node._state.db).filter(workflow=node.workflow_id, task_index__in=places)
        open_nodes = nodes.filter(completed_at__isnull=True).order_by("task_index").only("pk", "node_id")[:MAX_RELATED]
        about = [RelatedRow(WorkflowTask, other.pk, other.node_id) for other in open_nodes]
        yield Reason.of(ReasonCode.WAITS_FOR_NODES, None, about, count=max(node.open_deps, node.open_ctx))
    elif node.kind == NodeKind.EVENT:
        yield Reason.of(ReasonCode.WAITS_FOR_EVENT, name=node.event_name)
    elif node.kind == NodeKind.SLEEP:
        tasks = Task.objects.using(node._state.db).filter(pk__in=[node.task_id] if node.task_id else [])
        yield Reason.of(ReasonCode.SLEEPS, tasks.values_list("enqueued_at", flat=True).first())


def _workflow(task: Task) -> list[Reason]:
    workflows = Workflow.objects.using(task._state.db).filter(nodes__task=task.pk, status=WorkflowStatus.PAUSED)
    return [_paused(workflow) for workflow in workflows.only("pk", "name")[:1]]


def _paused(workflow: Workflow) -> Reason:
    return Reason.of(ReasonCode.WORKFLOW_PAUSED, None, [RelatedRow(Workflow, workflow.pk, workflow.name)])


def _limit(task: Task, key: str, now: datetime) -> list[Reason]:
    """Return whether the task waits for a free place or for the rate of its limit, by the limiter's own arithmetic."""
    inside = _tasks_beside(task).released().filter(limit_key=key)
    occupancy = occupancy_of(inside).get(key, UNOCCUPIED)
    limit = with_first_task(task._state.db, [key]).annotate(clock=Now()).first()
    if limit is None:
        return []
    limit.adopt_declared()
    max_concurrency, rate = limit.terms
    if max_concurrency is not None and occupancy.free_places(max_concurrency) <= 0:
        return [_full(ReasonCode.LIMIT_FULL, inside, key, occupancy.held, max_concurrency)]
    room = room_of(limit, occupancy)
    if room.places > 0 or limit.bucket is None:
        return []
    if room.tokens < 1:
        next_at = now + timedelta(seconds=limit.bucket.wait(room.tokens))
        return [Reason.of(ReasonCode.RATE_LIMITED, next_at, name=key, rate=rate)]
    admitted = _holders(inside.exclude(status=TaskStatus.RUNNING))  # their tokens are reserved
    more = max(0, occupancy.waiting - len(admitted))
    return [Reason.of(ReasonCode.RATE_LIMITED, None, admitted, more, name=key, rate=rate)]


def _full(code: ReasonCode, tasks: TaskQuerySet, name: str, held: int, max_concurrency: int) -> Reason:
    holders = _holders(tasks)
    more = max(0, held - len(holders))
    if max_concurrency == 0:
        stopped = _("stopped: limit 0")
        return Reason(code, f"{name}: {stopped}", None, tuple(holders), more)
    return Reason.of(code, None, holders, more, name=name, held=held, most=max_concurrency)


def _holders(tasks: TaskQuerySet) -> list[RelatedRow]:
    """Return the first of the tasks that hold a limit, those that have held it for longest."""
    held_since = Coalesce("started_at", "claimed_at", DUE_AT)
    first: Any = tasks.annotate(held_since=held_since).order_by("held_since", "pk").only("task_name", "status")
    return [
        RelatedRow(Task, task.pk, task.task_name, task.get_status_display(), task.held_since)
        for task in first[:MAX_HOLDERS]
    ]


def _queue_and_workers(task: Task, now: datetime, *, is_due: bool) -> Iterator[Reason]:
    name, database = task.queue_name, task._state.db
    status = queue_status(name, database)
    if status.is_paused:
        keys = Queue.objects.using(database).filter(name=name).values_list("pk", flat=True)
        about = [RelatedRow(Queue, key, name) for key in keys]
        yield Reason.of(ReasonCode.QUEUE_PAUSED, None, about, name=name)
    elif is_due:
        if status.is_full:
            tasks = _tasks_beside(task).active().filter(queue_name=name)
            yield _full(ReasonCode.QUEUE_FULL, tasks, name, status.held, status.rules.max_concurrency or 0)
        if status.next_in > 0:
            next_at = now + timedelta(seconds=status.next_in)
            yield Reason.of(ReasonCode.RATE_LIMITED, next_at, name=name, rate=status.rules.rate)
    # The table of workers has one row per process, so it is small.
    alive = Worker.objects.using(database).alive(backend_options(task.backend).recovery.claimed_stale_after)
    workers = list(alive.order_by("-last_beat_at")[:MAX_WORKERS])
    serving = [worker for worker in workers if worker.serves(name)]
    claiming = [worker for worker in serving if worker.may_claim]
    if not serving:
        yield Reason.of(ReasonCode.NO_WORKER, None, _related(workers), name=name)
    elif not claiming:
        code = ReasonCode.WORKERS_STOPPING
        if any(worker.stalled_since is not None for worker in serving):
            code = ReasonCode.WORKERS_STALLED
        elif any(worker.quiet_since is not None for worker in serving):
            code = ReasonCode.WORKERS_QUIET
        yield Reason.of(code, None, _related(serving), name=name)
    elif is_due and not status.is_paused:
        yield from _slots(task, claiming)


def _slots(task: Task, workers: Sequence[Worker]) -> Iterator[Reason]:
    slots = {worker.pk: worker.async_slots if task.is_async else worker.threads for worker in workers}
    if None not in slots.values():
        rows = _tasks_beside(task).active().filter(claimed_by_worker_id__in=list(slots))  # the index of held rows
        kinds = rows.values_list("claimed_by_worker_id", "is_async")[: MAX_COUNTED * 10]
        held = Counter(worker for worker, is_async in kinds if is_async == task.is_async)
        if all(held[key] >= (count or 0) for key, count in slots.items()):
            total = sum(count or 0 for count in slots.values())
            yield Reason.of(ReasonCode.WORKERS_BUSY, None, _related(workers), slots=total)
    if ahead := _count_ahead(task):
        yield Reason.of(ReasonCode.OTHERS_FIRST, count=format_lower_bound(ahead, ahead == MAX_COUNTED))


def _count_ahead(task: Task) -> int:
    """Count the due tasks of the same queue and kind that come first, up to ``MAX_COUNTED``. Reads the claim index."""
    rows = _tasks_beside(task)
    others = rows.waiting(is_async=task.is_async).due().filter(queue_name=task.queue_name)
    higher = others.filter(priority__gt=task.priority)[:MAX_COUNTED].count()
    # Compare with the stored time: the value in Python may have a higher precision. The index serves the range up to
    # that time; the primary key breaks ties.
    due = Subquery(rows.filter(pk=task.pk).values("enqueued_at"))
    is_earlier = Q(enqueued_at__lt=due) | Q(pk__lt=task.pk)
    same = others.filter(is_earlier, priority=task.priority, enqueued_at__lte=due)
    return higher + same[: MAX_COUNTED - higher].count() if higher < MAX_COUNTED else MAX_COUNTED


def _tasks_beside(task: Model) -> TaskQuerySet:
    """Return all tasks in the database that a row was read from."""
    return Task.objects.using(task._state.db)


def _related(workers: Sequence[Worker]) -> list[RelatedRow]:
    return [RelatedRow(Worker, worker.pk, worker.pk) for worker in workers[:MAX_RELATED]]
