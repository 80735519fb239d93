"""Retrying nodes: failed and skipped nodes run again, and their ended workflows go on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db.models import Case, Exists, F, OuterRef, Q, When

from ...core.workflow_status import WORKFLOW_TASK_TERMINAL_STATES, NodeKind, WorkflowStatus, WorkflowTaskStatus
from ...db.now import Now
from ...models import Workflow, WorkflowTask
from .. import lifecycle
from ..error_codes import STOPPED_BY, WorkflowCode
from .cancel_pause import subtree_ids
from .nodes import IN_PROGRESS, NodeRows, NodeState, read_nodes, where_in
from .resume_workflow import decide_waiting, recount, recount_maps

#: The states of a workflow whose failed nodes can be retried.
RETRYABLE: Final = lifecycle.RETRY_WORKFLOW.sources

_ENDED: Final = sorted(WORKFLOW_TASK_TERMINAL_STATES)

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


def retry(database: str, key: UUID, node_id: str | None = None) -> bool:
    """Retry the failed and skipped nodes of a workflow; with ``node_id``, that node and those skipped because of it.

    Completed nodes stay, as do those that their own condition has skipped. Ended workflows above go on too. Returns
    False if there is nothing to retry, if another workflow has the unique key now, or if a workflow above is PAUSED or
    COMPLETED.
    """
    steps = _plan(database, key, node_id)
    if not steps:
        return False
    keys = subtree_ids(database, [steps[-1].workflow.pk])
    if _is_key_taken(database, keys):
        return False
    for step in steps:
        _reopen(database, step.workflow, step.keys, is_whole=step.is_whole)
    decide_waiting(database, keys)
    return True


def has_failed(workflow: Workflow) -> bool:
    """Whether a workflow that does not run, or one below it, has a node to retry."""
    database = str(workflow._state.db)
    if workflow.status not in RETRYABLE:
        return False
    keys = subtree_ids(database, [workflow.pk])
    return _failures(database).filter(workflow__in=keys, workflow__status__in=RETRYABLE).exists()


class _Reopening(NamedTuple):
    """The nodes of one workflow to retry; ``is_whole`` if those of the workflows below are retried too."""

    workflow: Workflow
    keys: set[int]
    is_whole: bool = False


def _plan(database: str, key: UUID, node_id: str | None) -> list[_Reopening]:
    """Return what a retry reopens: a workflow, and those above it that do not run. Nothing if it can't be retried."""
    workflow = Workflow.objects.using(database).filter(pk=key, is_replaced=False).first()
    if workflow is None:
        return []
    again = _keys_of_workflow(database, workflow) if node_id is None else _keys_of_node(database, workflow, node_id)
    if again is None:
        return []
    steps = [_Reopening(workflow, again, is_whole=node_id is None)]
    for node in _ancestors(database, workflow):
        if node.status in IN_PROGRESS and node.workflow.status == WorkflowStatus.RUNNING:
            break
        is_open = node.status in IN_PROGRESS  # its workflow was cancelled, and something below still runs
        again = (
            _stopped_keys(database, node.workflow) if is_open else _keys_of_node(database, node.workflow, node.node_id)
        )
        if again is None or node.workflow.is_replaced or node.workflow.status == WorkflowStatus.PAUSED:
            return []
        steps.append(_Reopening(node.workflow, again))
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


def _stopped_keys(database: str, workflow: Workflow) -> set[int]:
    """Return the nodes that were skipped as the workflow was cancelled or expired: they come back with any other."""
    if workflow.status not in STOPPED_BY:
        return set()
    rows = _failures(database).filter(workflow=workflow, error_code__in=[str(code) for code in STOPPED_BY.values()])
    return set(rows.values_list("pk", flat=True))


def _keys_of_workflow(database: str, workflow: Workflow) -> set[int] | None:
    """Return all nodes of a workflow to retry; None if there is none in it or below it."""
    return _failed_keys(database, workflow) if has_failed(workflow) else None


