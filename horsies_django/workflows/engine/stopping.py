"""Stopping: what has not begun is taken back, what runs comes to its end (W-37, W-38, W-42, W-44)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.db import OperationalError, connections, models, transaction
from django.db.models import Exists, OuterRef, Q, Subquery, Value
from django.db.models.functions import Now

from ... import postgres
from ...ends import tell_after_commit
from ...models import Task, Workflow, WorkflowTask
from ...retention import workflow_kept_until
from ...states import TaskStatus
from ..codes import STOPPED_BY
from ..states import WORKFLOW_TERMINAL_STATES, WorkflowStatus, WorkflowTaskStatus
from . import ending
from .nodes import BEGUN, NodeRows, Settled, among

if TYPE_CHECKING:
    from .turn import Turn

#: Milliseconds to wait for a task that somebody has locked.
MOMENT: Final = 500

_NOT_BEGUN: Final = (TaskStatus.PENDING, TaskStatus.CLAIMED)


def left_over(nodes: NodeRows, task_ids: Collection[UUID]) -> NodeRows:
    """The nodes of those of these tasks that are to run once more in workflows that do not run any more."""
    states = [WorkflowStatus.PAUSED, *sorted(WORKFLOW_TERMINAL_STATES)]
    mine = nodes.filter(task_id__in=task_ids, status__in=BEGUN)
    return mine.filter(task__status__in=_NOT_BEGUN, workflow__status__in=states)


def abandon(nodes: NodeRows, some: NodeRows) -> None:
    """Take back the tasks of ``some`` nodes of paused workflows that have not begun: their nodes are READY again.

    A task that somebody has locked for longer than a moment is left to that.
    """
    paused = _not_begun(some).filter(workflow__status=WorkflowStatus.PAUSED)
    _take_back(nodes, paused.values_list("task_id", "pk"), WorkflowTaskStatus.READY)


def _not_begun(some: NodeRows) -> NodeRows:
    """Those of ``some`` nodes whose tasks have not begun."""
    return some.filter(status__in=BEGUN, task__status__in=_NOT_BEGUN)


def drop(nodes: NodeRows, some: NodeRows) -> list[Settled]:
    """Skip those of ``some`` nodes whose workflow was ended while they ran, and whose tasks are to run once more."""
    late = _not_begun(some).filter(workflow__status__in=sorted(WORKFLOW_TERMINAL_STATES))
    taken = _take_back(nodes, late.values_list("task_id", "pk"), WorkflowTaskStatus.SKIPPED)
    rows = nodes.filter(among(nodes.db, taken))
    columns = ("pk", "workflow_id", "task_index", "dependents", "map_index")
    skipped = [
        Settled(pk, workflow_id, index, WorkflowTaskStatus.SKIPPED, dependents, map_index)
        for pk, workflow_id, index, dependents, map_index in rows.values_list(*columns)
    ]
    ending.skip_stopped(nodes, skipped)
    return skipped


def _take_back(nodes: NodeRows, rows: Iterable[tuple[Any, int]], status: WorkflowTaskStatus) -> list[int]:
    """Cancel tasks that have not begun, each given with its node; return the nodes."""
    pairs = dict(rows)
    if not pairs:
        return []
    tasks = Task.objects.using(nodes.db)
    free = _locked(nodes.db, pairs)
    tasks.filter(among(nodes.db, free)).cancel_quietly()
    keys = [pairs[task_id] for task_id in free]
    if status == WorkflowTaskStatus.READY:
        nodes.filter(among(nodes.db, keys)).update(status=status, task_id=None)
    return keys


def _locked(database: str, task_ids: Collection[UUID]) -> list[UUID]:
    """Lock those of these tasks that have not begun, and return which.

    One that somebody has locked is being claimed, as a rule, and has begun a moment later; or its time has just come,
    or there is room for it at its gate, and then it has not.
    """
    waiting = Task.objects.using(database).filter(status__in=_NOT_BEGUN)
    free = list(waiting.filter(among(database, task_ids)).lock().values_list("pk", flat=True))
    rest = waiting.filter(among(database, set(task_ids).difference(free)))
    if len(free) < len(task_ids) and rest.exists():
        try:
            with transaction.atomic(using=database), postgres.waiting_for_locks(connections[database], MOMENT):
                free += rest.lock(skip=False).values_list("pk", flat=True)
        except OperationalError as error:
            if not postgres.is_lock_timeout(error):
                raise
            free += rest.lock().values_list("pk", flat=True)
    return free


def pause(turn: Turn, roots: Collection[UUID]) -> list[UUID]:
    """RUNNING → PAUSED for these workflows and everything below them; return which it was (W-42, W-62).

    What has not begun is taken back when the turn asks for something else, or is flushed.
    """
    database = turn.database
    if not roots:
        return []
    statuses = _statuses_below(database, roots)
    keys = [key for key, status in statuses.items() if status == WorkflowStatus.RUNNING]
    running = Workflow.objects.using(database).filter(among(database, keys), status=WorkflowStatus.RUNNING)
    running.update(status=WorkflowStatus.PAUSED, paused_at=Now())
    tell_after_commit(database, keys)
    if keys:
        mine = _not_begun(turn.nodes.filter(among(database, keys, "workflow")))
        turn.ask_later(
            turn.phrases.read(mine, "task_id", "pk"),
            lambda rows: _take_back(turn.nodes, rows, WorkflowTaskStatus.READY),
        )
    return keys


def cancel(
    database: str,
    roots: Collection[UUID],
    status: WorkflowStatus = WorkflowStatus.CANCELLED,
    error: Mapping[str, Any] | None = None,
) -> list[Settled]:
    """End these workflows, and everything below them; return the nodes that are skipped with that (W-44).

    As CANCELLED, or EXPIRED when their time is over (P-09); ``error`` says why, if that is not clear from the rows.
    """
    workflows = Workflow.objects.using(database)
    live = workflows.filter(pk__in=below(database, roots)).exclude(status__in=sorted(WORKFLOW_TERMINAL_STATES))
    keys = list(live.values_list("pk", flat=True))
    rows = workflows.filter(pk__in=keys)
    rows.update(status=status, cancelled_at=Now(), error=error, kept_until=workflow_kept_until(status, database))
    tell_after_commit(database, keys)
    nodes = WorkflowTask.objects.using(database).all()
    mine = nodes.filter(workflow__in=keys)
    taken = _take_back(nodes, _not_begun(mine).values_list("task_id", "pk"), WorkflowTaskStatus.SKIPPED)
    waits = Q(status__in=[WorkflowTaskStatus.PENDING, WorkflowTaskStatus.READY])
    children = workflows.filter(parent=OuterRef("pk"), is_replaced=False)
    untasked = Q(~Exists(children), status__in=BEGUN, task__isnull=True)
    skipped = [
        Settled(pk, workflow_id, index, WorkflowTaskStatus.SKIPPED, dependents, map_index)
        for pk, workflow_id, index, dependents, map_index in mine.filter(
            waits | untasked | among(database, taken)
        ).values_list("pk", "workflow_id", "task_index", "dependents", "map_index")
    ]
    ending.skip(nodes, skipped, STOPPED_BY[status], f"The workflow is {status}.")
    return skipped


def below(database: str, roots: Collection[UUID]) -> Sequence[UUID]:
    """The ids of these workflows, and of all that are below them, but for those that others have replaced."""
    return list(_statuses_below(database, roots))


def _statuses_below(database: str, roots: Collection[UUID]) -> dict[UUID, str]:
    """How these workflows stand, and all that are below them, but for those that others have replaced."""
    workflows = Workflow.objects.using(database)
    asked = workflows.filter(among(database, roots))
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
