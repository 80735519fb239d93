"""Resuming and retrying: a workflow goes on (W-43, P-06)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final
from uuid import UUID

from django.db.models import F

from ...models import Workflow, WorkflowTask
from ...models.workflow import WorkflowQuerySet
from ..codes import WorkflowCode
from ..states import NodeKind, WorkflowStatus, WorkflowTaskStatus
from . import ending
from .advance import Advance
from .nodes import Node, NodeRows, Settled, read
from .stopping import below

#: The ends of a workflow after which it can go on.
RETRYABLE: Final = (WorkflowStatus.FAILED, WorkflowStatus.CANCELLED, WorkflowStatus.EXPIRED)


def resume(database: str, key: UUID) -> bool:
    """PAUSED → RUNNING for a workflow and all below it; return whether it was paused."""
    workflows = Workflow.objects.using(database)
    keys = below(database, [key])
    was_paused = workflows.filter(pk=key, status=WorkflowStatus.PAUSED).exists()
    paused = list(workflows.filter(pk__in=keys, status=WorkflowStatus.PAUSED).values_list("pk", flat=True))
    if was_paused:
        workflows.filter(pk__in=paused).update(status=WorkflowStatus.RUNNING, paused_at=None)
        reconsider(database, paused)
    return was_paused


def reconsider(database: str, keys: Collection[UUID]) -> int:
    """Decide every node of these running workflows that waits; return how many began or were skipped."""
    advance = Advance.on(database)
    waiting = advance.nodes.filter(
        workflow__in=keys,
        workflow__status=WorkflowStatus.RUNNING,
        status__in=[WorkflowTaskStatus.PENDING, WorkflowTaskStatus.READY],
        map_index__isnull=True,
    )
    ready, skipped = list[int](), list[Settled]()
    for node in read(waiting):
        if node.status == WorkflowTaskStatus.READY or node.verdict == WorkflowTaskStatus.READY:
            ready.append(node.pk)
        elif node.verdict == WorkflowTaskStatus.SKIPPED:
            skipped.append(node.settled(WorkflowTaskStatus.SKIPPED))
    items = advance.nodes.filter(
        workflow__in=keys,
        workflow__status=WorkflowStatus.RUNNING,
        status=WorkflowTaskStatus.READY,
        map_index__isnull=False,
    )
    ready += items.values_list("pk", flat=True)
    ending.skip(advance.nodes, skipped, WorkflowCode.UPSTREAM_SKIPPED, "What it waits for did not complete.")
    advance.after(skipped, ready)
    advance.finish(keys)
    return len(ready) + len(skipped)


def retry(database: str, key: UUID, node_id: str | None = None) -> bool:
    """Run the failed and skipped nodes of an ended workflow again, or one failed node and what was skipped for it.

    Completed ones are kept, as are those that their own condition has skipped. Returns whether there was one; not, if
    another workflow has the unique key now.
    """
    workflows = Workflow.objects.using(database)
    workflow = workflows.filter(pk=key, status__in=RETRYABLE).first()
    if workflow is None or _is_replaced(workflows, workflow) or not _reset(database, workflow, node_id):
        return False
    reconsider(database, below(database, [key]))
    return True


def _is_replaced(workflows: WorkflowQuerySet, workflow: Workflow) -> bool:
    return workflows.holding(workflow.unique_key).exists()


def _reset(database: str, workflow: Workflow, node_id: str | None) -> bool:
    nodes = WorkflowTask.objects.using(database).filter(workflow=workflow)
    ended = [WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED]
    again = nodes.filter(status__in=ended).exclude(error_code=str(WorkflowCode.CONDITION_NOT_MET))
    if node_id is not None:
        again = again.filter(pk__in=_downstream(read(again), nodes.filter(node_id=node_id)))
    keys = set(again.values_list("pk", flat=True))
    if not keys:
        return False
    maps = _reopen_maps(database, workflow, keys)
    children = list(Workflow.objects.using(database).filter(parent__in=keys, status__in=RETRYABLE))
    for child in children:
        _reset(database, child, None)
    running = {child.parent_id for child in children} | maps  # type: ignore[attr-defined]  # the id of a ForeignKey
    cleared = {"task_id": None, "completed_at": None, "started_at": None, "result": None, "error_code": None}
    items = nodes.filter(pk__in=keys, map_index__isnull=False)
    items.update(status=WorkflowTaskStatus.READY, **cleared)
    nodes.filter(pk__in=keys & running).update(status=WorkflowTaskStatus.RUNNING, **cleared)
    nodes.filter(pk__in=keys - running, map_index__isnull=True).update(status=WorkflowTaskStatus.PENDING, **cleared)
    recount(nodes.filter(status=WorkflowTaskStatus.PENDING), read(nodes))
    failed = nodes.filter(status=WorkflowTaskStatus.FAILED, map_index__isnull=True).order_by("task_index")
    Workflow.objects.using(database).filter(pk=workflow.pk).update(
        status=WorkflowStatus.RUNNING,
        open_count=F("open_count") + len(keys),
        failed_index=failed.values_list("task_index", flat=True).first(),
        completed_at=None,
        cancelled_at=None,
        result=None,
        error=None,
    )
    return True


def _reopen_maps(database: str, workflow: Workflow, keys: set[int]) -> set[int]:
    """Return the keys of the maps of which only some items are run again, with their counters set."""
    nodes = WorkflowTask.objects.using(database).filter(workflow=workflow)
    reopened = set()
    for node in read(nodes.filter(pk__in=keys, kind=NodeKind.MAP)):
        items = nodes.filter(map_index=node.task_index)
        if total := items.count():
            # After a cancel some may run still.
            ok_count = items.filter(status=WorkflowTaskStatus.COMPLETED).count()
            nodes.filter(pk=node.pk).update(open_deps=total - ok_count, ok_deps=ok_count, bad_deps=0)
            reopened.add(node.pk)
    return reopened


def _downstream(skipped: Iterable[Node], start: NodeRows) -> set[int]:
    """The keys of a failed node and of the skipped ones that come after it."""
    by_index = {node.task_index: node for node in skipped}
    todo = [node for node in read(start) if node.task_index in by_index]
    # An item is run again with its map, and that with all of them that failed.
    todo += [by_index[node.map_index] for node in todo if node.map_index in by_index]
    found: dict[int, Node] = {}
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


def recount(waiting: NodeRows, everything: Iterable[Node]) -> None:
    """Set the counters of nodes that wait by what has become of those that they wait for."""
    ends = {node.task_index: node for node in everything if node.map_index is None}
    by_change: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    waits_for = dict(waiting.values_list("pk", "waits_for"))
    for node in read(waiting):
        sources = waits_for[node.pk]
        fresh = replace(node, open_deps=len(sources), ok_deps=0, bad_deps=0, open_ctx=len(node.ctx_from or ()))
        closed = [ends[index] for index in sources if WorkflowTaskStatus(ends[index].status).is_terminal]
        neutral = {each.task_index for each in closed if each.is_neutral}
        counted = fresh.after(
            each.settled(WorkflowTaskStatus(each.status), is_neutral=each.task_index in neutral) for each in closed
        )
        by_change[counted.open_deps, counted.ok_deps, counted.bad_deps, counted.open_ctx].append(node.pk)
    for (open_deps, ok_deps, bad_deps, open_ctx), keys in by_change.items():
        waiting.filter(pk__in=keys).update(open_deps=open_deps, ok_deps=ok_deps, bad_deps=bad_deps, open_ctx=open_ctx)