def _keys_of_node(database: str, workflow: Workflow, node_id: str) -> set[int] | None:
    """Return a node, those skipped because of it, and those that must come back with them; None if it can't be retried.

    A node of a running workflow can be retried while its dependents still wait.
    """
    if workflow.status not in (*RETRYABLE, WorkflowStatus.RUNNING):
        return None
    nodes = WorkflowTask.objects.using(database).filter(workflow=workflow)
    keys = _downstream(read_nodes(_failures(database).filter(workflow=workflow)), nodes.filter(node_id=node_id))
    if not keys or (workflow.status == WorkflowStatus.RUNNING and not _is_undecided_after(read_nodes(nodes), keys)):
        return None
    return keys | _stopped_keys(database, workflow)


def _is_undecided_after(nodes: Sequence[NodeState], keys: set[int]) -> bool:
    """Whether all dependents of these nodes are still undecided."""
    by_index = {node.task_index: node for node in nodes}
    after = (by_index[index] for node in nodes if node.pk in keys for index in node.dependents)
    return all(node.pk in keys or node.status == WorkflowTaskStatus.PENDING for node in after)


def _reopen(database: str, workflow: Workflow, keys: set[int], *, is_whole: bool) -> None:
    """Reopen these nodes of a workflow, and the workflow."""
    workflows = Workflow.objects.using(database)
    nodes = WorkflowTask.objects.using(database).filter(workflow=workflow)
    running = {*_reopen_children(database, workflow, keys, is_whole=is_whole), *_expanded_maps(nodes, keys)}
    items = nodes.filter(where_in(database, keys), map_index__isnull=False)
    lifecycle.RETRY_ITEM.apply(items, **_CLEARED_VALUES)  # first: each applies to what is still FAILED or SKIPPED
    lifecycle.RETRY_RUNNING.apply(nodes.filter(where_in(database, keys & running)), **_CLEARED_VALUES)
    lifecycle.RETRY_NODE.apply(nodes.filter(where_in(database, keys - running)), **_CLEARED_VALUES)
    nodes.exclude(status__in=_ENDED).filter(good_until__lte=Now()).update(good_until=None)
    recount_maps(nodes)
    recount(nodes.filter(status=WorkflowTaskStatus.PENDING), read_nodes(nodes))
    failed = nodes.filter(status=WorkflowTaskStatus.FAILED, map_index__isnull=True).order_by("task_index")
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
    """Reopen the subworkflows of these nodes, and stopped ones of others; return the nodes that have one."""
    tree = Workflow.objects.using(database).filter(root_id=workflow.root_id, depth__gt=0)  # for the partial index
    children = tree.filter(parent__workflow=workflow, is_replaced=False)
    theirs = where_in(database, keys, "parent")
    if workflow.status != WorkflowStatus.RUNNING:
        theirs |= Q(parent__status__in=IN_PROGRESS)
    for child in children.filter(theirs, status__in=RETRYABLE):
        is_included = is_whole or child.parent_id in keys
        again = _failed_keys(database, child) if is_included else _stopped_keys(database, child)
        _reopen(database, child, again, is_whole=is_included)
    return set(children.filter(where_in(database, keys, "parent")).values_list("parent_id", flat=True))


def _expanded_maps(nodes: NodeRows, keys: set[int]) -> set[int]:
    """Return those of these nodes that are maps with items."""
    items = nodes.filter(map_index=OuterRef("task_index"))
    return set(nodes.filter(Exists(items), where_in(nodes.db, keys), kind=NodeKind.MAP).values_list("pk", flat=True))


def _downstream(skipped: Iterable[NodeState], start: NodeRows) -> set[int]:
    """Return the keys of a failed node and of the skipped ones after it."""
    by_index = {node.task_index: node for node in skipped}
    todo = [node for node in read_nodes(start) if node.task_index in by_index]
    # An item is retried with its map, and with the other failed items of that.
    todo += [by_index[node.map_index] for node in todo if node.map_index in by_index]
    found: dict[int, NodeState] = {}
    while todo:
        node = todo.pop()
        if node.pk not in found:
            found[node.pk] = node
            todo += [
                by_index[index]
                for index in node.dependents
                if index in by_index and by_index[index].status == WorkflowTaskStatus.SKIPPED
            ]
    items = {node.pk for node in by_index.values() if node.map_index in {each.task_index for each in found.values()}}
    return set(found) | items
