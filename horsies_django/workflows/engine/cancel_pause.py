"""Stopping: what has not begun is taken back, what runs comes to its end (W-37, W-38, W-42, W-44)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.db import OperationalError, connections, models, transaction
from django.db.models import Exists, OuterRef, Q, Subquery, Value
from django.db.models.functions import Now

from ...core.status import TaskStatus
from ...core.transition import Transition
from ...core.workflow_status import WORKFLOW_TERMINAL_STATES, WorkflowStatus, WorkflowTaskStatus
from ...db import postgres
from ...db.completions import notify_after_commit
from ...models import Task, Workflow, WorkflowTask
from ...models.retention import workflow_kept_until
from .. import lifecycle
from ..codes import STOPPED_BY
from . import limits, node_end
from .nodes import IN_PROGRESS, NodeRows, NodeEnd, where_in

if TYPE_CHECKING:
    from .context import EngineContext

#: Milliseconds to wait for a task that somebody has locked.
LOCK_WAIT_MS: Final = 500

_UNSTARTED: Final = (TaskStatus.PENDING, TaskStatus.CLAIMED)


def unstarted_in_stopped(nodes: NodeRows, task_ids: Collection[UUID]) -> NodeRows:
    """The nodes of those of these tasks that are to run once more in workflows that do not run any more."""
    states = [WorkflowStatus.PAUSED, *sorted(WORKFLOW_TERMINAL_STATES)]
    mine = nodes.filter(task_id__in=task_ids, status__in=IN_PROGRESS)
    return mine.filter(task__status__in=_UNSTARTED, workflow__status__in=states)


def return_to_ready(turn: EngineContext, some: NodeRows) -> None:
    """Take back the tasks of ``some`` nodes of paused workflows that have not begun.

    A task that somebody has locked for longer than a moment is left to that.
    """
    paused = _with_unstarted_task(some).filter(workflow__status=WorkflowStatus.PAUSED)
    _return_tasks(turn, paused.values_list("task_id", "pk"))


def _with_unstarted_task(some: NodeRows) -> NodeRows:
    """Those of ``some`` nodes whose tasks have not begun."""
    return some.filter(status__in=IN_PROGRESS, task__status__in=_UNSTARTED)


def skip_in_ended(turn: EngineContext, some: NodeRows) -> list[NodeEnd]:
    """Skip those of ``some`` nodes whose workflow was ended while they ran, and whose tasks are to run once more."""
    nodes = turn.nodes
    late = _with_unstarted_task(some).filter(workflow__status__in=sorted(WORKFLOW_TERMINAL_STATES))
    taken = _cancel_tasks(turn, late.values_list("task_id", "pk"))
    rows = nodes.filter(where_in(nodes.db, taken))
    columns = ("pk", "workflow_id", "task_index", "dependents", "map_index")
    skipped = [
        NodeEnd(pk, workflow_id, index, WorkflowTaskStatus.SKIPPED, dependents, map_index)
        for pk, workflow_id, index, dependents, map_index in rows.values_list(*columns)
    ]
    node_end.skip_stopped(nodes, skipped)
    return skipped


def _cancel_tasks(turn: EngineContext, rows: Iterable[tuple[Any, int]]) -> list[int]:
    """Cancel tasks that have not begun, each given with its node; return the nodes.

    A claimed one whose deadline has passed expires instead, and so does its node, as the turn follows it (S1-20).
    """
    pairs = dict(rows)
    free = _lock_unstarted(turn.database, pairs)
    gone = _expire(turn, _claimed(free))
    cancelled = [task_id for task_id in free if task_id not in gone]
    if cancelled:
        Task.objects.using(turn.database).filter(where_in(turn.database, cancelled)).cancel_quietly()
    return [pairs[task_id] for task_id in cancelled]


def _return_tasks(turn: EngineContext, rows: Iterable[tuple[Any, int]]) -> None:
    """Take back the tasks of nodes of paused workflows that have not begun, each given with its node.

    Those that nobody has claimed are cancelled, and their nodes READY: they get new tasks. A claimed one is PENDING
    again and held back, with its id; or it expires, if its deadline has passed (S1-20).
    """
    pairs = dict(rows)
    free = _lock_unstarted(turn.database, pairs)
    tasks = Task.objects.using(turn.database)
    if claimed := _claimed(free):
        _expire(turn, claimed)
        tasks.filter(where_in(turn.database, claimed)).hold()
    if waiting := [task_id for task_id, status in free.items() if status == TaskStatus.PENDING]:
        tasks.filter(where_in(turn.database, waiting)).cancel_quietly()
        rows_of = turn.nodes.filter(where_in(turn.database, [pairs[task_id] for task_id in waiting]))
        lifecycle.RETURN_TO_READY.apply(rows_of, task_id=None)


def _claimed(statuses: Mapping[UUID, str]) -> list[UUID]:
    return [task_id for task_id, status in statuses.items() if status == TaskStatus.CLAIMED]


def _expire(turn: EngineContext, claimed: Collection[UUID]) -> set[UUID]:
    """Expire those of these claimed tasks whose deadline has passed; return which. The turn follows that later."""
    if not claimed:
        return set()
    tasks = Task.objects.using(turn.database).filter(where_in(turn.database, claimed))
    if not tasks.filter(status=TaskStatus.CLAIMED).expire_claimed():
        return set()
    expired = set(tasks.filter(status=TaskStatus.EXPIRED).values_list("pk", flat=True))
    turn.expired_tasks.update(expired)
    return expired


def release_held(database: str, keys: Collection[UUID]) -> None:
    """Let the tasks be claimed that the pause of these workflows, which run again, has held back."""
    tasks = Task.objects.using(database)
    nodes = WorkflowTask.objects.using(database).filter(workflow__status=WorkflowStatus.RUNNING, status__in=IN_PROGRESS)
    mine = nodes.filter(where_in(database, keys, "workflow"), task__in=tasks.held_back())
    limited: dict[tuple[str, str], list[UUID]] = defaultdict(list)
    free: list[UUID] = []
    columns = ("task_id", "limit_key", "task_name", "task__task_name")
    for task_id, limit_key, path, called in mine.values_list(*columns):
        if task_id is None:
            continue
        if limit_key is None or path != called:  # a step of the engine has no limit
            free.append(task_id)
        else:
            limited[limit_key, path].append(task_id)
    if free:
        tasks.filter(where_in(database, free)).let_go()
    for (limit_key, _), task_ids in limited.items():
        tasks.filter(where_in(database, task_ids)).let_go(limit_key)
    limits.release_after_commit(database, limited)


def _lock_unstarted(database: str, task_ids: Collection[UUID]) -> dict[UUID, str]:
    """Lock those of these tasks that have not begun, and return how they stand.

    One that somebody has locked is being claimed, as a rule, and has begun a moment later; or its time has just come,
    or there is room for it at its gate, and then it has not.
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


