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
from .context import Turn
from .nodes import Node, Place, Settled, among, is_item_of, read
from .queries import Phrases, Question

#: Levels for which what waits is read level by level. Of more, all that is below is read at once.
_SHALLOW: Final = 2


@dataclass(slots=True)
class Advance(Turn):
    """Brings the workflows of locked trees up to date."""

    @classmethod
    def on(cls, database: str) -> Self:
        """Return one that tells workers of what it enqueues."""
        return cls(Phrases(database))

    def after_tasks(self, ids: Collection[UUID], *, has_pending: bool = False) -> None:
        """Some tasks of nodes have ended, or wait again; with ``has_pending`` some are known to wait."""
        rows, keys = self.ask(self.phrases.ends(ids), self._left(ids) if has_pending else None)
        ends, ready = node_end.settle(self, rows)
        if not has_pending and len(ends) + len(ready) < len(ids):
            (keys,) = self.ask(self._left(ids))
        if keys:
            some = self.nodes.filter(pk__in=[key for (key,) in keys])
            cancel_pause.abandon(self, some)
            ends += cancel_pause.drop(self, some)
        self.after(ends, ready)

    def _left(self, ids: Collection[UUID]) -> Question:
        return self.phrases.read(cancel_pause.left_over(self.nodes, ids), "pk")

    def after(self, ends: Sequence[Settled], ready: Collection[int] = ()) -> None:
        """These nodes have ended, and these are to begin, where their workflows run."""
        self.flush()
        self.forget()
        nodes = self._that_may_begin(ready)
        self.leave(nodes)  # in the database they wait until that is written
        self._follow([*ends, *start_nodes.begin(self, nodes)])

    def finish(self, keys: Collection[UUID]) -> None:
        """End those of these workflows in which nothing is open, and do what follows."""
        self.flush()
        self.forget()
        self._follow(complete_workflow.finish(self, keys))

    def _follow(self, ends: Sequence[Settled]) -> None:
        level = 0
        while ends:
            level += 1
            by_place = _waited_for(ends)
            if level > _SHALLOW and not self.is_whole:
                self.know_above({key for key, _ in by_place})
                complete_workflow.foresee(self, by_place)
            touched = self._count(ends, by_place)
            self._pause_where_that_is_asked_for(ends)
            begun, skipped = self._promote(by_place)
            done = [key for key in touched if key in self.flows and self.flows[key].open_count == 0]
            self.count([*skipped, *begun])
            finished = complete_workflow.finish(self, done) if done else []
            self.count(finished)
            ends = [*skipped, *begun, *finished]
        self.flush()
        self.follow_expired()

    def follow_expired(self) -> None:
        """End the nodes of the tasks that have expired as their workflows were stopped."""
        if expired := self.expired.copy():
            self.expired.clear()
            self.after_tasks(expired)

    def _that_may_begin(self, keys: Collection[int]) -> list[Node]:
        waiting = self.nodes.filter(lifecycle.ENQUEUE_NODE.is_possible, among(self.database, keys))
        rows = waiting.filter(workflow__status=WorkflowStatus.RUNNING)
        return read(rows) if keys else []

    def _count(self, ends: Sequence[Settled], places: Collection[Place]) -> Collection[UUID]:
        """Count these nodes as ended, and know how their workflows are then, and what waits; return their ids."""
        counts = Counter(end.workflow_id for end in ends)
        failed: dict[UUID, int] = {}
        for end in ends:
            if end.status == WorkflowTaskStatus.FAILED and end.map_index is None:
                failed[end.workflow_id] = min(end.task_index, failed.get(end.workflow_id, end.task_index))
        self.close(counts, failed, places)
        return counts

    def _pause_where_that_is_asked_for(self, ends: Sequence[Settled]) -> None:
        """W-41."""
        failed = {end.workflow_id for end in ends if end.status == WorkflowTaskStatus.FAILED and end.map_index is None}
        flows = [self.flows[key] for key in failed if key in self.flows]
        if asked := [flow.key for flow in flows if flow.is_running and flow.on_error == OnError.PAUSE]:
            self.flush()
            for key in cancel_pause.pause(self, asked):
                if key in self.flows:
                    self.flows[key].status = WorkflowStatus.PAUSED

    def _promote(self, by_place: dict[Place, list[Settled]]) -> tuple[list[Settled], list[Settled]]:
        """Decide the nodes that wait at these places, for these; return those that end as they begin, and the skipped.

        A workflow that is not there any more has none.
        """
        waiting, ready, skipped, collected = list[Node](), list[Node](), list[Node](), list[Node]()
        for place, found in by_place.items():
            node = self.places.get(place)
            if node is None:
                continue
            is_map = node.kind == NodeKind.MAP and node.status == WorkflowTaskStatus.RUNNING
            if is_map:  # after a retry, nodes that it once waited for may end while it runs
                found = [end for end in found if is_item_of(end, node)]
            node = node.after(found)
            verdict = WorkflowTaskStatus.PENDING if is_map else node.verdict
            if is_map and found and node.open_deps == 0:
                collected.append(node)
            elif not self.flows[node.workflow_id].is_running or verdict == WorkflowTaskStatus.PENDING:
                waiting.append(node)
            elif verdict == WorkflowTaskStatus.READY:
                ready.append(node)
            else:
                skipped.append(node)
        self.keep(waiting)
        self.leave([*ready, *skipped, *collected])
        ends = [node.settled(WorkflowTaskStatus.SKIPPED) for node in skipped]
        self.skip(ends)
        return [*start_nodes.begin(self, ready), *start_nodes.collect(self, collected)], ends


def _waited_for(ends: Sequence[Settled]) -> dict[Place, list[Settled]]:
    """These ends by the places of what may wait for them: nodes, or the map of which one is an item."""
    by_place: dict[Place, list[Settled]] = defaultdict(list)
    for end in ends:
        for index in end.dependents if end.map_index is None else (end.map_index,):
            by_place[end.workflow_id, index].append(end)
    return by_place
