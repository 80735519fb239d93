"""Resuming workflows: waiting nodes are decided again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace
from uuid import UUID

from django.db.models import Count, Q

from ...core.workflow_status import NodeKind, WorkflowStatus, WorkflowTaskStatus
from ...db.expressions import where_in
from ...models import Workflow, WorkflowTask
from .. import lifecycle
from . import start_nodes
from .advance import Engine
from .cancel_pause import resume_suspended, subtree_statuses
from .rows import OPEN, NodeRows, NodeState, read_nodes


def resume(database: str, workflow: Workflow) -> bool:
    """PAUSED → RUNNING for a workflow and all below it; False if it was not paused, or is below a paused one."""
    statuses = subtree_statuses(database, [workflow.pk])
    paused = [each for each, status in statuses.items() if status == WorkflowStatus.PAUSED]
    was_paused = workflow.pk in paused and _is_parent_running(database, workflow)
    if was_paused:
        lifecycle.RESUME_WORKFLOW.apply(Workflow.objects.using(database).filter(pk__in=paused), paused_at=None)
        decide_waiting(database, paused)
    return was_paused


def _is_parent_running(database: str, workflow: Workflow) -> bool:
    """Whether the workflow above this one runs; True for a root."""
    above = WorkflowTask.objects.using(database).filter(pk=workflow.parent_id or 0)
    return not above.exclude(workflow__status=WorkflowStatus.RUNNING).exists()


def decide_waiting(database: str, keys: Collection[UUID]) -> int:
    """Decide the waiting nodes of these running workflows; return how many started or ended."""
    resume_suspended(database, keys)
    engine = Engine.on(database)
    waiting = engine.nodes.filter(
        lifecycle.ENQUEUE_NODE.is_possible,
        workflow__in=keys,
        workflow__status=WorkflowStatus.RUNNING,
    )
    ready, unreachable = list[int](), list[NodeState]()
    for node in read_nodes(waiting):
        if node.status == WorkflowTaskStatus.READY or node.next_status == WorkflowTaskStatus.READY:
            ready.append(node.pk)
        elif node.next_status == WorkflowTaskStatus.SKIPPED:
            unreachable.append(node)
    running = engine.nodes.filter(workflow__in=keys, kind=NodeKind.MAP, status=WorkflowTaskStatus.RUNNING)
    # A retry reopens a map whose last items have ended after a cancel; a repair recounts maps.
    collected = start_nodes.collect_maps(engine, read_nodes(running.filter(open_deps=0)))
    engine.advance([*collected, *engine.skip_nodes(unreachable)], ready)
    engine.complete_workflows(keys)
    return len(ready) + len(unreachable) + len(collected)


def recount_maps(nodes: NodeRows) -> None:
    """Recount the items of those of these nodes that are running maps."""
    is_open, is_ok = Q(status__in=OPEN), Q(status=WorkflowTaskStatus.COMPLETED)
    for node in read_nodes(nodes.filter(kind=NodeKind.MAP, status=WorkflowTaskStatus.RUNNING)):
        items = WorkflowTask.objects.using(nodes.db).filter(workflow=node.workflow_id, map_index=node.task_index)
        count = items.aggregate(
            open_deps=Count("pk", filter=is_open),
            ok_deps=Count("pk", filter=is_ok),
            failed_deps=Count("pk", filter=~is_ok & ~is_open),
        )
        nodes.filter(pk=node.pk).update(**count)


def recount(waiting: NodeRows, everything: Iterable[NodeState]) -> None:
    """Recount the counters of waiting nodes from the nodes that they wait for."""
    ends = {node.task_index: node for node in everything if node.map_index is None}
    by_change: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    waits_for = dict(waiting.values_list("pk", "waits_for"))
    for node in read_nodes(waiting):
        sources = waits_for[node.pk]
        fresh = replace(node, open_deps=len(sources), ok_deps=0, failed_deps=0, open_ctx=len(node.ctx_from or ()))
        closed = [ends[index] for index in sources if WorkflowTaskStatus(ends[index].status).is_terminal]
        neutral = {each.task_index for each in closed if each.is_neutral}
        counted = fresh.with_ends(
            each.end_as(WorkflowTaskStatus(each.status), is_neutral=each.task_index in neutral) for each in closed
        )
        by_change[counted.open_deps, counted.ok_deps, counted.failed_deps, counted.open_ctx].append(node.pk)
    for (open_deps, ok_deps, failed_deps, open_ctx), keys in by_change.items():
        waiting.filter(where_in(waiting.db, keys)).update(
            open_deps=open_deps, ok_deps=ok_deps, failed_deps=failed_deps, open_ctx=open_ctx
        )
