"""Advancing: everything that follows from the ends of nodes, level by level, in the caller's transaction.

A level costs a number of statements that does not grow with how many nodes it has, nor with how many have ended before
(W-74, P-13). The caller has locked the roots.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final
from uuid import UUID

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Coalesce, Least

from ...expressions import FromMap
from ...models import Workflow, WorkflowTask
from ..codes import WorkflowCode
from ..states import NodeKind, OnError, WorkflowStatus, WorkflowTaskStatus
from . import beginning, ending, finishing, stopping
from .nodes import Node, NodeRows, Settled, read

_COUNTERS: Final = ("open_deps", "ok_deps", "bad_deps", "open_ctx")


@dataclass(slots=True)
class Advance:
    """Brings the workflows of locked trees up to date."""

    database: str

    def after_tasks(self, ids: Collection[UUID]) -> None:
        """Some tasks of nodes have ended, or wait again."""
        stopping.abandon(self.nodes, self.nodes.filter(task_id__in=ids))
        ends, ready = ending.settle(self.nodes, ids)
        self.after(ends, ready)

    def after(self, ends: Sequence[Settled], ready: Collection[int] = ()) -> None:
        """These nodes have ended, and these are to begin."""
        ends = [*ends, *beginning.begin(self.nodes, ready)]
        while ends:
            self._count_in_workflows(ends)
            self._pause_where_that_is_asked_for(ends)
            begun, skipped = self._promote(ends)
            ends = [*skipped, *begun, *finishing.finish(self.database, {end.workflow_id for end in ends})]

    def finish(self, keys: Collection[UUID]) -> None:
        """End those of these workflows in which nothing is open, and do what follows."""
        self.after(finishing.finish(self.database, keys))

    @property
    def nodes(self) -> NodeRows:
        """All nodes of the database."""
        return WorkflowTask.objects.using(self.database).all()

    def _count_in_workflows(self, ends: Sequence[Settled]) -> None:
        counts: dict[UUID, int] = defaultdict(int)
        failed: dict[UUID, int] = {}
        for end in ends:
            counts[end.workflow_id] += 1
            if end.status == WorkflowTaskStatus.FAILED and end.map_index is None:
                failed[end.workflow_id] = min(end.task_index, failed.get(end.workflow_id, end.task_index))
        workflows = Workflow.objects.using(self.database)
        closed = FromMap({key: str(count) for key, count in counts.items()}, models.IntegerField())
        workflows.filter(pk__in=counts).update(open_count=F("open_count") - closed)
        if failed:
            first = FromMap({key: str(index) for key, index in failed.items()}, models.IntegerField())
            workflows.filter(pk__in=failed).update(failed_index=Least(Coalesce("failed_index", first), first))

    def _pause_where_that_is_asked_for(self, ends: Sequence[Settled]) -> None:
        """W-41."""
        failed = {end.workflow_id for end in ends if end.status == WorkflowTaskStatus.FAILED and end.map_index is None}
        if failed:
            asked = Workflow.objects.using(self.database).filter(
                pk__in=failed, status=WorkflowStatus.RUNNING, on_error=OnError.PAUSE
            )
            stopping.pause(self.database, list(asked.values_list("pk", flat=True)))

    def _promote(self, ends: Sequence[Settled]) -> tuple[list[Settled], list[Settled]]:
        """Decide the nodes that wait for these; return those that have ended as they began, and those skipped."""
        by_node: dict[tuple[UUID, int], list[Settled]] = defaultdict(list)
        for end in ends:
            for index in end.dependents if end.map_index is None else (end.map_index,):
                by_node[end.workflow_id, index].append(end)
        if not by_node:
            return [], []
        running = set(
            Workflow.objects.using(self.database)
            .filter(pk__in={key for key, _ in by_node}, status=WorkflowStatus.RUNNING)
            .values_list("pk", flat=True)
        )
        waiting, ready, skipped, collected = list[Node](), list[int](), list[Settled](), list[Node]()
        for node in read(self._at(by_node)):
            node = node.after(by_node[node.workflow_id, node.task_index])
            is_map = node.kind == NodeKind.MAP and node.status == WorkflowTaskStatus.RUNNING
            verdict = WorkflowTaskStatus.PENDING if is_map else node.verdict
            if is_map and node.open_deps == 0:
                collected.append(node)
            elif node.workflow_id not in running or verdict == WorkflowTaskStatus.PENDING:
                waiting.append(node)
            elif verdict == WorkflowTaskStatus.READY:
                ready.append(node.pk)
            else:
                skipped.append(node.settled(WorkflowTaskStatus.SKIPPED))
        self._keep_counters(waiting)
        ending.skip(self.nodes, skipped, WorkflowCode.UPSTREAM_SKIPPED, "What it waits for did not complete.")
        return [*beginning.begin(self.nodes, ready), *beginning.collect(self.nodes, collected)], skipped

    def _at(self, places: Collection[tuple[UUID, int]]) -> NodeRows:
        """The nodes that wait, or run as maps, at these places."""
        by_workflow: dict[UUID, list[int]] = defaultdict(list)
        for workflow_id, index in places:
            by_workflow[workflow_id].append(index)
        there = reduce(or_, (Q(workflow=key, task_index__in=indexes) for key, indexes in by_workflow.items()))
        is_map = Q(kind=NodeKind.MAP, status=WorkflowTaskStatus.RUNNING)
        return self.nodes.filter(there, Q(status=WorkflowTaskStatus.PENDING) | is_map)

    def _keep_counters(self, nodes: Sequence[Node]) -> None:
        if nodes:
            self.nodes.filter(pk__in=[node.pk for node in nodes]).update(
                **{
                    name: FromMap({node.pk: str(getattr(node, name)) for node in nodes}, models.IntegerField())
                    for name in _COUNTERS
                }
            )
