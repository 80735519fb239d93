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
from .nodes import Ending, Node, NodeRows, Place, Settled
from .queries import Phrases, Question

_SKIPPED: Final = "What it waits for did not complete."
#: Stands among counts of states for those that have not ended.
_OPEN: Final = ""

_IS_SKIPPED: Final = dumps(node_end.err(WorkflowCode.UPSTREAM_SKIPPED, _SKIPPED))


@dataclass(slots=True)
class Flow:
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
    def text(self) -> str:
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
class Outcome:
    """How a node stands, and its result as JSON text."""

    node_id: str
    status: str
    text: str | None


class Parent(NamedTuple):
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

    def settled(self, status: WorkflowTaskStatus) -> Settled:
        """Return its end."""
        return Settled(self.pk, self.workflow_id, self.task_index, status, self.dependents, self.map_index)


@dataclass(slots=True)
class Turn:
    """``enqueued`` are the tasks that were made, each with its queue and whether it is a coroutine's.

    Those that wait at the gates of ``limit_keys`` are not among them. Workers are told, and gates looked at, after the
    commit, unless ``is_quiet``: then who takes the turn does so.

    Of a place in ``places`` there is None if nothing waits there; ``is_whole`` says so of all that are not in it.
    """

    phrases: Phrases
    is_quiet: bool = False
    enqueued: dict[UUID, tuple[str, bool]] = field(default_factory=dict)
    limit_keys: set[str] = field(default_factory=set)

    flows: dict[UUID, Flow] = field(default_factory=dict)
    places: dict[Place, Node | None] = field(default_factory=dict)
    is_whole: bool = False
    outcomes: dict[Place, Outcome] = field(default_factory=dict)
    leaves: dict[UUID, list[int]] = field(default_factory=dict)
    counts: dict[UUID, Counter[str]] = field(default_factory=dict)
    parents: dict[int, Parent | None] = field(default_factory=dict)
    events: dict[UUID, dict[str, str]] = field(default_factory=dict)
    results: dict[Place, tuple[str, bool]] = field(default_factory=dict)
    #: Tasks that have expired as their workflows were stopped, and whose nodes are still to follow.
    expired: set[UUID] = field(default_factory=set)

    # What is to be written.
    _closed: Counter[UUID] = field(default_factory=Counter)
    _failed: dict[UUID, int] = field(default_factory=dict)
    _kept: dict[int, Node] = field(default_factory=dict)
    _gone: set[Place] = field(default_factory=set)
    _woken: list[int] = field(default_factory=list)
    _enqueued: dict[str, tuple[Mapping[str, Any], dict[int, UUID]]] = field(default_factory=dict)
    _begun: list[int] = field(default_factory=list)
    _ended: dict[Place, Ending] = field(default_factory=dict)
    _finished: list[Flow] = field(default_factory=list)
    # What is to be asked with the next question, and what is to be done with the rows then.
    _later: list[tuple[Question, Callable[[list[Any]], Any]]] = field(default_factory=list)

    @property
    def database(self) -> str:
        """The alias of the database."""
        return self.phrases.database

    @property
    def nodes(self) -> NodeRows:
        """All nodes of the database."""
        return self.phrases.nodes

    def forget(self) -> None:
        """What was read counts no more: others may have changed it."""
        for known in (self.flows, self.places, self.outcomes, self.leaves, self.counts, self.parents, self.events):
            known.clear()
        self.results.clear()
        self.is_whole = False

    # Writing.

    def flush(self) -> None:
        """Ask what is to be asked, and write what is to be written."""
        self.ask()
        if self._closed:
            self.phrases.close(self._closed, self._failed)
            self._closed, self._failed = Counter(), {}
        if self._kept:
            self.phrases.keep_counters(list(self._kept.values()))
            self._kept = {}
        if self._woken:
            self.phrases.set_times(self._woken)
            self._woken = []
        for kind, (changes, task_ids) in self._enqueued.items():
            self.phrases.enqueue(kind, task_ids, changes)
        self._enqueued = {}
        if self._begun:
            self.phrases.start(self._begun)
            self._begun = []
        if self._ended:
            self.phrases.end(list(self._ended.values()))
            self._ended = {}
        self._gone.clear()
        # Their last nodes are counted by now.
        for transition in (lifecycle.COMPLETE_WORKFLOW, lifecycle.FAIL_WORKFLOW):
            if flows := [flow for flow in self._finished if flow.status == transition.target]:
                self.phrases.finish(transition, {flow.key: flow.text for flow in flows})
        self._finished = []

    def keep(self, nodes: Iterable[Node]) -> None:
        """These wait on, with what they count now."""
        for node in nodes:
            self._kept[node.pk] = self.places[node.workflow_id, node.task_index] = node

    def leave(self, nodes: Iterable[Node]) -> None:
        """These wait no more."""
        for node in nodes:
            self._kept.pop(node.pk, None)
            self.places[node.place] = None
            self._gone.add(node.place)

    def enqueue(self, kind: str, task_ids: Mapping[int, UUID], changes: Mapping[str, Any]) -> None:
        """PENDING, READY → ENQUEUED with these tasks, whose columns are as ``changes``, the same for all of a kind."""
        self._enqueued.setdefault(kind, (changes, {}))[1].update(task_ids)

    def set_times(self, keys: Iterable[int]) -> None:
        """Set when the waits of these nodes are over, unless they say so."""
        self._woken += keys

    def start(self, nodes: Iterable[Node]) -> None:
        """PENDING, READY → RUNNING."""
        self._begun += [node.pk for node in nodes]

    def skip(self, ends: Sequence[Settled]) -> None:
        """PENDING → SKIPPED, for what they wait for has not completed."""
        self.end(Ending(end, _IS_SKIPPED, WorkflowCode.UPSTREAM_SKIPPED) for end in ends)

    def end(self, endings: Iterable[Ending]) -> list[Settled]:
        """End these nodes, as each says; return them."""
        ends: list[Settled] = []
        for one in endings:
            end, place = one.end, one.end.place
            ends.append(end)
            self._ended[place] = one
            self.results[place] = (one.text, end.is_neutral)
            if outcome := self.outcomes.get(place):
                outcome.status, outcome.text = end.status, one.text
        return ends

    def store(self, flow: Flow) -> None:
        """RUNNING → COMPLETED, FAILED, as it says by now (W-50)."""
        self._finished.append(flow)

    def count(self, ends: Iterable[Settled]) -> None:
        """These have ended since the nodes of their workflows were counted."""
        for end in ends:
            if end.workflow_id in self.counts and end.map_index is None:
                self.counts[end.workflow_id].update({end.status: 1, _OPEN: -1})

    # Reading.

    def ask(self, *questions: Question | None) -> list[list[Any]]:
        """Return the rows for each of these, in one round trip; none for None."""
        later, self._later = self._later, []
        asked = [question for question in questions if question is not None]
        if not (asked or later):
            return [[] for _ in questions]
        answers = iter(self.phrases.ask(*asked, *(question for question, _ in later)))
        found = [[] if question is None else next(answers) for question in questions]
        for (_, do), rows in zip(later, answers, strict=True):
            do(rows)
        return found

    def ask_later(self, question: Question, do: Callable[[list[Any]], Any]) -> None:
        """Ask this with whatever is asked next, before anything is written, and do this with the rows."""
        self._later.append((question, do))

    def close(self, counts: Mapping[UUID, int], failed: Mapping[UUID, int], places: Collection[Place]) -> None:
        """Count nodes of these workflows as ended, and know what waits at these places."""
        unknown = {key: count for key, count in counts.items() if key not in self.flows}
        for key in counts.keys() - unknown.keys():
            self._close(self.flows[key], counts[key], failed.get(key))
        missing = [] if self.is_whole else [place for place in places if place not in self.places]
        flows, waiting = self.ask(
            self.phrases.closed(unknown, {key: failed[key] for key in unknown if key in failed}) if unknown else None,
            self.phrases.waiting_at(missing) if missing else None,
        )
        self.learn(flows)
        self.places |= dict.fromkeys(missing)
        self._place(waiting)

    def _close(self, flow: Flow, count: int, failed: int | None) -> None:
        flow.open_count -= count
        self._closed[flow.key] += count
        if failed is not None:
            flow.failed_index = failed if flow.failed_index is None else min(failed, flow.failed_index)
            self._failed[flow.key] = min(failed, self._failed.get(flow.key, failed))

    def learn(self, rows: Iterable[Sequence[Any]]) -> None:
        """These are workflows, where nothing is known of them yet."""
        for row in rows:
            if row[0] not in self.flows:
                self.flows[row[0]] = Flow(*row)

    def adopt(self, rows: Iterable[Sequence[Any]]) -> None:
        """These are nodes that have subworkflows, each with its own workflow."""
        width = len(Parent._fields)
        for row in rows:
            parent = Parent(*row[:width])
            self.parents.setdefault(parent.pk, parent)
            self.learn([row[width:]])

    def know_flows(self, keys: Collection[UUID]) -> None:
        """Read these workflows."""
        if unknown := [key for key in keys if key not in self.flows]:
            (rows,) = self.ask(self.phrases.flows(unknown))
            self.learn(rows)

    def know_above(self, keys: Collection[UUID]) -> None:
        """Read the nodes of which these workflows are subworkflows, and so on up to the top."""
        flows = [self.flows[key] for key in keys if key in self.flows]
        unknown = [flow.parent_id for flow in flows if flow.parent_id and flow.parent_id not in self.parents]
        if unknown:
            (rows,) = self.ask(self.phrases.parents(unknown))
            self.adopt(rows)
            self.parents = dict.fromkeys(unknown) | self.parents

    def all_below(self, places: Collection[Place]) -> Question:
        """Ask for all that waits for what is at these places, and for what is above their workflows, however far."""
        above = [parent for parent in self.parents.values() if parent is not None]
        return self.phrases.waiting_below(
            {*places, *((parent.workflow_id, index) for parent in above for index in parent.dependents)}
        )

    def know_all_below(self, rows: Iterable[Sequence[Any]]) -> None:
        """These are the rows that :meth:`all_below` asked for."""
        self._place(rows)
        self.is_whole = True

    def _place(self, rows: Iterable[Sequence[Any]]) -> None:
        for node in (Node(*row) for row in rows):
            if node.place not in self._gone and self.places.get(node.place) is None:
                self.places[node.place] = node

    def know_outcomes(self, rows: Iterable[Sequence[Any]]) -> None:
        """These are places, and how the nodes there stand, but for ends that are still to be written."""
        for workflow_id, index, *values in rows:
            outcome = self.outcomes[workflow_id, index] = Outcome(*values)
            if one := self._ended.get((workflow_id, index)):
                outcome.status, outcome.text = one.end.status, one.text

    def know_counts(self, keys: Iterable[UUID], rows: Iterable[tuple[UUID, str, int]]) -> None:
        """These are the numbers of nodes in each state of these workflows, but for ends still to be written."""
        new: dict[UUID, Counter[str]] = {key: Counter() for key in keys}
        for workflow_id, status, count in rows:
            new[workflow_id][status] = count
        self.counts |= new
        self.count(one.end for one in self._ended.values() if one.end.workflow_id in new)
