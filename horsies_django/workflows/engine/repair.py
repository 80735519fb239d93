"""Repair of stuck workflows, whose rows something other than the engine has changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.db import models, transaction
from django.db.models import Count, Exists, Min, OuterRef, Q

from ...core.results import OperationalCode, RetrievalCode, TaskError
from ...core.serialization import clean_text
from ...core.status import TASK_TERMINAL_STATES
from ...core.workflow_errors import WorkflowCode
from ...core.workflow_status import WORKFLOW_TERMINAL_STATES, NodeKind, WorkflowStatus, WorkflowTaskStatus
from ...db.completions import notify_after_commit
from ...db.errors import concerns_all_rows, is_row_error, primary_message, row_by_row
from ...db.expressions import NowPlus, SecondsUntil
from ...db.now import Now
from ...models import Task, Workflow, WorkflowTask
from ...models.retention import workflow_kept_until
from .. import lifecycle
from . import cancel_pause, node_end, resume_workflow
from .advance import Engine
from .rows import IN_PROGRESS, IS_UNSUCCESSFUL, OPEN, NodeEnd, NodeResult, NodeRows, err_result, read_ends, read_nodes

logger = logging.getLogger("horsies_django.reaper")

#: How many trees one pass repairs at most.
MAX_TREES: Final = 200

#: How many nodes an error names.
_MAX_NAMED: Final = 5

_IS_OPEN: Final = Q(status__in=OPEN)


@dataclass(frozen=True, slots=True)
class Repaired:
    """What repair did to the workflows of one tree; ``error`` says why it failed the tree or left it."""

    root_id: UUID
    ended_nodes: int = 0
    decided_nodes: int = 0
    ended_workflows: int = 0
    error: str = ""

    @property
    def has_changes(self) -> bool:
        """Whether repair did anything."""
        return self != Repaired(self.root_id)


def repair(database: str, limit: int = MAX_TREES) -> list[Repaired]:
    """Repair stuck workflows, each tree in a transaction of its own; return what was done.

    A tree with unreadable rows becomes FAILED with ``WORKER_ROW_UNREADABLE``, and the others are still repaired. A tree
    that another transaction has locked is left for the next pass.
    """
    repaired = (
        _under_lock(database, root, partial(_repair_tree, database, root), partial(_fail_tree, database))
        for root in _stuck_roots(database, limit)
    )
    return [each for each in repaired if each.has_changes]


def _under_lock(
    database: str, root: UUID, change: Callable[[], Repaired], on_error: Callable[[UUID, Exception], Repaired]
) -> Repaired:
    """Change a tree in a transaction of its own; do nothing if another transaction has locked it."""

    def run(_: Sequence[UUID]) -> Repaired:
        with transaction.atomic(using=database):
            return change() if Workflow.objects.using(database).lock([root], skip=True) else Repaired(root)

    return row_by_row([root], run, on_error, concerns_all_rows)[0]


def _fail_tree(database: str, root: UUID, error: Exception) -> Repaired:
    """Fail a tree whose rows are damaged; leave it after any other error."""
    logger.error("workflow can't be repaired id=%s", root, exc_info=error)
    if not is_row_error(error):
        return Repaired(root, error=repr(error))
    return _under_lock(database, root, partial(_fail_unreadable, database, root, primary_message(error)), _leave)


def _leave(root: UUID, error: Exception) -> Repaired:
    logger.error("workflow can't be failed id=%s: left as it is", root, exc_info=error)
    return Repaired(root, error=repr(error))


def _fail_unreadable(database: str, root: UUID, why: str) -> Repaired:
    """Fail a tree by its columns alone. Running bodies come to their end, without effect on the workflow."""
    message = clean_text(f"The rows of the workflow are damaged: {why}")
    error = err_result(OperationalCode.WORKER_ROW_UNREADABLE, message)
    tree = Workflow.objects.using(database).filter(Q(pk=root) | Q(root_id=root))
    live = tree.filter(lifecycle.FAIL_UNREADABLE.is_possible)
    keys = list(live.values_list("pk", flat=True))
    nodes = WorkflowTask.objects.using(database).filter(_IS_OPEN, workflow__in=list(tree.values_list("pk", flat=True)))
    tasks = list(nodes.values_list("task_id", flat=True))
    Task.objects.using(database).filter(pk__in=tasks).cancel_for_workflow()
    lifecycle.SKIP_UNREADABLE.apply(
        nodes,
        completed_at=Now(),
        result=error,
        error_code=OperationalCode.WORKER_ROW_UNREADABLE.value,
    )
    tree.update(open_count=0)
    ended = Workflow.objects.using(database).filter(pk__in=keys)
    kept_until = workflow_kept_until(lifecycle.FAIL_UNREADABLE.target, database)
    lifecycle.FAIL_UNREADABLE.apply(ended, completed_at=Now(), error=error["err"], kept_until=kept_until)
    notify_after_commit(database, keys)
    return Repaired(root, ended_workflows=len(keys), error=message)


def expire(database: str, limit: int = MAX_TREES) -> int:
    """End the workflows that are past their ``good_until`` as EXPIRED; return how many."""
    overdue = Workflow.objects.using(database).filter(lifecycle.EXPIRE_WORKFLOW.is_possible, good_until__lte=Now())
    rows = list(overdue.order_by("good_until").values_list("pk", "root_id")[:limit])
    return sum(_expire(overdue, key, root) for key, root in rows)


def expire_paused(database: str, after: timedelta, limit: int = MAX_TREES) -> int:
    """End the workflows that were paused for longer than ``after`` as EXPIRED; return how many.

    Workflows below a paused one expire with it. Its parent node sees a cancelled subworkflow.
    """
    stale = Workflow.objects.using(database).filter(
        lifecycle.EXPIRE_PAUSED.is_possible,
        ~Q(parent__workflow__status=WorkflowStatus.PAUSED),  # true for a root too
        paused_at__lte=NowPlus(-after.total_seconds()),
    )
    rows = list(stale.order_by("pk").values_list("pk", "root_id", SecondsUntil("paused_at"))[:limit])
    return sum(_expire(stale, key, root, _paused_too_long(after, -seconds)) for key, root, seconds in rows)


def _expire(which: models.QuerySet[Workflow], key: UUID, root: UUID, error: Mapping[str, Any] | None = None) -> bool:
    """Expire one workflow if it is still one of ``which``; fail its tree if its rows are damaged."""
    database = which.db

    def change() -> Repaired:
        if not which.filter(pk=key).exists():
            return Repaired(root)
        engine = Engine.on(database)
        engine.advance(cancel_pause.cancel(engine, [key], lifecycle.EXPIRE_WORKFLOW, error))
        engine.complete_workflows(cancel_pause.subtree_statuses(database, [key]))
        return Repaired(root, ended_workflows=1)

    return _under_lock(database, root, change, partial(_fail_tree, database)).ended_workflows > 0


def _paused_too_long(after: timedelta, seconds: float) -> dict[str, Any]:
    age = timedelta(seconds=int(seconds))
    message = f"The workflow was paused for {age}, which is longer than paused_workflow_auto_cancel_after, {after}."
    data = {
        "policy": "paused_workflow_auto_cancel_after",
        "allowed_seconds": after.total_seconds(),
        "paused_seconds": seconds,
    }
    return TaskError(error_code=WorkflowCode.WORKFLOW_EXPIRED, message=message, data=data).as_json()


def _stuck_roots(database: str, limit: int) -> list[UUID]:
    """Return the roots of trees with an unprocessed end, or with a workflow in which no node can end any more."""
    nodes = WorkflowTask.objects.using(database)
    in_progress = nodes.filter(status__in=IN_PROGRESS)
    tasks = Task.objects.using(database).filter(pk=OuterRef("task_id"))
    children = Workflow.objects.using(database).filter(parent=OuterRef("pk"), is_replaced=False)
    ended_task = Q(~Exists(children), task__status__in=sorted(TASK_TERMINAL_STATES))
    lost_task = Q(~Exists(tasks), ~Exists(children), task_id__isnull=False)
    ended_child = Exists(children.filter(status__in=sorted(WORKFLOW_TERMINAL_STATES), open_count=0))
    items = nodes.filter(workflow=OuterRef("workflow"), map_index=OuterRef("task_index"))
    ended_map = Q(kind=NodeKind.MAP) & ~Exists(items.filter(_IS_OPEN))
    unprocessed = in_progress.filter(ended_task | lost_task | ended_child | ended_map).values_list(
        "workflow__root_id", flat=True
    )
    alive = Workflow.objects.using(database).filter(status=WorkflowStatus.RUNNING)
    idle = alive.filter(~Exists(in_progress.filter(workflow=OuterRef("pk")))).values_list("root_id", flat=True)
    return list(dict.fromkeys([*unprocessed.distinct()[:limit], *idle.order_by("pk")[:limit]]))[:limit]


def _repair_tree(database: str, root: UUID) -> Repaired:
    engine = Engine.on(database)
    workflows = Workflow.objects.using(database)
    statuses = cancel_pause.subtree_statuses(database, [root])
    keys = list(statuses)
    nodes = engine.nodes.filter(workflow__in=keys)
    _recount(database, keys)
    resume_workflow.recount_maps(nodes)
    lost = _fail_lost_tasks(engine, nodes)
    ends, ready = node_end.apply_results(
        engine, node_end.with_ended_tasks(nodes).values_list(*node_end.TASK_END_COLUMNS)
    )
    engine.advance([*lost, *ends], ready)
    for key in workflows.filter(pk__in=keys, node_count=0).values_list("pk", flat=True):
        _fail_empty(database, key)
    decided = resume_workflow.decide_waiting(database, keys)
    if stuck := _unstartable(engine.nodes.filter(workflow__in=keys)):
        why = f"nothing can start the nodes that wait: {', '.join(stuck)}."
        logger.error("workflow can't be repaired id=%s error=%s", root, why)
        return _fail_unreadable(database, root, why)
    live = [key for key, status in statuses.items() if status not in WORKFLOW_TERMINAL_STATES]
    ended = workflows.filter(pk__in=live, status__in=sorted(WORKFLOW_TERMINAL_STATES)).count()
    return Repaired(root, len(lost) + len(ends), decided + len(ready), ended)


def _unstartable(nodes: NodeRows) -> list[str]:
    """Return the ids of the first nodes that wait in running workflows of which no node is in progress."""
    in_progress = nodes.filter(workflow=OuterRef("workflow"), status__in=IN_PROGRESS)
    waiting = nodes.filter(_IS_OPEN, ~Exists(in_progress), workflow__status=WorkflowStatus.RUNNING)
    return list(waiting.order_by("workflow", "task_index").values_list("node_id", flat=True)[:_MAX_NAMED])


def _fail_lost_tasks(engine: Engine, nodes: NodeRows) -> list[NodeEnd]:
    """Fail the nodes whose tasks were deleted. A node that has its subworkflow needs no task."""
    tasks = Task.objects.using(nodes.db).filter(pk=OuterRef("task_id"))
    children = Workflow.objects.using(nodes.db).filter(parent=OuterRef("pk"), is_replaced=False)
    lost = nodes.filter(~Exists(tasks), ~Exists(children), status__in=IN_PROGRESS, task_id__isnull=False)
    code = RetrievalCode.RESULT_NOT_AVAILABLE
    ends = read_ends(lost, WorkflowTaskStatus.FAILED)
    return engine.end_nodes(NodeResult.err(end, code, "The task was deleted.") for end in ends)


def _recount(database: str, keys: Collection[UUID]) -> None:
    """Recount the counters of these workflows from their nodes."""
    nodes = WorkflowTask.objects.using(database)
    for key in keys:
        rows = nodes.filter(workflow=key)
        counts = rows.aggregate(
            node_count=Count("pk"),
            open_count=Count("pk", filter=_IS_OPEN),
            failed_index=Min("task_index", filter=IS_UNSUCCESSFUL),
        )
        Workflow.objects.using(database).filter(pk=key).update(**counts)
        resume_workflow.recount(
            rows.filter(status=WorkflowTaskStatus.PENDING, map_index__isnull=True), read_nodes(rows)
        )


def _fail_empty(database: str, key: UUID) -> None:
    error = TaskError[None](error_code=WorkflowCode.WORKFLOW_FAILED, message="The workflow has no nodes.").as_json()
    rows = Workflow.objects.using(database).filter(pk=key)
    kept_until = workflow_kept_until(lifecycle.FAIL_WORKFLOW.target, database)
    lifecycle.FAIL_WORKFLOW.apply(rows, completed_at=Now(), error=error, open_count=0, kept_until=kept_until)
    notify_after_commit(database, [key])
