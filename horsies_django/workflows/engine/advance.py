"""Advancing: everything that follows from the ends of nodes, level by level, in the caller's transaction.

A level costs a number of statements that does not grow with how many nodes it has, nor with how many have ended before
(W-74, P-13). The caller has locked the roots.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self
from uuid import UUID

from django.db import models
from django.db.models.functions import Coalesce, Least

from ...expressions import FromMap
from ...models import Workflow
from ..codes import WorkflowCode
from ..states import NodeKind, OnError, WorkflowStatus, WorkflowTaskStatus
from . import beginning, ending, finishing, stopping
from .nodes import Node, Settled, among, is_item_of, read
from .phrases import Phrases
from .turn import Turn

#: Levels of skipped nodes that are gone through one by one; of more, the whole workflow is read instead.
_DEEP: Final = 8

_WAITS: Final = (WorkflowTaskStatus.PENDING, WorkflowTaskStatus.READY)


class _State(NamedTuple):
    status: str
    on_error: str
    open_count: int

    @property
    def is_running(self) -> bool:
        return self.status == WorkflowStatus.RUNNING


#: That of a workflow that somebody has deleted.
_GONE: Final = _State("", "", -1)


@dataclass(slots=True)
class Advance(Turn):
    """Brings the workflows of locked trees up to date."""

    @classmethod
    def on(cls, database: str) -> Self:
        """Return one that tells workers of what it enqueues."""
        return cls(Phrases(database))

    def after_tasks(self, ids: Collection[UUID]) -> None:
        """Some tasks of nodes have ended, or wait again."""
        ends, ready = ending.settle(self, self.phrases.ends(ids))
        if len(ends) + len(ready) < len(ids):
            stopping.abandon(self.nodes, self.nodes.filter(task_id__in=ids))
            ends += stopping.drop(self.nodes, self.nodes.filter(task_id__in=ids))
        self.after(ends, ready)

    def after(self, ends: Sequence[Settled], ready: Collection[int] = ()) -> None:
        """These nodes have ended, and these are to begin, where their workflows run."""
        ends = [*ends, *beginning.begin(self, self._that_may_begin(ready))]
        level, decided = 0, list[Settled]()
        while ends or decided:
            states = self._count([*ends, *decided])
            self._pause_where_that_is_asked_for(ends, states)
            begun, skipped = self._promote(ends, states)
            decided, level = [], level + 1
            if skipped and level > _DEEP:
                decided, also_begun = self._skip_all_below(skipped)
                begun, skipped = [*begun, *also_begun], []
            done = [key for key, state in states.items() if state.open_count == 0]
            ends = [*skipped, *begun, *(finishing.finish(self, done) if done else ())]

    def finish(self, keys: Collection[UUID]) -> None:
        """End those of these workflows in which nothing is open, and do what follows."""
        self.after(finishing.finish(self, keys))

    def _that_may_begin(self, keys: Collection[int]) -> list[Node]:
        rows = self.nodes.filter(among(self.database, keys), status__in=_WAITS, workflow__status=WorkflowStatus.RUNNING)
        return read(rows) if keys else []

    def _count(self, ends: Sequence[Settled]) -> dict[UUID, _State]:
        """Count these nodes as ended, and return how their workflows are then."""
        counts: dict[UUID, int] = defaultdict(int)
        failed: dict[UUID, int] = {}
        for end in ends:
            counts[end.workflow_id] += 1
            if end.status == WorkflowTaskStatus.FAILED and end.map_index is None:
                failed[end.workflow_id] = min(end.task_index, failed.get(end.workflow_id, end.task_index))
        if failed:
            first = FromMap({key: str(index) for key, index in failed.items()}, models.IntegerField())
            workflows = Workflow.objects.using(self.database).filter(pk__in=failed)
            workflows.update(failed_index=Least(Coalesce("failed_index", first), first))
        states = {key: _State(*state) for key, *state in self.phrases.close(counts)}
        return dict.fromkeys(counts, _GONE) | states

    def _pause_where_that_is_asked_for(self, ends: Sequence[Settled], states: dict[UUID, _State]) -> None:
        """W-41."""
        failed = {end.workflow_id for end in ends if end.status == WorkflowTaskStatus.FAILED and end.map_index is None}
        asked = [key for key in failed if states[key].is_running and states[key].on_error == OnError.PAUSE]
        for key in stopping.pause(self.database, asked):
            if key in states:
                states[key] = states[key]._replace(status=WorkflowStatus.PAUSED)

    def _promote(self, ends: Sequence[Settled], states: dict[UUID, _State]) -> tuple[list[Settled], list[Settled]]:
        """Decide the nodes that wait for these; return those that have ended as they began, and those skipped."""
        by_node: dict[tuple[UUID, int], list[Settled]] = defaultdict(list)
        for end in ends:
            for index in end.dependents if end.map_index is None else (end.map_index,):
                by_node[end.workflow_id, index].append(end)
        if not by_node:
            return [], []
        waiting, ready, skipped, collected = list[Node](), list[Node](), list[Settled](), list[Node]()
        for node in self.phrases.waiting_at(by_node):
            found = by_node[node.workflow_id, node.task_index]
            is_map = node.kind == NodeKind.MAP and node.status == WorkflowTaskStatus.RUNNING
            if is_map:  # after a retry, nodes that it once waited for may end while it runs
                found = [end for end in found if is_item_of(end, node)]
            node = node.after(found)
            verdict = WorkflowTaskStatus.PENDING if is_map else node.verdict
            if is_map and found and node.open_deps == 0:
                collected.append(node)
            elif not states[node.workflow_id].is_running or verdict == WorkflowTaskStatus.PENDING:
                waiting.append(node)
            elif verdict == WorkflowTaskStatus.READY:
                ready.append(node)
            else:
                skipped.append(node.settled(WorkflowTaskStatus.SKIPPED))
        self.phrases.keep_counters(waiting)
        self._skip(skipped)
        return [*beginning.begin(self, ready), *beginning.collect(self.nodes, collected)], skipped

    def _skip_all_below(self, skipped: Sequence[Settled]) -> tuple[list[Settled], list[Settled]]:
        """Decide at once, however deep, what waits for nodes that were skipped, and for those skipped with them.

        Return all that are skipped now, and those that have ended as they began.
        """
        waiting = self.nodes.filter(
            workflow__in={end.workflow_id for end in skipped}, status=WorkflowTaskStatus.PENDING, map_index__isnull=True
        )
        nodes = {(node.workflow_id, node.task_index): node for node in read(waiting)}
        touched: dict[tuple[UUID, int], Node] = {}
        every = list(skipped)
        for end in every:  # which grows meanwhile
            for place in ((end.workflow_id, index) for index in end.dependents):
                if place not in nodes:
                    continue
                node = nodes[place] = touched[place] = nodes[place].after([end])
                if node.verdict == WorkflowTaskStatus.SKIPPED:
                    every.append(node.settled(WorkflowTaskStatus.SKIPPED))
                    del nodes[place], touched[place]
        is_ready = {node.pk: node.verdict == WorkflowTaskStatus.READY for node in touched.values()}
        self.phrases.keep_counters([node for node in touched.values() if not is_ready[node.pk]])
        self._skip(every[len(skipped) :])
        return every, beginning.begin(self, [node for node in touched.values() if is_ready[node.pk]])

    def _skip(self, ends: Sequence[Settled]) -> None:
        ending.skip(self.nodes, ends, WorkflowCode.UPSTREAM_SKIPPED, "What it waits for did not complete.")