def pause(turn: EngineContext, roots: Collection[UUID]) -> list[UUID]:
    """RUNNING → PAUSED for these workflows and everything below them; return which it was (W-42, W-62).

    What has not begun is taken back when the turn asks for something else, or is flushed.
    """
    database = turn.database
    if not roots:
        return []
    statuses = _subtree_statuses(database, roots)
    keys = [key for key, status in statuses.items() if status == WorkflowStatus.RUNNING]
    lifecycle.PAUSE_WORKFLOW.apply(Workflow.objects.using(database).filter(where_in(database, keys)), paused_at=Now())
    notify_after_commit(database, keys)
    running = Workflow.objects.using(database).filter(where_in(database, keys), status=WorkflowStatus.RUNNING)
    running.update(status=WorkflowStatus.PAUSED, paused_at=Now())
    notify_after_commit(database, keys)
    if keys:
        mine = _with_unstarted_task(turn.nodes.filter(where_in(database, keys, "workflow")))
        turn.fetch_later(
            turn.queries.query(mine, "task_id", "pk"),
            lambda rows: _return_tasks(turn, rows),
        )
    return keys


def cancel(
    turn: EngineContext,
    roots: Collection[UUID],
    transition: Transition[WorkflowStatus] = lifecycle.CANCEL_WORKFLOW,
    error: Mapping[str, Any] | None = None,
) -> list[NodeEnd]:
    """End these workflows, and everything below them; return the nodes that are skipped with that (W-44).

    As CANCELLED, or EXPIRED when their time is over (P-09); ``error`` says why, if that is not clear from the rows.
    """
    database = turn.database
    workflows = Workflow.objects.using(database)
    live = workflows.filter(transition.is_possible, pk__in=subtree_ids(database, roots))
    keys = list(live.values_list("pk", flat=True))
    rows, status = workflows.filter(pk__in=keys), transition.target
    transition.apply(rows, cancelled_at=Now(), error=error, kept_until=workflow_kept_until(status, database))
    notify_after_commit(database, keys)
    rows = workflows.filter(pk__in=keys)
    rows.update(status=status, cancelled_at=Now(), error=error, kept_until=workflow_kept_until(status, database))
    notify_after_commit(database, keys)
    nodes = WorkflowTask.objects.using(database).all()
    mine = nodes.filter(workflow__in=keys)
    taken = _cancel_tasks(turn, _with_unstarted_task(mine).values_list("task_id", "pk"))
    waits = lifecycle.ENQUEUE_NODE.is_possible
    children = workflows.filter(parent=OuterRef("pk"), is_replaced=False)
    untasked = Q(~Exists(children), status__in=IN_PROGRESS, task__isnull=True)
    skipped = [
        NodeEnd(pk, workflow_id, index, WorkflowTaskStatus.SKIPPED, dependents, map_index)
        for pk, workflow_id, index, dependents, map_index in mine.filter(
            waits | untasked | where_in(database, taken)
        ).values_list("pk", "workflow_id", "task_index", "dependents", "map_index")
    ]
    node_end.skip(nodes, skipped, lifecycle.SKIP_STOPPED, STOPPED_BY[status], f"The workflow is {status}.")
    return skipped


def subtree_ids(database: str, roots: Collection[UUID]) -> Sequence[UUID]:
    """The ids of these workflows, and of all that are below them, but for those that others have replaced."""
    return list(_subtree_statuses(database, roots))


def _subtree_statuses(database: str, roots: Collection[UUID]) -> dict[UUID, str]:
    """How these workflows stand, and all that are below them, but for those that others have replaced."""
    workflows = Workflow.objects.using(database)
    asked = workflows.filter(where_in(database, roots))
    # By their root: to ask who is a child of so many nodes takes as long as there are subworkflows anywhere.
    tree = workflows.filter(root_id__in=asked.values("root_id"), depth__gt=0, is_replaced=False)
    # A join might be planned to go through all nodes.
    above_it = WorkflowTask.objects.using(database).filter(pk=OuterRef("parent")).values("workflow_id")
    of_uuid = models.UUIDField()
    rows = asked.values_list("pk", "status", Value(None, of_uuid)).union(
        tree.values_list("pk", "status", Subquery(above_it, output_field=of_uuid)), all=True
    )
    children: dict[UUID | None, list[UUID]] = defaultdict(list)
    statuses: dict[UUID, str] = {}
    for key, status, above in rows:
        statuses[key] = status
        children[above].append(key)
    keys = [key for key in roots if key in statuses]
    for key in keys:  # which grows meanwhile
        keys += children[key]
    return {key: statuses[key] for key in keys}
