"""Retrying nodes: failed and skipped nodes run again, and their ended workflows go on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db.models import Case, Exists, F, OuterRef, Q, When

from ...core.workflow_errors import WorkflowCode
from ...core.workflow_status import NodeKind, WorkflowStatus, WorkflowTaskStatus
from ...db.expressions import where_in
from ...db.now import Now
from ...models import Workflow, WorkflowTask
from .. import lifecycle
from .cancel_pause import subtree_statuses
from .resume_workflow import decide_waiting, recount, recount_maps
from .rows import IN_PROGRESS, IS_UNSUCCESSFUL, OPEN, NodeRows, NodeState, read_nodes

#: The states of a workflow whose failed nodes can be retried.
RETRYABLE: Final = lifecycle.RETRY_WORKFLOW.sources

#: The values of a node that runs again. ``until`` is set anew at its start, unless the node has a fixed time.
_CLEARED_VALUES: Final[dict[str, Any]] = {
    "task_id": None,
    "completed_at": None,
    "started_at": None,
    "result": None,
    "error_code": None,
    "rebuilds": 0,
    "until": Case(When(seconds__isnull=True, event_timeout__isnull=True, then=F("until"))),
}


def retry(database: str, key: UUID, which: Q | None = None) -> int:
    """Retry the failed and skipped nodes of a workflow; with ``which``, only these and those skipped because of them.

    Completed nodes stay, as do those that their own condition has skipped. Ended workflows above go on too. Returns how
    many nodes run again; of ``which``, if given. Returns 0 if there is nothing to retry, if another workflow has the
    unique key now, or if a workflow above is PAUSED or COMPLETED.
    """
    workflow = Workflow.objects.using(database).filter(pk=key, is_replaced=False).first()
    if workflow is None:
        return 0
    if which is None:
        count, again = count_failed(database, [workflow]), _failed_keys(database, workflow)
    else:
        count, again = _keys_of_nodes(database, workflow, which)
    above = _plan_above(database, workflow) if count else None
    if above is None:
        return 0
    steps = [_Reopening(workflow, again, is_whole=which is None), *above]
    keys = subtree_statuses(database, [steps[-1].workflow.pk]).keys()
    if _is_key_taken(database, keys):
        return 0
    for step in steps:
        _reopen(database, step.workflow, step.keys, is_whole=step.is_whole)
    decide_waiting(database, keys)
    return count


def has_failed(workflow: Workflow) -> bool:
    """Whether a workflow that does not run, or one below it, has a node to retry."""
    return _failures_within(str(workflow._state.db), [workflow]).exists()


def count_failed(database: str, workflows: Iterable[Workflow]) -> int:
    """Return how many nodes a retry of these workflows runs again.

    A map counts as its items that run again, and a subworkflow as its nodes that do, unless there are none.
    """
    failures = _failures_within(database, workflows)
    items = failures.filter(workflow=OuterRef("workflow"), map_index=OuterRef("task_index"))
    inner = failures.filter(workflow__parent=OuterRef("pk"), workflow__is_replaced=False)
    outer = Q(Exists(items), kind=NodeKind.MAP) | Q(Exists(inner), kind=NodeKind.SUBWORKFLOW)
    return failures.exclude(outer).count()


def count_failed_in(node: WorkflowTask) -> int:
    """Return how many items of a map, or nodes of a subworkflow, run again with this node; 0 for other nodes."""
    database = str(node._state.db)
    if node.kind == NodeKind.MAP:
        return _failures(database).filter(workflow=node.workflow_id, map_index=node.task_index).count()
    children = Workflow.objects.using(database).filter(parent=node, is_replaced=False)
    return count_failed(database, children) if node.kind == NodeKind.SUBWORKFLOW else 0


def _failures_within(database: str, workflows: Iterable[Workflow]) -> NodeRows:
    """Return the nodes to retry of those workflows that do not run, and of those below them that do not."""
    keys = subtree_statuses(database, [workflow.pk for workflow in workflows if workflow.status in RETRYABLE])
    return _failures(database).filter(workflow__in=keys, workflow__status__in=RETRYABLE)


class _Reopening(NamedTuple):
    """The nodes of one workflow to retry; ``is_whole`` if those of the workflows below are retried too."""

    workflow: Workflow
    keys: set[int]
    is_whole: bool = False


def _plan_above(database: str, workflow: Workflow) -> list[_Reopening] | None:
    """Return what a retry reopens above a workflow: the workflows that do not run. None if one can't be retried."""
    steps: list[_Reopening] = []
    for node in _ancestors(database, workflow):
        above = node.workflow
        is_open = node.status in IN_PROGRESS  # its workflow was cancelled, and something below still runs
        if is_open and above.status == WorkflowStatus.RUNNING:
            break
        count, keys = (1, set[int]()) if is_open else _keys_of_nodes(database, above, Q(pk=node.pk))
        if not count or above.is_replaced or above.status == WorkflowStatus.PAUSED:
            return None
        steps.append(_Reopening(above, keys))
    return steps


def _ancestors(database: str, workflow: Workflow) -> Iterator[WorkflowTask]:
    """Yield the parent nodes of a workflow, up to the root."""
    nodes = WorkflowTask.objects.using(database).select_related("workflow")
    while node := nodes.filter(pk=workflow.parent_id or 0).first():
        yield node
        workflow = node.workflow


def _is_key_taken(database: str, keys: Collection[UUID]) -> bool:
    """Whether a workflow other than these has a unique key that one of them needs."""
    workflows = Workflow.objects.using(database)
    dead = workflows.filter(pk__in=keys, status__in=RETRYABLE)
    wanted = list(dead.values_list("unique_key", flat=True))  # None, of those without one, matches no row
    return workflows.live().filter(unique_key__in=wanted).exclude(pk__in=keys).exists()


