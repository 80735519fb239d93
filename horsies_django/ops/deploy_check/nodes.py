"""Check the nodes of live workflows that have not ended: their tasks, arguments, conditions and subworkflows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db.models import Q, TextField
from django.db.models.functions import Cast

from ...core.workflow_status import NodeKind, WorkflowTaskStatus
from ...enqueue.call_builder import Parameters
from ...models import Workflow, WorkflowTask
from ...workflows.engine.rows import IN_PROGRESS
from .calls import (
    Sample,
    condition_problem,
    definition_parameters,
    definition_problem,
    find_task,
    name_problem,
    read_json,
    signature_problem,
    task_parameters,
    value_problems,
)
from .findings import Findings
from .tasks import NOT_SERVED

#: Maximum live workflows that are read, and maximum nodes: all of them together, and waiting ones of each workflow.
MAX_WORKFLOWS: Final = 10_000
MAX_NODES: Final = 500_000
MAX_OF_WORKFLOW: Final = 10_000

#: Workflows in one statement.
BATCH: Final = 200

#: What may break in a node.
_WHATS: Final = ("node", "condition", "workflow", "queue")

#: The arguments that a workflow gives to each function that has a parameter of the name.
_GIVEN: Final = frozenset({"workflow_meta", "workflow_ctx"})

_WAITING: Final = (WorkflowTaskStatus.PENDING, WorkflowTaskStatus.READY)

_COLUMNS: Final = (
    *("pk", "workflow_id", "node_id", "kind", "status", "backend", "queue_name", "typed_payload", "task_name"),
    *("definition_key", "run_when", "skip_when", "is_decided", "param"),
)


class _Node(NamedTuple):
    pk: int
    workflow_id: UUID
    node_id: str
    kind: str
    status: str
    backend: str
    queue_name: str
    is_typed: bool
    task_name: str | None
    definition_key: str | None
    run_when: str | None
    skip_when: str | None
    is_decided: bool
    param: str | None

    @property
    def shown_id(self) -> str:
        """The id of its workflow, and its own."""
        return f"{self.workflow_id} {self.node_id}"

    @property
    def has_begun(self) -> bool:
        """Whether its task, its items or its subworkflow have rows of their own by now."""
        return self.status == WorkflowTaskStatus.RUNNING

    @property
    def builds(self) -> str | None:
        """The definition of the subworkflow that is still to be built."""
        return str(self.definition_key) if self.kind == NodeKind.SUBWORKFLOW and not self.has_begun else None

    @property
    def starts(self) -> str | None:
        """The task that is still to be run, or may be tried again. The items of a map that has begun are nodes too."""
        is_task = self.kind == NodeKind.TASK or (self.kind == NodeKind.MAP and not self.has_begun)
        return self.task_name if is_task else None

    @property
    def conditions(self) -> Iterator[str]:
        """The conditions that are still to be evaluated."""
        if not self.is_decided and not self.has_begun:
            yield from (path for path in (self.run_when, self.skip_when) if path is not None)


class NodeCheck:
    """Checks the nodes in a database, or those of one backend in it. ``queues`` are those of all backends."""

    def __init__(self, database: str, backend: str | None, queues: Collection[str], findings: Findings) -> None:
        self._database = database
        self._backend = backend
        self._queues = queues
        self._findings = findings
        self._tasks: defaultdict[str, Sample[_Node]] = defaultdict(Sample)
        self._workflows: defaultdict[str, Sample[_Node]] = defaultdict(Sample)

    def run(self) -> None:
        """Read the nodes, then examine the arguments of a sample of each name."""
        keys = self._workflow_keys()
        for place in range(0, len(keys), BATCH):
            for row in self._rows_of(keys[place : place + BATCH]):
                self._add(row)
        for name, sample in sorted(self._tasks.items()):
            if (task := find_task(name)) is not None:
                self._examine("node", name, task_parameters(task), sample)
        for key, sample in sorted(self._workflows.items()):
            self._examine("workflow", key, definition_parameters(key), sample)

    def _workflow_keys(self) -> Sequence[UUID]:
        """Return the live workflows, as many as have ``MAX_NODES`` nodes together."""
        live = Workflow.objects.using(self._database).live().order_by("status", "pk")
        keys: list[UUID] = []
        left = MAX_NODES
        for key, node_count in live.values_list("pk", "node_count")[: MAX_WORKFLOWS + 1].iterator():
            left -= min(node_count, MAX_OF_WORKFLOW)
            if keys and (left < 0 or len(keys) == MAX_WORKFLOWS):
                self._findings.record_unread(f"There are more live workflows than the {len(keys):,} read.", *_WHATS)
                break
            if node_count > MAX_OF_WORKFLOW:
                sentence = f"Of workflow {key} the first {MAX_OF_WORKFLOW:,} waiting nodes were read."
                self._findings.record_unread(sentence, *_WHATS)
            keys.append(key)
        return keys

    def _rows_of(self, keys: Sequence[UUID]) -> Iterator[_Node]:
        """Yield the open nodes of these workflows: the waiting ones by position, the others by their index."""
        nodes = WorkflowTask.objects.using(self._database).filter(workflow__in=keys)
        waiting = nodes.filter(status__in=_WAITING, task_index__lt=MAX_OF_WORKFLOW)
        begun = nodes.filter(status__in=IN_PROGRESS)
        for rows in (waiting.order_by("workflow_id", "task_index"), begun.order_by("workflow_id")):
            for number, values in enumerate(rows.values_list(*_COLUMNS)[: MAX_NODES + 1].iterator()):
                if number == MAX_NODES:
                    sentence = f"There are more nodes of {len(keys):,} workflows than the {number:,} read."
                    self._findings.record_unread(sentence, *_WHATS)
                    break
                node = _Node(*values)
                if self._backend in (None, node.backend):
                    yield node

    def _add(self, node: _Node) -> None:
        self._findings.read["nodes"] += 1
        for path in node.conditions:
            self._report("condition", path, condition_problem(path), node)
        if node.status in _WAITING and self._queues and node.queue_name not in self._queues:
            self._report("queue", node.queue_name, NOT_SERVED, node)
        key, name = node.builds, node.starts
        if key is not None and not self._report("workflow", key, definition_problem(key), node):
            self._workflows[key].add(node)
        if name is not None and not self._report("node", name, name_problem(name), node):
            self._tasks[name].add(node)

    def _report(self, what: str, name: str, problem: str | None, node: _Node) -> bool:
        """Record a problem, if there is one; return whether there is."""
        if problem is not None:
            self._findings.add(what, name, problem, node.shown_id)
        return problem is not None

    def _examine(self, what: str, name: str, parameters: Parameters, sample: Sample[_Node]) -> None:
        self._findings.record_examined(what, name, sample.count, len(sample))
        for nodes in sample.chunks():
            by_key = {node.pk: node for node in nodes}
            sources: dict[int, set[int]] = {}
            for key, problem in self._argument_problems(by_key, parameters, sources):
                self._findings.add_examined(what, name, problem, by_key[key].shown_id)
            for key, problem in self._source_problems(by_key, sources):
                self._findings.add_examined(what, name, problem, by_key[key].shown_id)

    def _argument_problems(
        self, by_key: dict[int, _Node], parameters: Parameters, sources: dict[int, set[int]]
    ) -> Iterator[tuple[int, str]]:
        """Yield problems of arguments, by node. Fills ``sources`` with the indexes of the nodes that give others."""
        rows = WorkflowTask.objects.using(self._database).filter(pk__in=by_key).order_by("pk")
        columns = [Cast(name, TextField()) for name in ("kwargs", "args_from", "values_from", "ctx_from")]
        for key, *texts in rows.values_list("pk", *columns):
            node = by_key[key]
            try:
                kwargs, args_from, values_from = (read_json(text, dict) for text in texts[:3])
                sources[key] = _indexes(args_from.values(), values_from.values(), _list(texts[3]))
            except ValueError as error:
                yield key, str(error)
                continue
            for found in value_problems(kwargs, node.backend, is_typed=node.is_typed):
                yield key, found
            names = {*kwargs, *args_from, *values_from, *(_GIVEN & parameters.by_name)}
            if node.kind == NodeKind.MAP and node.param is not None:
                names.add(node.param)
            misfit = signature_problem(parameters, (), names)
            if misfit:
                yield key, misfit

    def _source_problems(self, by_key: dict[int, _Node], sources: dict[int, set[int]]) -> Iterator[tuple[int, str]]:
        """Yield problems of the results that these nodes get from others, by node."""
        wanted = {key: indexes for key, indexes in sources.items() if indexes}
        if not wanted:
            return
        positions = [Q(workflow=by_key[key].workflow_id, task_index__in=indexes) for key, indexes in wanted.items()]
        rows = WorkflowTask.objects.using(self._database).filter(reduce(or_, positions), typed_payload=True)
        columns = ("workflow_id", "task_index", "backend", Cast("result", TextField()))
        problems: dict[tuple[UUID, int], list[str]] = {}
        for workflow_id, index, backend, text in rows.filter(completed_at__isnull=False).values_list(*columns):
            problems[workflow_id, index] = _result_problems(text, backend)
        for key, indexes in wanted.items():
            found = (problems.get((by_key[key].workflow_id, index), ()) for index in indexes)
            for problem in dict.fromkeys(problem for each in found for problem in each):
                yield key, f"a result that it is given: {problem}"


def _list(text: str | None) -> list[Any]:
    return [] if text in (None, "null") else read_json(text, list)


def _indexes(*sources: Iterable[Any]) -> set[int]:
    """Return the indexes in these sources, each an index or a list of them."""
    found = (source if isinstance(source, list) else [source] for each in sources for source in each)
    return {index for indexes in found for index in indexes if isinstance(index, int)}


def _result_problems(text: str | None, backend: str) -> list[str]:
    try:
        stored = read_json(text, dict)
    except ValueError as error:
        return [str(error)]
    return list(value_problems([stored.get("ok")], backend, is_typed=True))
