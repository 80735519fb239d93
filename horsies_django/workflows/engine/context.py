"""The context of the engine: its state during one transaction, in which it holds the locks of the trees.

The engine caches the rows that it has read: its locks keep other transactions from changing them. It collects changes
of counters, nodes and workflows, and writes them together in :meth:`EngineContext.flush`. So neither statements nor
round trips grow with the number of levels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from ...core.serialization import dumps
from ...core.workflow_status import WorkflowStatus, WorkflowTaskStatus
from ...models.claims import TaskRoute
from .. import lifecycle
from ..error_codes import WorkflowCode
from . import node_end
from .nodes import NodeEnd, NodeResult, NodeRows, NodeState, Position
from .queries import EngineQueries, Query

_SKIPPED_MESSAGE: Final = "The nodes that it waits for did not complete."
#: Counts open nodes, among the counts by status.
_OPEN: Final = ""

_SKIPPED_RESULT: Final = dumps(node_end.err_result(WorkflowCode.UPSTREAM_SKIPPED, _SKIPPED_MESSAGE))


@dataclass(slots=True)
class WorkflowState:
    """The columns of a workflow that the engine decides by."""

    key: UUID
    status: str
    on_error: str
    node_count: int
    open_count: int
    failed_index: int | None
    output_index: int | None
    parent_id: int | None
    success_policy: Sequence[Mapping[str, Any]] | None
    name: str
    error: Mapping[str, Any] | None
    result: Any = None

    @property
    def output(self) -> str:
        """Its result or error, as JSON text."""
        return dumps(self.result if self.status == WorkflowStatus.COMPLETED else self.error)

    @property
    def is_running(self) -> bool:
        """Whether waiting nodes may start."""
        return self.status == WorkflowStatus.RUNNING

    @property
    def required(self) -> set[int]:
        """The indexes of the nodes that its success policy names."""
        return {index for case in self.success_policy or () for index in case["required"]}


@dataclass(slots=True)
class NodeOutcome:
    """The status of a node, and its result as JSON text."""

    node_id: str
    status: str
    result: str | None


class ParentNode(NamedTuple):
    """An open node that has a subworkflow."""

    pk: int
    workflow_id: UUID
    task_index: int
    dependents: Sequence[int]
    map_index: int | None
    node_id: str
    queue_name: str
    retry_policy: Any
    task_id: UUID | None
    rebuilds: int

    def end_as(self, status: WorkflowTaskStatus) -> NodeEnd:
        """Return its end with this status."""
        return NodeEnd(self.pk, self.workflow_id, self.task_index, status, self.dependents, self.map_index)


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

    # Changes to be written.
    _ended_counts: Counter[UUID] = field(default_factory=Counter)
    _first_failed: dict[UUID, int] = field(default_factory=dict)
    _counters: dict[int, NodeState] = field(default_factory=dict)
    _timed: list[int] = field(default_factory=list)
    _enqueued: dict[str, tuple[Mapping[str, Any], dict[int, UUID]]] = field(default_factory=dict)
    _started: list[int] = field(default_factory=list)
    _results: dict[Position, NodeResult] = field(default_factory=dict)
    _finished: list[WorkflowState] = field(default_factory=list)
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
        for known in (
            self.workflows,
            self.waiting,
            self.outcomes,
            self.leaves,
            self.status_counts,
            self.parents,
            self.events,
        ):
            known.clear()
        self.results.clear()
        self.has_all_waiting = False

    # Writing.

    def flush(self) -> None:
        """Send the queued queries, then write the collected changes."""
        self.fetch()
        if self._ended_counts:
            self.queries.count_ended(self._ended_counts, self._first_failed)
            self._ended_counts, self._first_failed = Counter(), {}
        if self._counters:
            self.queries.store_counters(list(self._counters.values()))
            self._counters = {}
        if self._timed:
            self.queries.set_due_times(self._timed)
            self._timed = []
        for kind, (changes, task_ids) in self._enqueued.items():
            self.queries.enqueue(kind, task_ids, changes)
        self._enqueued = {}
        if self._started:
            self.queries.start(self._started)
            self._started = []
        if self._results:
            self.queries.end(list(self._results.values()))
            self._results = {}
        # By now the ends of their last nodes are counted.
        for transition in (lifecycle.COMPLETE_WORKFLOW, lifecycle.FAIL_WORKFLOW):
            if workflows := [workflow for workflow in self._finished if workflow.status == transition.target]:
                self.queries.end_workflows(transition, {workflow.key: workflow.output for workflow in workflows})
        self._finished = []

    def keep_waiting(self, nodes: Iterable[NodeState]) -> None:
        """Store the counters of nodes that go on waiting."""
        for node in nodes:
            self._counters[node.pk] = self.waiting[node.workflow_id, node.task_index] = node

    def stop_waiting(self, nodes: Iterable[NodeState]) -> None:
        """Remove nodes from the waiting ones."""
        for node in nodes:
            self._counters.pop(node.pk, None)
            self.waiting[node.position] = None

    def enqueue(self, kind: str, task_ids: Mapping[int, UUID], changes: Mapping[str, Any]) -> None:
        """PENDING, READY → ENQUEUED with these tasks. ``changes`` are columns, the same for a ``kind``."""
        self._enqueued.setdefault(kind, (changes, {}))[1].update(task_ids)

    def set_due_times(self, keys: Iterable[int]) -> None:
        """Set when the waits of these nodes end, unless they have a fixed time."""
        self._timed += keys

    def start_nodes(self, nodes: Iterable[NodeState]) -> None:
        """PENDING, READY → RUNNING."""
        self._started += [node.pk for node in nodes]

    def skip_nodes(self, ends: Sequence[NodeEnd]) -> None:
        """PENDING → SKIPPED, because the nodes that they wait for did not complete."""
        self.end_nodes(NodeResult(end, _SKIPPED_RESULT, WorkflowCode.UPSTREAM_SKIPPED) for end in ends)

    def end_nodes(self, endings: Iterable[NodeResult]) -> list[NodeEnd]:
        """End nodes with these results; return their ends."""
        ends: list[NodeEnd] = []
        for one in endings:
            end, position = one.end, one.end.position
            ends.append(end)
            self._results[position] = one
            self.results[position] = (one.result, end.is_neutral)
            if outcome := self.outcomes.get(position):
                outcome.status, outcome.result = end.status, one.result
        return ends

    def end_workflow(self, workflow: WorkflowState) -> None:
        """RUNNING → COMPLETED or FAILED, by the status that the workflow has here."""
        self._finished.append(workflow)

    def count_ends(self, ends: Iterable[NodeEnd]) -> None:
        """Count nodes that have ended since their workflows' nodes were counted by status."""
        for end in ends:
            if end.workflow_id in self.status_counts and end.map_index is None:
                self.status_counts[end.workflow_id].update({end.status: 1, _OPEN: -1})

    # Reading.

    def fetch(self, *queries: Query | None) -> list[list[Any]]:
        """Return the rows of each query, in one round trip; no rows for None."""
        later, self._queued = self._queued, []
        sent = [query for query in queries if query is not None]
        if not (sent or later):
            return [[] for _ in queries]
        results = iter(self.queries.fetch(*sent, *(query for query, _ in later)))
        found = [[] if query is None else next(results) for query in queries]
        for (_, do), rows in zip(later, results, strict=True):
            do(rows)
        return found

    def fetch_later(self, query: Query, do: Callable[[list[Any]], Any]) -> None:
        """Send this query with the next fetch, before anything is written; ``do`` takes its rows."""
        self._queued.append((query, do))

    def count_ended(
        self, counts: Mapping[UUID, int], failed: Mapping[UUID, int], positions: Collection[Position]
    ) -> None:
        """Count nodes of these workflows as ended, and load the nodes that wait at these positions."""
        unknown = {key: count for key, count in counts.items() if key not in self.workflows}
        for key in counts.keys() - unknown.keys():
            self._count_ended(self.workflows[key], counts[key], failed.get(key))
        missing = [] if self.has_all_waiting else [position for position in positions if position not in self.waiting]
        workflows, waiting = self.fetch(
            self.queries.count_ended_returning(unknown, {key: failed[key] for key in unknown if key in failed})
            if unknown
            else None,
            self.queries.waiting_at(missing) if missing else None,
        )
        self.add_workflows(workflows)
        self.waiting |= {**dict.fromkeys(missing), **_by_position(waiting)}

    def _count_ended(self, workflow: WorkflowState, count: int, failed: int | None) -> None:
        workflow.open_count -= count
        self._ended_counts[workflow.key] += count
        if failed is not None:
            workflow.failed_index = failed if workflow.failed_index is None else min(failed, workflow.failed_index)
            self._first_failed[workflow.key] = min(failed, self._first_failed.get(workflow.key, failed))

    def add_workflows(self, rows: Iterable[Sequence[Any]]) -> None:
        """Cache these rows of workflows, unless they are cached."""
        for row in rows:
            if row[0] not in self.workflows:
                self.workflows[row[0]] = WorkflowState(*row)

    def add_parents(self, rows: Iterable[Sequence[Any]]) -> None:
        """Cache these rows of nodes with subworkflows, each followed by the row of its workflow."""
        width = len(ParentNode._fields)
        for row in rows:
            parent = ParentNode(*row[:width])
            self.parents.setdefault(parent.pk, parent)
            self.add_workflows([row[width:]])

    def load_workflows(self, keys: Collection[UUID]) -> None:
        """Load these workflows, unless they are cached."""
        if unknown := [key for key in keys if key not in self.workflows]:
            (rows,) = self.fetch(self.queries.workflows(unknown))
            self.add_workflows(rows)

    def load_parents(self, keys: Collection[UUID]) -> None:
        """Load the parent nodes of these workflows, up to the root."""
        workflows = [self.workflows[key] for key in keys if key in self.workflows]
        unknown = [
            workflow.parent_id
            for workflow in workflows
            if workflow.parent_id and workflow.parent_id not in self.parents
        ]
        if unknown:
            (rows,) = self.fetch(self.queries.parents(unknown))
            self.add_parents(rows)
            self.parents = dict.fromkeys(unknown) | self.parents

    def query_waiting_below(self, positions: Collection[Position]) -> Query:
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
        for workflow_id, index, *values in rows:
            outcome = self.outcomes[workflow_id, index] = NodeOutcome(*values)
            if one := self._results.get((workflow_id, index)):
                outcome.status, outcome.result = one.end.status, one.result

    def add_status_counts(self, keys: Iterable[UUID], rows: Iterable[tuple[UUID, str, int]]) -> None:
        """Cache how many nodes of these workflows have each status, updated by the unwritten ends."""
        new: dict[UUID, Counter[str]] = {key: Counter() for key in keys}
        for workflow_id, status, count in rows:
            new[workflow_id][status] = count
        self.status_counts |= new
        self.count_ends(one.end for one in self._results.values() if one.end.workflow_id in new)


def _by_position(rows: Iterable[Sequence[Any]]) -> dict[Position, NodeState]:
    nodes = [NodeState(*row) for row in rows]
    return {node.position: node for node in nodes}