def _failures(database: str) -> NodeRows:
    """Return the failed and skipped nodes, but for those that their own conditions have skipped."""
    ended = WorkflowTask.objects.using(database).filter(lifecycle.RETRY_NODE.is_possible)
    return ended.exclude(status=WorkflowTaskStatus.SKIPPED, error_code=str(WorkflowCode.CONDITION_NOT_MET))


def _failed_keys(database: str, workflow: Workflow) -> set[int]:
    return set(_failures(database).filter(workflow=workflow).values_list("pk", flat=True))


def _keys_of_nodes(database: str, workflow: Workflow, which: Q) -> tuple[int, set[int]]:
    """Return how many of these nodes can be retried, and their keys with those that must come back with them.

    A node of a running workflow can be retried while its dependents still wait. An item takes its map along, but no
    other item of it.
    """
    if workflow.status not in (*RETRYABLE, WorkflowStatus.RUNNING):
        return 0, set()
    failures = _failures(database).filter(workflow=workflow)
    failed = {node.task_index: node for node in read_nodes(failures)}
    nodes = WorkflowTask.objects.using(database).filter(workflow=workflow)
    running = {node.task_index: node for node in read_nodes(nodes)} if workflow.status == WorkflowStatus.RUNNING else {}
    count, keys, maps = 0, set[int](), set[int]()
    for node in read_nodes(failures.filter(which)):
        its_map = failed.get(-1 if node.map_index is None else node.map_index)
        again = _downstream(failed, [node, its_map] if its_map else [node])
        if running and not _is_undecided_after(running, again):
            continue
        count += 1
        keys |= again.keys()
        maps |= {each.task_index for each in again.values() if each is not its_map and each.kind == NodeKind.MAP}
    return count, keys | {node.pk for node in failed.values() if node.map_index in maps}


def _is_undecided_after(nodes: Mapping[int, NodeState], again: Mapping[int, NodeState]) -> bool:
    """Whether all dependents of these nodes are still undecided."""
    after = (nodes[index] for node in again.values() for index in node.dependents)
    return all(node.pk in again or node.status == WorkflowTaskStatus.PENDING for node in after)


def _reopen(database: str, workflow: Workflow, keys: set[int], *, is_whole: bool) -> None:
    """Reopen these nodes of a workflow, and the workflow."""
    workflows = Workflow.objects.using(database)
    nodes = WorkflowTask.objects.using(database).filter(workflow=workflow)
    running = {*_reopen_children(database, workflow, keys, is_whole=is_whole), *_expanded_maps(nodes, keys)}
    items = nodes.filter(where_in(database, keys), map_index__isnull=False)
    lifecycle.RETRY_ITEM.apply(items, **_CLEARED_VALUES)  # first: each applies to what is still FAILED or SKIPPED
    lifecycle.RETRY_RUNNING.apply(nodes.filter(where_in(database, keys & running)), **_CLEARED_VALUES)
    lifecycle.RETRY_NODE.apply(nodes.filter(where_in(database, keys - running)), **_CLEARED_VALUES)
    nodes.filter(status__in=OPEN, good_until__lte=Now()).update(good_until=None)
    recount_maps(nodes)
    recount(nodes.filter(status=WorkflowTaskStatus.PENDING), read_nodes(nodes))
    failed = nodes.filter(IS_UNSUCCESSFUL).order_by("task_index")
    may_run = lifecycle.RETRY_WORKFLOW.is_possible | Q(status=lifecycle.RETRY_WORKFLOW.target)  # it may run already
    workflows.filter(may_run, pk=workflow.pk).update(
        status=lifecycle.RETRY_WORKFLOW.target,
        open_count=F("open_count") + len(keys),
        failed_index=failed.values_list("task_index", flat=True).first(),
        good_until=Case(When(good_until__gt=Now(), then=F("good_until"))),
        paused_at=None,
        completed_at=None,
        cancelled_at=None,
        kept_until=None,
        result=None,
        error=None,
    )


def _reopen_children(database: str, workflow: Workflow, keys: set[int], *, is_whole: bool) -> set[int]:
    """Reopen the subworkflows of these nodes, continue those of other open nodes; return the nodes that have one."""
    tree = Workflow.objects.using(database).filter(root_id=workflow.root_id, depth__gt=0)  # for the partial index
    children = tree.filter(parent__workflow=workflow, is_replaced=False)
    theirs = where_in(database, keys, "parent")
    if workflow.status != WorkflowStatus.RUNNING:
        theirs |= Q(parent__status__in=IN_PROGRESS)
    for child in children.filter(theirs, status__in=RETRYABLE):
        is_included = is_whole or child.parent_id in keys
        again = _failed_keys(database, child) if is_included else set[int]()
        _reopen(database, child, again, is_whole=is_included)
    return set(children.filter(where_in(database, keys, "parent")).values_list("parent_id", flat=True))


def _expanded_maps(nodes: NodeRows, keys: set[int]) -> set[int]:
    """Return those of these nodes that are maps with items."""
    items = nodes.filter(map_index=OuterRef("task_index"))
    return set(nodes.filter(Exists(items), where_in(nodes.db, keys), kind=NodeKind.MAP).values_list("pk", flat=True))


def _downstream(failed: Mapping[int, NodeState], todo: list[NodeState]) -> dict[int, NodeState]:
    """Return these nodes and the skipped ones after them, by key; ``failed`` are the failed and skipped nodes."""
    again: dict[int, NodeState] = {}
    while todo:
        node = todo.pop()
        if node.pk not in again:
            again[node.pk] = node
            after = (failed[index] for index in node.dependents if index in failed)
            todo += [each for each in after if each.status == WorkflowTaskStatus.SKIPPED]
    return again
