"""Advancing: everything that follows from the ends of nodes, level by level, in the caller's transaction.

A level costs a number of statements that does not grow with how many nodes it has, nor with how many have ended before
(W-74, P-13). After a few levels all that could follow is read at once, so the round trips do not grow with the levels
either. The caller has locked the roots.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Self
from uuid import UUID

from ...core.workflow_status import NodeKind, OnError, WorkflowStatus, WorkflowTaskStatus
from .. import lifecycle
from . import cancel_pause, complete_workflow, node_end, start_nodes
from .context import EngineContext
from .nodes import Node, Position, NodeEnd, where_in, is_item_of, read_nodes
from .queries import EngineQueries, Query

#: Levels for which what waits is read level by level. Of more, all that is below is read at once.
_LEVELS_READ_SINGLY: Final = 2


@dataclass(slots=True)
class Engine(EngineContext):
    """Brings the workflows of locked trees up to date."""

    @classmethod
    def on(cls, database: str) -> Self:
        """Return one that tells workers of what it enqueues."""
        return cls(EngineQueries(database))

    def advance_after_tasks(self, ids: Collection[UUID], *, has_pending: bool = False) -> None:
        """Some tasks of nodes have ended, or wait again; with ``has_pending`` some are known to wait."""
        rows, keys = self.fetch(self.queries.task_ends(ids), self._query_unstarted(ids) if has_pending else None)
        ends, ready = node_end.apply_results(self, rows)
        if not has_pending and len(ends) + len(ready) < len(ids):
            (keys,) = self.fetch(self._query_unstarted(ids))
        if keys:
            some = self.nodes.filter(pk__in=[key for (key,) in keys])
            cancel_pause.return_to_ready(self, some)
            ends += cancel_pause.skip_in_ended(self, some)
        self.advance(ends, ready)

    def _query_unstarted(self, ids: Collection[UUID]) -> Query:
        return self.queries.query(cancel_pause.unstarted_in_stopped(self.nodes, ids), "pk")

    def advance(self, ends: Sequence[NodeEnd], ready: Collection[int] = ()) -> None:
        """These nodes have ended, and these are to begin, where their workflows run."""
        self.flush()
        self.clear_cache()
        nodes = self._read_startable(ready)
        self.stop_waiting(nodes)  # in the database they wait until that is written
        self._advance_levels([*ends, *start_nodes.start(self, nodes)])

    def complete_workflows(self, keys: Collection[UUID]) -> None:
        """End those of these workflows in which nothing is open, and do what follows."""
        self.flush()
        self.clear_cache()
        self._advance_levels(complete_workflow.complete_workflows(self, keys))

    def _advance_levels(self, ends: Sequence[NodeEnd]) -> None:
        level = 0
        while ends:
            level += 1
            by_place = _by_dependent(ends)
            if level > _LEVELS_READ_SINGLY and not self.has_all_waiting:
                self.load_parents({key for key, _ in by_place})
                complete_workflow.preload(self, by_place)
            touched = self._count_level(ends, by_place)
            self._pause_failed(ends)
            begun, skipped = self._decide_waiting(by_place)
            done = [key for key in touched if key in self.workflows and self.workflows[key].open_count == 0]
            self.count_ends([*skipped, *begun])
            finished = complete_workflow.complete_workflows(self, done) if done else []
            self.count_ends(finished)
            ends = [*skipped, *begun, *finished]
        self.flush()
        self.advance_expired()

    def advance_expired(self) -> None:
        """End the nodes of the tasks that have expired as their workflows were stopped."""
        if expired := self.expired_tasks.copy():
            self.expired_tasks.clear()
            self.advance_after_tasks(expired)

    def _read_startable(self, keys: Collection[int]) -> list[Node]:
        waiting = self.nodes.filter(lifecycle.ENQUEUE_NODE.is_possible, where_in(self.database, keys))
        rows = waiting.filter(workflow__status=WorkflowStatus.RUNNING)
        return read_nodes(rows) if keys else []

    def _count_level(self, ends: Sequence[NodeEnd], places: Collection[Position]) -> Collection[UUID]:
        """Count these nodes as ended, and know how their workflows are then, and what waits; return their ids."""
        counts = Counter(end.workflow_id for end in ends)
        failed: dict[UUID, int] = {}
        for end in ends:
            if end.status == WorkflowTaskStatus.FAILED and end.map_index is None:
                failed[end.workflow_id] = min(end.task_index, failed.get(end.workflow_id, end.task_index))
        self.count_ended(counts, failed, places)
        return counts

    def _pause_failed(self, ends: Sequence[NodeEnd]) -> None:
        """W-41."""
        failed = {end.workflow_id for end in ends if end.status == WorkflowTaskStatus.FAILED and end.map_index is None}
        flows = [self.workflows[key] for key in failed if key in self.workflows]
        if asked := [flow.key for flow in flows if flow.is_running and flow.on_error == OnError.PAUSE]:
            self.flush()
            for key in cancel_pause.pause(self, asked):
                if key in self.workflows:
                    self.workflows[key].status = WorkflowStatus.PAUSED

    def _decide_waiting(self, by_place: dict[Position, list[NodeEnd]]) -> tuple[list[NodeEnd], list[NodeEnd]]:
        """Decide the nodes that wait at these places, for these; return those that end as they begin, and the skipped.

        A workflow that is not there any more has none.
        """
        waiting, ready, skipped, collected = list[Node](), list[Node](), list[Node](), list[Node]()
        for place, found in by_place.items():
            node = self.waiting.get(place)
            if node is None:
                continue
            is_map = node.kind == NodeKind.MAP and node.status == WorkflowTaskStatus.RUNNING
            if is_map:  # after a retry, nodes that it once waited for may end while it runs
                found = [end for end in found if is_item_of(end, node)]
            node = node.with_ends(found)
            verdict = WorkflowTaskStatus.PENDING if is_map else node.next_status
            if is_map and found and node.open_deps == 0:
                collected.append(node)
            elif not self.workflows[node.workflow_id].is_running or verdict == WorkflowTaskStatus.PENDING:
                waiting.append(node)
            elif verdict == WorkflowTaskStatus.READY:
                ready.append(node)
            else:
                skipped.append(node)
        self.keep_waiting(waiting)
        self.stop_waiting([*ready, *skipped, *collected])
        ends = [node.end_as(WorkflowTaskStatus.SKIPPED) for node in skipped]
        self.skip_nodes(ends)
        return [*start_nodes.start(self, ready), *start_nodes.collect_maps(self, collected)], ends


def _by_dependent(ends: Sequence[NodeEnd]) -> dict[Position, list[NodeEnd]]:
    """These ends by the places of what may wait for them: nodes, or the map of which one is an item."""
    by_place: dict[Position, list[NodeEnd]] = defaultdict(list)
    for end in ends:
        for index in end.dependents if end.map_index is None else (end.map_index,):
            by_place[end.workflow_id, index].append(end)
    return by_place
