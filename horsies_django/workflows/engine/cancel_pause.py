"""Cancelling and pausing: tasks that have not started are taken back, running ones come to their end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.db import OperationalError, connections, models, transaction
from django.db.models import Exists, ExpressionWrapper, OuterRef, Q, Subquery, Value

from ...core.headers import RESTARTS
from ...core.lifecycle import Transition
from ...core.status import TaskStatus
from ...core.workflow_errors import STOPPED_BY
from ...core.workflow_status import WORKFLOW_TERMINAL_STATES, WorkflowStatus, WorkflowTaskStatus
from ...db import postgres
from ...db.completions import notify_after_commit
from ...db.expressions import where_in
from ...db.now import Now
from ...models import Task, TaskStep, Workflow, WorkflowTask
from ...models.release_blocked import release_after_commit
from ...models.retention import workflow_kept_until
from .. import lifecycle
from . import node_end
from .rows import IN_PROGRESS, NodeEnd, NodeRows, err_result, read_ends, wake_awaiting_after_commit

if TYPE_CHECKING:
    from .context import EngineContext

#: How long to wait for locked tasks, in milliseconds.
LOCK_WAIT_MS: Final = 500

_UNSTARTED: Final = (TaskStatus.PENDING, TaskStatus.CLAIMED)

#: The task of a node, its key, and whether the task has recorded steps, or has restarted with arguments of its own.
_TO_RETURN: Final = (
    "task_id",
    "pk",
    ExpressionWrapper(
        Exists(TaskStep.objects.filter(task=OuterRef("task_id"))) | Q(task__metadata__has_key=RESTARTS),
        models.BooleanField(),
    ),
)


def unstarted_in_stopped(nodes: NodeRows, task_ids: Collection[UUID]) -> NodeRows:
    """Return the nodes whose tasks wait for another attempt although their workflows do not run."""
    states = [WorkflowStatus.PAUSED, *sorted(WORKFLOW_TERMINAL_STATES)]
    in_progress = nodes.filter(task_id__in=task_ids, status__in=IN_PROGRESS)
    return in_progress.filter(task__status__in=_UNSTARTED, workflow__status__in=states)


def return_to_ready(context: EngineContext, some: NodeRows) -> None:
    """Return nodes of paused workflows to READY if their tasks have not started.

    Suspended tasks stay. A task that stays locked for longer than :data:`LOCK_WAIT_MS` is left to the transaction that
    holds the lock.
    """
    suspended = Task.objects.using(context.database).suspended()
    paused = _with_unstarted_task(some).filter(workflow__status=WorkflowStatus.PAUSED).exclude(task__in=suspended)
    _return_tasks(context, paused.values_list(*_TO_RETURN))


def _with_unstarted_task(some: NodeRows) -> NodeRows:
    """Return those of ``some`` nodes whose tasks have not started."""
    return some.filter(status__in=IN_PROGRESS, task__status__in=_UNSTARTED)


def skip_in_ended(context: EngineContext, some: NodeRows) -> list[NodeEnd]:
    """Skip those of ``some`` nodes whose workflow has ended and whose tasks have not started."""
    unstarted = _with_unstarted_task(some).filter(workflow__status__in=sorted(WORKFLOW_TERMINAL_STATES))
    taken = _cancel_tasks(context, unstarted.values_list("task_id", "pk"))
    rows = context.nodes.filter(where_in(context.database, taken))
    statuses = dict(rows.values_list("pk", "workflow__status")) if taken else {}
    ends = read_ends(rows, WorkflowTaskStatus.SKIPPED) if taken else []
    return context.end_nodes(node_end.stopped(end, statuses[end.pk]) for end in ends)


def _cancel_tasks(context: EngineContext, rows: Iterable[tuple[Any, int]]) -> list[int]:
    """Cancel tasks that have not started, given with the keys of their nodes; return these keys.

    A claimed task that is past its ``good_until`` expires instead, and so does its node later in this transaction.
    """
    pairs = dict(rows)
    free = _lock_unstarted(context.database, pairs)
    expired = _expire(context, _claimed(free))
    cancelled = [task_id for task_id in free if task_id not in expired]
    if cancelled:
        Task.objects.using(context.database).filter(where_in(context.database, cancelled)).cancel_for_workflow()
    return [pairs[task_id] for task_id in cancelled]


def _return_tasks(context: EngineContext, rows: Iterable[tuple[Any, int, bool]]) -> None:
    """Take back the unstarted tasks of nodes of paused workflows, given as rows of :data:`_TO_RETURN`.

    An unclaimed task is cancelled and its node becomes READY: it gets a new task later. A claimed task becomes PENDING
    and is held back, with the same id; or it expires, if it is past its ``good_until``. So is a task that has recorded
    steps or has restarted.
    """
    database = context.database
    nodes = {task_id: (key, has_steps) for task_id, key, has_steps in rows}
    free = _lock_unstarted(database, nodes)
    tasks = Task.objects.using(database)
    _expire(context, _claimed(free))
    held = {task_id for task_id, status in free.items() if status == TaskStatus.CLAIMED or nodes[task_id][1]}
    if held:
        tasks.filter(where_in(database, held)).suspend_for_workflow()
    if waiting := free.keys() - held:
        tasks.filter(where_in(database, waiting)).cancel_for_workflow()
        rows_of = context.nodes.filter(where_in(database, [nodes[task_id][0] for task_id in waiting]))
        lifecycle.RETURN_TO_READY.apply(rows_of, task_id=None)


def _claimed(statuses: Mapping[UUID, str]) -> list[UUID]:
    return [task_id for task_id, status in statuses.items() if status == TaskStatus.CLAIMED]


def _expire(context: EngineContext, claimed: Collection[UUID]) -> set[UUID]:
    """Expire those of these claimed tasks that are past ``good_until``; return them. Their nodes end later."""
    if not claimed:
        return set()
    tasks = Task.objects.using(context.database).filter(where_in(context.database, claimed))
    if not tasks.expire_claimed():
        return set()
    expired = set(tasks.filter(status=TaskStatus.EXPIRED).values_list("pk", flat=True))
    context.expired_tasks.update(expired)
    return expired


def resume_suspended(database: str, keys: Collection[UUID]) -> None:
    """Release the suspended tasks of these workflows, which run again, so that workers can claim them."""
    tasks = Task.objects.using(database)
    nodes = WorkflowTask.objects.using(database).filter(workflow__status=WorkflowStatus.RUNNING, status__in=IN_PROGRESS)
    of_workflows = nodes.filter(where_in(database, keys, "workflow"), task__in=tasks.suspended())
    limited: dict[str, list[UUID]] = defaultdict(list)
    free: list[UUID] = []
    columns = ("task_id", "limit_key", "task_name", "task__task_name")
    for task_id, limit_key, path, called in of_workflows.values_list(*columns):
        if task_id is None:
            continue
        if limit_key is None or path != called:  # engine tasks have no limit
            free.append(task_id)
        else:
            limited[limit_key].append(task_id)
    if free:
        tasks.filter(where_in(database, free)).resume_suspended()
    for limit_key, task_ids in limited.items():
        tasks.filter(where_in(database, task_ids)).resume_suspended(limit_key)
    release_after_commit(database, limited, frees_places=False)


def _lock_unstarted(database: str, task_ids: Collection[UUID]) -> dict[UUID, str]:
    """Lock those of these tasks that have not started, and return their statuses.

    Waits :data:`LOCK_WAIT_MS` for tasks that another transaction has locked, then leaves them out.
    """
    if not task_ids:
        return {}
    waiting = Task.objects.using(database).filter(status__in=_UNSTARTED)
    free = dict(waiting.filter(where_in(database, task_ids)).lock().values_list("pk", "status"))
    rest = waiting.filter(where_in(database, set(task_ids).difference(free)))
    if len(free) < len(task_ids) and rest.exists():
        try:
            with transaction.atomic(using=database), postgres.waiting_for_locks(connections[database], LOCK_WAIT_MS):
                free |= dict(rest.lock(skip=False).values_list("pk", "status"))
        except OperationalError as error:
            if not postgres.is_lock_timeout(error):
                raise
            free |= dict(rest.lock().values_list("pk", "status"))
    return free


def pause(context: EngineContext, roots: Collection[UUID]) -> list[UUID]:
    """RUNNING → PAUSED for these workflows and all below them; return the ids of those that were running.

    Tasks that have not started are taken back with the next fetch or flush of the context.
    """
    database = context.database
    if not roots:
        return []
    statuses = subtree_statuses(database, roots)
    keys = [key for key, status in statuses.items() if status == WorkflowStatus.RUNNING]
    lifecycle.PAUSE_WORKFLOW.apply(Workflow.objects.using(database).filter(where_in(database, keys)), paused_at=Now())
    notify_after_commit(database, keys)
    if keys:
        of_workflows = _with_unstarted_task(context.nodes.filter(where_in(database, keys, "workflow")))
        context.fetch_later(
            context.queries.query(of_workflows, *_TO_RETURN),
            lambda rows: _return_tasks(context, rows),
        )
    return keys


def cancel(
    context: EngineContext,
    roots: Collection[UUID],
    transition: Transition[WorkflowStatus] = lifecycle.CANCEL_WORKFLOW,
    error: Mapping[str, Any] | None = None,
) -> list[NodeEnd]:
    """End these workflows and all below them as CANCELLED or EXPIRED; return the nodes that this skips.

    ``error`` gives the reason, where the rows do not show it.
    """
    database = context.database
    workflows = Workflow.objects.using(database)
    live = workflows.filter(transition.is_possible, pk__in=subtree_statuses(database, roots))
    keys = dict(live.values_list("pk", "is_awaited"))
    rows, status = workflows.filter(pk__in=keys), transition.target
    transition.apply(rows, cancelled_at=Now(), error=error, kept_until=workflow_kept_until(status, database))
    notify_after_commit(database, keys)
    wake_awaiting_after_commit(database, [key for key, is_awaited in keys.items() if is_awaited])
    nodes = WorkflowTask.objects.using(database).all()
    of_workflows = nodes.filter(workflow__in=keys)
    taken = _cancel_tasks(context, _with_unstarted_task(of_workflows).values_list("task_id", "pk"))
    waits = lifecycle.ENQUEUE_NODE.is_possible
    children = workflows.filter(parent=OuterRef("pk"), is_replaced=False)
    without_task = Q(~Exists(children), status__in=IN_PROGRESS, task__isnull=True)
    open_nodes = of_workflows.filter(waits | without_task | where_in(database, taken))
    skipped = read_ends(open_nodes, WorkflowTaskStatus.SKIPPED)
    if skipped:
        code, rows_of = STOPPED_BY[status], nodes.filter(where_in(database, [end.pk for end in skipped]))
        result = err_result(code, f"The workflow is {status}.")
        lifecycle.SKIP_STOPPED.apply(rows_of, completed_at=Now(), result=result, error_code=str(code))
    return skipped


def subtree_statuses(database: str, roots: Collection[UUID]) -> dict[UUID, str]:
    """Return the statuses of these workflows and of all below them, without replaced ones."""
    workflows = Workflow.objects.using(database)
    root_rows = workflows.filter(where_in(database, roots))
    # By their root: a query for the children of so many nodes takes time for all subworkflows of the table.
    tree = workflows.filter(root_id__in=root_rows.values("root_id"), depth__gt=0, is_replaced=False)
    # A subquery, since a join may be planned as a scan of all nodes.
    above_it = WorkflowTask.objects.using(database).filter(pk=OuterRef("parent")).values("workflow_id")
    of_uuid = models.UUIDField()
    rows = root_rows.values_list("pk", "status", Value(None, of_uuid)).union(
        tree.values_list("pk", "status", Subquery(above_it, output_field=of_uuid)), all=True
    )
    children: dict[UUID | None, list[UUID]] = defaultdict(list)
    statuses: dict[UUID, str] = {}
    for key, status, above in rows:
        statuses[key] = status
        children[above].append(key)
    keys = [key for key in roots if key in statuses]
    for key in keys:  # the loop appends to it
        keys += children[key]
    return {key: statuses[key] for key in keys}
