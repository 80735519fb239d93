"""The context of the engine: its state during one transaction, in which it holds the locks of the trees.

The engine caches the rows that it has read: its locks keep other transactions from changing them. It collects changes
of counters, nodes and workflows, and writes them together in :meth:`EngineContext.flush`. So neither statements nor
round trips grow with the number of levels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from ...core.workflow_errors import WorkflowCode
from ...core.workflow_status import WorkflowTaskStatus
from ...models.claims import TaskRoute
from .. import lifecycle
from .queries import EngineQueries, Query
from .rows import NodeEnd, NodeOutcome, NodeResult, NodeRows, NodeState, ParentNode, Position, WorkflowState

#: Counts open nodes, among the counts by status.
_OPEN: Final = ""


@dataclass(slots=True)
class Changes:
    """Changes to be written: counters of workflows and nodes, then nodes and workflows with new states."""

    ended_counts: Counter[UUID] = field(default_factory=Counter)
    first_failed: dict[UUID, int] = field(default_factory=dict)
    counters: dict[int, NodeState] = field(default_factory=dict)
    timed: list[int] = field(default_factory=list)
    enqueued: dict[str, tuple[Mapping[str, Any], dict[int, UUID]]] = field(default_factory=dict)
    started: list[int] = field(default_factory=list)
    results: dict[Position, NodeResult] = field(default_factory=dict)
    finished: list[WorkflowState] = field(default_factory=list)


@dataclass(slots=True)
class EngineContext:
    """The state of the engine during one transaction.

    ``enqueued`` are the new tasks, each with its queue and whether it is async. Tasks that are blocked by a limit are
    not among them; ``limit_keys`` are their limits. After the commit the engine notifies workers and releases blocked
    tasks; with ``caller_notifies`` the caller does so.

    ``waiting`` has the waiting node at each position that was read, None if no node waits there. With
    ``has_all_waiting`` no node waits at any other position.
    """

    queries: EngineQueries
    caller_notifies: bool = False
    enqueued: dict[UUID, TaskRoute] = field(default_factory=dict)
    limit_keys: set[str] = field(default_factory=set)

    workflows: dict[UUID, WorkflowState] = field(default_factory=dict)
    waiting: dict[Position, NodeState | None] = field(default_factory=dict)
    has_all_waiting: bool = False
    outcomes: dict[Position, NodeOutcome] = field(default_factory=dict)
    leaves: dict[UUID, list[int]] = field(default_factory=dict)
    status_counts: dict[UUID, Counter[str]] = field(default_factory=dict)
    parents: dict[int, ParentNode | None] = field(default_factory=dict)
    events: dict[UUID, dict[str, str]] = field(default_factory=dict)
    results: dict[Position, tuple[str, bool]] = field(default_factory=dict)
    #: Tasks that expired because their workflows were stopped. Their nodes are still to be ended.
    expired_tasks: set[UUID] = field(default_factory=set)

    _changes: Changes = field(default_factory=Changes)
    # Queries to be sent with the next fetch, each with the function that takes its rows.
    _queued: list[tuple[Query, Callable[[list[Any]], Any]]] = field(default_factory=list)

    @property
    def database(self) -> str:
        """The alias of the database."""
        return self.queries.database

    @property
    def nodes(self) -> NodeRows:
        """All nodes of the database."""
        return self.queries.nodes

    def clear_cache(self) -> None:
        """Clear the cache, since other transactions may have changed the rows."""
        self.workflows.clear()
        self.waiting.clear()
        self.outcomes.clear()
        self.leaves.clear()
        self.status_counts.clear()
        self.parents.clear()
        self.events.clear()
        self.results.clear()
        self.has_all_waiting = False

    # Writing.

    def flush(self) -> None:
        """Send the queued queries, then write the collected changes."""
        self.fetch()
        changes, self._changes = self._changes, Changes()
        if changes.ended_counts:
            self.queries.count_ended(changes.ended_counts, changes.first_failed)
        if changes.counters:
            self.queries.store_counters(changes.counters.values())
        if changes.timed:
            self.queries.set_due_times(changes.timed)
        for kind, (columns, task_ids) in changes.enqueued.items():
            self.queries.enqueue(kind, task_ids, columns)
        if changes.started:
            self.queries.start(changes.started)
        if changes.results:
            self.queries.end(changes.results.values())
        # By now the ends of their last nodes are counted.
        for transition in (lifecycle.COMPLETE_WORKFLOW, lifecycle.FAIL_WORKFLOW):
            if texts := {each.id: each.output for each in changes.finished if each.status == transition.target}:
                self.queries.end_workflows(transition, texts)

    def keep_waiting(self, nodes: Iterable[NodeState]) -> None:
        """Store the counters of nodes that go on waiting."""
        for node in nodes:
            self._changes.counters[node.pk] = self.waiting[node.position] = node

    def stop_waiting(self, nodes: Iterable[NodeState]) -> None:
        """Remove nodes from the waiting ones."""
        for node in nodes:
            self._changes.counters.pop(node.pk, None)
            self.waiting[node.position] = None

    def enqueue(self, kind: str, task_ids: Mapping[int, UUID], changes: Mapping[str, Any]) -> None:
        """PENDING, READY → ENQUEUED with these tasks. ``changes`` are columns, the same for a ``kind``."""
        self._changes.enqueued.setdefault(kind, (changes, {}))[1].update(task_ids)

    def set_due_times(self, keys: Iterable[int]) -> None:
        """Set when the waits of these nodes end, unless they have a fixed time."""
        self._changes.timed += keys

    def start_nodes(self, nodes: Iterable[NodeState]) -> None:
        """PENDING, READY → RUNNING."""
        self._changes.started += [node.pk for node in nodes]

    def end_nodes(self, endings: Iterable[NodeResult]) -> list[NodeEnd]:
        """End nodes with these results; return their ends."""
        ends: list[NodeEnd] = []
        for ending in endings:
            end, position = ending.end, ending.end.position
            ends.append(end)
            self._changes.results[position] = ending
            self.results[position] = (ending.result, end.is_neutral)
            if outcome := self.outcomes.get(position):
                outcome.status, outcome.result = end.status, ending.result
        return ends

    def skip_nodes(self, nodes: Iterable[NodeState]) -> list[NodeEnd]:
        """PENDING → SKIPPED, because the nodes that they wait for did not complete; return their ends."""
        ends = [node.end_as(WorkflowTaskStatus.SKIPPED) for node in nodes]
        message = "The nodes that it waits for did not complete."
        return self.end_nodes(NodeResult.err(end, WorkflowCode.UPSTREAM_SKIPPED, message) for end in ends)

    def end_workflow(self, workflow: WorkflowState) -> None:
        """RUNNING → COMPLETED or FAILED, by the status that the workflow has here."""
        self._changes.finished.append(workflow)

    def count_ends(self, ends: Iterable[NodeEnd]) -> None:
        """Count nodes that have ended since their workflows' nodes were counted by status."""
        for end in ends:
            if end.workflow_id in self.status_counts and end.map_index is None:
                self.status_counts[end.workflow_id].update({end.status: 1, _OPEN: -1})

    # Reading.

    def fetch(self, *queries: Query | None) -> list[list[Any]]:
        """Return the rows of each query, in one round trip; no rows for None."""
        later, self._queued = self._queued, []
        rows = self.queries.fetch(*queries, *(query for query, _ in later)) if later or any(queries) else []
        for (_, do), result_rows in zip(later, rows[len(queries) :], strict=True):
            do(result_rows)
        return rows[: len(queries)] or [[] for _ in queries]

    def fetch_later(self, query: Query, do: Callable[[list[Any]], Any]) -> None:
        """Send this query with the next fetch, before anything is written; ``do`` takes its rows."""
        self._queued.append((query, do))

    def count_ended(
        self, counts: Mapping[UUID, int], failed: Mapping[UUID, int], positions: Collection[Position]
    ) -> None:
        """Count nodes of these workflows as ended, and load the nodes that wait at these positions."""
        unread = {key: count for key, count in counts.items() if key not in self.workflows}
        for key in counts.keys() - unread.keys():
            workflow = self.workflows[key]
            workflow.open_count -= counts[key]
            self._changes.ended_counts[key] += counts[key]
            if (index := failed.get(key)) is not None:
                first = workflow.failed_index
                workflow.failed_index = index if first is None else min(index, first)
                self._changes.first_failed[key] = min(index, self._changes.first_failed.get(key, index))
        missing = [] if self.has_all_waiting else [position for position in positions if position not in self.waiting]
        workflows, waiting = self.fetch(
            self.queries.count_ended_returning(unread, {key: failed[key] for key in unread if key in failed}),
            self.queries.waiting_at(missing),
        )
        self.add_workflows(workflows)
        self.waiting |= {**dict.fromkeys(missing), **_by_position(waiting)}

    def add_workflows(self, rows: Iterable[Sequence[Any]]) -> None:
        """Cache these rows of workflows, unless they are cached."""
        for row in rows:
            if row[0] not in self.workflows:
                self.workflows[row[0]] = WorkflowState(*row)

    def add_parents(self, keys: Iterable[int], rows: Iterable[Sequence[Any]]) -> None:
        """Cache rows of nodes with subworkflows, each followed by the row of its workflow; the others have ended."""
        width = len(ParentNode._fields)
        for row in rows:
            parent = ParentNode(*row[:width])
            self.parents.setdefault(parent.pk, parent)
            self.add_workflows([row[width:]])
        self.parents = dict.fromkeys(keys) | self.parents

    def load_workflows(self, keys: Collection[UUID]) -> None:
        """Load these workflows, unless they are cached."""
        if unread := [key for key in keys if key not in self.workflows]:
            (rows,) = self.fetch(self.queries.workflows(unread))
            self.add_workflows(rows)

    def load_parents(self, keys: Collection[UUID]) -> None:
        """Load the parent nodes of these workflows, up to the root."""
        if unread := self.unread_parents([self.workflows[key] for key in keys if key in self.workflows]):
            (rows,) = self.fetch(self.queries.parents(unread))
            self.add_parents(unread, rows)

    def unread_parents(self, workflows: Iterable[WorkflowState]) -> list[int]:
        """Return the keys of the parent nodes of these workflows that are not cached."""
        keys = (workflow.parent_id for workflow in workflows)
        return [key for key in keys if key is not None and key not in self.parents]

    def query_waiting_below(self, positions: Collection[Position]) -> Query | None:
        """Return the query for all nodes below these positions, and below the parents of their workflows."""
        above = [parent for parent in self.parents.values() if parent is not None]
        return self.queries.waiting_below(
            {*positions, *((parent.workflow_id, index) for parent in above for index in parent.dependents)}
        )

    def add_all_waiting(self, rows: Iterable[Sequence[Any]]) -> None:
        """Cache the rows of :meth:`query_waiting_below`, unless they are cached: nodes may have left since."""
        self.waiting = {**_by_position(rows), **self.waiting}
        self.has_all_waiting = True

    def add_outcomes(self, rows: Iterable[Sequence[Any]]) -> None:
        """Cache the outcomes of nodes, updated by the results that are still to be written."""
        for row in rows:
            outcome = NodeOutcome(*row)
            position = outcome.workflow_id, outcome.task_index
            self.outcomes[position] = outcome
            if ending := self._changes.results.get(position):
                outcome.status, outcome.result = ending.end.status, ending.result

    def add_status_counts(self, keys: Iterable[UUID], rows: Iterable[tuple[UUID, str, int]]) -> None:
        """Cache how many nodes of these workflows have each status, updated by the unwritten ends."""
        new: dict[UUID, Counter[str]] = {key: Counter() for key in keys}
        for workflow_id, status, count in rows:
            new[workflow_id][status] = count
        self.status_counts |= new
        self.count_ends(ending.end for ending in self._changes.results.values() if ending.end.workflow_id in new)


def _by_position(rows: Iterable[Sequence[Any]]) -> dict[Position, NodeState]:
    nodes = [NodeState(*row) for row in rows]
    return {node.position: node for node in nodes}
