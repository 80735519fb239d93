"""Advances workflows: applies the ends of nodes, level by level, in the caller's transaction.

A level costs a fixed number of statements, however many nodes it has and however many have ended before. After a few
levels the engine reads everything below at once, so that the round trips do not grow with the levels either. The caller
has locked the root workflows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self
from uuid import UUID

from ...core.workflow_status import NodeKind, OnError, WorkflowStatus, WorkflowTaskStatus
from ...db.expressions import where_in
from .. import lifecycle
from . import cancel_pause, complete_workflow, node_end, start_nodes
from .context import EngineContext
from .queries import EngineQueries, Query
from .rows import NodeEnd, NodeState, Position, is_item_of, read_nodes

#: Up to this level the engine reads the waiting nodes one level at a time; then it reads everything below at once.
_LEVELS_READ_SINGLY: Final = 2


@dataclass(slots=True)
class Engine(EngineContext):
    """Advances the workflows of locked trees."""

    @classmethod
    def on(cls, database: str) -> Self:
        """Return an engine that notifies workers of the tasks that it enqueues."""
        return cls(EngineQueries(database))

    def advance_after_tasks(self, ids: Collection[UUID], *, has_pending: bool = False) -> None:
        """Advance the nodes of these tasks, which have ended or wait for another attempt.

        With ``has_pending`` the caller knows that some of the tasks wait for another attempt.
        """
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
        """Advance after these nodes have ended; start those of the ``ready`` ones whose workflows run."""
        self.flush()
        self.clear_cache()
        nodes = self._read_startable(ready)
        self.stop_waiting(nodes)  # in the database they wait until the flush
        self._advance_levels([*ends, *start_nodes.start(self, nodes)])

    def complete_workflows(self, keys: Collection[UUID]) -> None:
        """End those of these workflows that have no open node, and advance after that."""
        self.flush()
        self.clear_cache()
        self._advance_levels(complete_workflow.complete_workflows(self, keys))

    def _advance_levels(self, ends: Sequence[NodeEnd]) -> None:
        level = 0
        while ends:
            level += 1
            by_position = _by_dependent(ends)
            if level > _LEVELS_READ_SINGLY and not self.has_all_waiting:
                self.load_parents({key for key, _ in by_position})
                complete_workflow.preload(self, by_position)
            counts, failed = Counter(end.workflow_id for end in ends), _first_failed(ends)
            self.count_ended(counts, failed, by_position)
            self._pause(failed)
            started, skipped = self._decide_waiting(by_position)
            self.count_ends([*skipped, *started])
            finished = complete_workflow.complete_workflows(self, [key for key in counts if key in self.workflows])
            self.count_ends(finished)
            ends = [*skipped, *started, *finished]
        self.flush()
        self.advance_expired()

    def advance_expired(self) -> None:
        """End the nodes whose tasks have expired because their workflows were stopped, and advance after that."""
        if expired := self.expired_tasks.copy():
            self.expired_tasks.clear()
            self.advance_after_tasks(expired)

    def _read_startable(self, keys: Collection[int]) -> list[NodeState]:
        waiting = self.nodes.filter(lifecycle.ENQUEUE_NODE.is_possible, where_in(self.database, keys))
        rows = waiting.filter(workflow__status=WorkflowStatus.RUNNING)
        return read_nodes(rows) if keys else []

    def _pause(self, failed: Iterable[UUID]) -> None:
        """Pause those of these workflows, in which a node has failed, that have ``on_error`` PAUSE."""
        workflows = [self.workflows[key] for key in failed if key in self.workflows]
        if to_pause := [each.id for each in workflows if each.is_running and each.on_error == OnError.PAUSE]:
            self.flush()
            for key in cancel_pause.pause(self, to_pause):
                if key in self.workflows:
                    self.workflows[key].status = WorkflowStatus.PAUSED

    def _decide_waiting(self, by_position: dict[Position, list[NodeEnd]]) -> tuple[list[NodeEnd], list[NodeEnd]]:
        """Decide the nodes at these positions, given the ends that they waited for.

        Return the nodes that ended in place of their start, and the skipped ones. A workflow that was deleted has no
        nodes.
        """
        waiting, ready, skipped, collected = list[NodeState](), list[NodeState](), list[NodeState](), list[NodeState]()
        for position, node_ends in by_position.items():
            node = self.waiting.get(position)
            if node is None:
                continue
            is_map = node.kind == NodeKind.MAP and node.status == WorkflowTaskStatus.RUNNING
            if is_map:  # after a retry, upstream nodes may end while the map runs
                node_ends = [end for end in node_ends if is_item_of(end, node)]
            node = node.with_ends(node_ends)
            status = WorkflowTaskStatus.PENDING if is_map else node.next_status
            if is_map and node_ends and node.open_deps == 0:
                collected.append(node)
            elif not self.workflows[node.workflow_id].is_running or status == WorkflowTaskStatus.PENDING:
                waiting.append(node)
            elif status == WorkflowTaskStatus.READY:
                ready.append(node)
            else:
                skipped.append(node)
        self.keep_waiting(waiting)
        self.stop_waiting([*ready, *skipped, *collected])
        ends = self.skip_nodes(skipped)
        return [*start_nodes.start(self, ready), *start_nodes.collect_maps(self, collected)], ends


def _first_failed(ends: Iterable[NodeEnd]) -> dict[UUID, int]:
    """Return the index of the first failed node of each workflow that has one; items of maps do not count."""
    failed: dict[UUID, int] = {}
    for end in ends:
        if end.status == WorkflowTaskStatus.FAILED and end.map_index is None:
            failed[end.workflow_id] = min(end.task_index, failed.get(end.workflow_id, end.task_index))
    return failed


def _by_dependent(ends: Sequence[NodeEnd]) -> dict[Position, list[NodeEnd]]:
    """Group ends by the positions of the nodes that may wait for them; for an item, by that of its map."""
    by_position: dict[Position, list[NodeEnd]] = defaultdict(list)
    for end in ends:
        for index in end.dependents if end.map_index is None else (end.map_index,):
            by_position[end.workflow_id, index].append(end)
    return by_position
