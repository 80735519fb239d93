"""A turn: what the engine does in one transaction, under the locks of the trees that it concerns.

It remembers what it has read, for nobody else changes it meanwhile. Counters, nodes and workflows that end by what
follows are written together, at the end. So neither statements nor round trips grow with the levels of what happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from ...core.serialization import dumps
from ...core.workflow_status import WorkflowStatus, WorkflowTaskStatus
from .. import lifecycle
from ..codes import WorkflowCode
from . import node_end
from .nodes import NodeResult, Node, NodeRows, Position, NodeEnd
from .queries import EngineQueries, Query

_SKIPPED_MESSAGE: Final = "What it waits for did not complete."
#: Stands among counts of states for those that have not ended.
_OPEN: Final = ""

_SKIPPED_RESULT: Final = dumps(node_end.err_result(WorkflowCode.UPSTREAM_SKIPPED, _SKIPPED_MESSAGE))


@dataclass(slots=True)
class WorkflowState:
    """A workflow, as much of it as it takes to decide what becomes of it."""

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
        """What it has come to, as JSON text."""
        return dumps(self.result if self.status == WorkflowStatus.COMPLETED else self.error)

    @property
    def is_running(self) -> bool:
        """Whether what waits in it may begin."""
        return self.status == WorkflowStatus.RUNNING

    @property
    def required(self) -> set[int]:
        """The nodes that its success policy names."""
        return {index for case in self.success_policy or () for index in case["required"]}


@dataclass(slots=True)
class NodeOutcome:
    """How a node stands, and its result as JSON text."""

    node_id: str
    status: str
    result: str | None


class ParentNode(NamedTuple):
    """A node that has a subworkflow, and has not ended."""

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
        """Return its end."""
        return NodeEnd(self.pk, self.workflow_id, self.task_index, status, self.dependents, self.map_index)


@dataclass(slots=True)
class EngineContext:
    """``enqueued`` are the tasks that were made, each with its queue and whether it is a coroutine's.

    Those that wait at the gates of ``limit_keys`` are not among them. Workers are told, and gates looked at, after the
    commit, unless ``is_quiet``: then who takes the turn does so.

    Of a place in ``places`` there is None if nothing waits there; ``is_whole`` says so of all that are not in it.
    """

    queries: EngineQueries
    caller_notifies: bool = False
    enqueued: dict[UUID, tuple[str, bool]] = field(default_factory=dict)
    limit_keys: set[str] = field(default_factory=set)

    workflows: dict[UUID, WorkflowState] = field(default_factory=dict)
    waiting: dict[Position, Node | None] = field(default_factory=dict)
    has_all_waiting: bool = False
    outcomes: dict[Position, NodeOutcome] = field(default_factory=dict)
    leaves: dict[UUID, list[int]] = field(default_factory=dict)
    status_counts: dict[UUID, Counter[str]] = field(default_factory=dict)
    parents: dict[int, ParentNode | None] = field(default_factory=dict)
    events: dict[UUID, dict[str, str]] = field(default_factory=dict)
    results: dict[Position, tuple[str, bool]] = field(default_factory=dict)
    #: Tasks that have expired as their workflows were stopped, and whose nodes are still to follow.
    expired_tasks: set[UUID] = field(default_factory=set)

    # What is to be written.
    _ended_counts: Counter[UUID] = field(default_factory=Counter)
    _first_failed: dict[UUID, int] = field(default_factory=dict)
    _counters: dict[int, Node] = field(default_factory=dict)
    _left: set[Position] = field(default_factory=set)
    _timed: list[int] = field(default_factory=list)
    _enqueued: dict[str, tuple[Mapping[str, Any], dict[int, UUID]]] = field(default_factory=dict)
    _started: list[int] = field(default_factory=list)
    _results: dict[Position, NodeResult] = field(default_factory=dict)
    _finished: list[WorkflowState] = field(default_factory=list)
    # What is to be asked with the next question, and what is to be done with the rows then.
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
        """What was read counts no more: others may have changed it."""
        for known in (self.workflows, self.waiting, self.outcomes, self.leaves, self.status_counts, self.parents, self.events):
            known.clear()
        self.results.clear()
        self.has_all_waiting = False

    # Writing.

    def flush(self) -> None:
        """Ask what is to be asked, and write what is to be written."""
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
        self._left.clear()
        # Their last nodes are counted by now.
        for transition in (lifecycle.COMPLETE_WORKFLOW, lifecycle.FAIL_WORKFLOW):
            if flows := [flow for flow in self._finished if flow.status == transition.target]:
                self.queries.end_workflows(transition, {flow.key: flow.output for flow in flows})
        self._finished = []

    def keep_waiting(self, nodes: Iterable[Node]) -> None:
        """These wait on, with what they count now."""
        for node in nodes:
            self._counters[node.pk] = self.waiting[node.workflow_id, node.task_index] = node

    def stop_waiting(self, nodes: Iterable[Node]) -> None:
        """These wait no more."""
        for node in nodes:
            self._counters.pop(node.pk, None)
            self.waiting[node.position] = None
            self._left.add(node.position)

    def enqueue(self, kind: str, task_ids: Mapping[int, UUID], changes: Mapping[str, Any]) -> None:
        """PENDING, READY → ENQUEUED with these tasks, whose columns are as ``changes``, the same for all of a kind."""
        self._enqueued.setdefault(kind, (changes, {}))[1].update(task_ids)

    def set_due_times(self, keys: Iterable[int]) -> None:
        """Set when the waits of these nodes are over, unless they say so."""
        self._timed += keys

    def start_nodes(self, nodes: Iterable[Node]) -> None:
        """PENDING, READY → RUNNING."""
        self._started += [node.pk for node in nodes]

    def skip_nodes(self, ends: Sequence[NodeEnd]) -> None:
        """PENDING → SKIPPED, for what they wait for has not completed."""
        self.end_nodes(NodeResult(end, _SKIPPED_RESULT, WorkflowCode.UPSTREAM_SKIPPED) for end in ends)

    def end_nodes(self, endings: Iterable[NodeResult]) -> list[NodeEnd]:
        """End these nodes, as each says; return them."""
        ends: list[NodeEnd] = []
        for one in endings:
            end, place = one.end, one.end.position
            ends.append(end)
            self._results[place] = one
            self.results[place] = (one.result, end.is_neutral)
            if outcome := self.outcomes.get(place):
                outcome.status, outcome.result = end.status, one.result
        return ends

    def end_workflow(self, flow: WorkflowState) -> None:
        """RUNNING → COMPLETED, FAILED, as it says by now (W-50)."""
        self._finished.append(flow)

    def count_ends(self, ends: Iterable[NodeEnd]) -> None:
        """These have ended since the nodes of their workflows were counted."""
        for end in ends:
            if end.workflow_id in self.status_counts and end.map_index is None:
                self.status_counts[end.workflow_id].update({end.status: 1, _OPEN: -1})

    # Reading.

    def fetch(self, *questions: Query | None) -> list[list[Any]]:
        """Return the rows for each of these, in one round trip; none for None."""
        later, self._queued = self._queued, []
        asked = [question for question in questions if question is not None]
        if not (asked or later):
            return [[] for _ in questions]
        answers = iter(self.queries.fetch(*asked, *(question for question, _ in later)))
        found = [[] if question is None else next(answers) for question in questions]
        for (_, do), rows in zip(later, answers, strict=True):
            do(rows)
        return found

    def fetch_later(self, question: Query, do: Callable[[list[Any]], Any]) -> None:
        """Ask this with whatever is asked next, before anything is written, and do this with the rows."""
        self._queued.append((question, do))

    def count_ended(self, counts: Mapping[UUID, int], failed: Mapping[UUID, int], places: Collection[Position]) -> None:
        """Count nodes of these workflows as ended, and know what waits at these places."""
        unknown = {key: count for key, count in counts.items() if key not in self.workflows}
        for key in counts.keys() - unknown.keys():
            self._count_ended(self.workflows[key], counts[key], failed.get(key))
        missing = [] if self.has_all_waiting else [place for place in places if place not in self.waiting]
        flows, waiting = self.fetch(
            self.queries.count_ended_returning(unknown, {key: failed[key] for key in unknown if key in failed}) if unknown else None,
            self.queries.waiting_at(missing) if missing else None,
        )
        self.add_workflows(flows)
        self.waiting |= dict.fromkeys(missing)
        self._add_waiting(waiting)

    def _count_ended(self, flow: WorkflowState, count: int, failed: int | None) -> None:
        flow.open_count -= count
        self._ended_counts[flow.key] += count
        if failed is not None:
            flow.failed_index = failed if flow.failed_index is None else min(failed, flow.failed_index)
            self._first_failed[flow.key] = min(failed, self._first_failed.get(flow.key, failed))

    def add_workflows(self, rows: Iterable[Sequence[Any]]) -> None:
        """These are workflows, where nothing is known of them yet."""
        for row in rows:
            if row[0] not in self.workflows:
                self.workflows[row[0]] = WorkflowState(*row)

    def add_parents(self, rows: Iterable[Sequence[Any]]) -> None:
        """These are nodes that have subworkflows, each with its own workflow."""
        width = len(ParentNode._fields)
        for row in rows:
            parent = ParentNode(*row[:width])
            self.parents.setdefault(parent.pk, parent)
            self.add_workflows([row[width:]])

    def load_workflows(self, keys: Collection[UUID]) -> None:
        """Read these workflows."""
        if unknown := [key for key in keys if key not in self.workflows]:
            (rows,) = self.fetch(self.queries.workflows(unknown))
            self.add_workflows(rows)

    def load_parents(self, keys: Collection[UUID]) -> None:
        """Read the nodes of which these workflows are subworkflows, and so on up to the top."""
        flows = [self.workflows[key] for key in keys if key in self.workflows]
        unknown = [flow.parent_id for flow in flows if flow.parent_id and flow.parent_id not in self.parents]
        if unknown:
            (rows,) = self.fetch(self.queries.parents(unknown))
            self.add_parents(rows)
            self.parents = dict.fromkeys(unknown) | self.parents

    def query_waiting_below(self, places: Collection[Position]) -> Query:
        """Ask for all that waits for what is at these places, and for what is above their workflows, however far."""
        above = [parent for parent in self.parents.values() if parent is not None]
        return self.queries.waiting_below(
            {*places, *((parent.workflow_id, index) for parent in above for index in parent.dependents)}
        )

    def add_all_waiting(self, rows: Iterable[Sequence[Any]]) -> None:
        """These are the rows that :meth:`all_below` asked for."""
        self._add_waiting(rows)
        self.has_all_waiting = True

    def _add_waiting(self, rows: Iterable[Sequence[Any]]) -> None:
        for node in (Node(*row) for row in rows):
            if node.position not in self._left and self.waiting.get(node.position) is None:
                self.waiting[node.position] = node

    def add_outcomes(self, rows: Iterable[Sequence[Any]]) -> None:
        """These are places, and how the nodes there stand, but for ends that are still to be written."""
        for workflow_id, index, *values in rows:
            outcome = self.outcomes[workflow_id, index] = NodeOutcome(*values)
            if one := self._results.get((workflow_id, index)):
                outcome.status, outcome.result = one.end.status, one.result

    def add_status_counts(self, keys: Iterable[UUID], rows: Iterable[tuple[UUID, str, int]]) -> None:
        """These are the numbers of nodes in each state of these workflows, but for ends still to be written."""
        new: dict[UUID, Counter[str]] = {key: Counter() for key in keys}
        for workflow_id, status, count in rows:
            new[workflow_id][status] = count
        self.status_counts |= new
        self.count_ends(one.end for one in self._results.values() if one.end.workflow_id in new)
