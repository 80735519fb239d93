"""Check the nodes of live workflows that have not ended: their tasks, arguments, conditions and subworkflows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db.models import Q, TextField
from django.db.models.functions import Cast

from ...core.parameters import Parameters
from ...core.workflow_status import NodeKind, WorkflowTaskStatus
from ...enqueue.nodes import WORKFLOW_PARAMS
from ...models import Workflow, WorkflowTask
from ...workflows.engine.rows import IN_PROGRESS
from .calls import (
    Check,
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

#: Maximum live workflows that are read, and maximum nodes: all of them together, and waiting ones of each workflow.
MAX_WORKFLOWS: Final = 10_000
MAX_NODES: Final = 500_000
MAX_OF_WORKFLOW: Final = 10_000

#: Workflows in one statement.
BATCH: Final = 200

#: What may break in a node.
_WHATS: Final = ("node", "condition", "workflow", "queue")

_WAITING: Final = (WorkflowTaskStatus.PENDING, WorkflowTaskStatus.READY)


class _Node(NamedTuple):
    pk: int
    workflow_id: UUID
    node_id: str
    kind: str
    status: str
    backend: str
    queue_name: str
    typed_payload: bool
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


def check_nodes(check: Check) -> None:
    """Read the nodes, then examine the arguments of a sample of each name."""
    keys = _workflow_keys(check)
    for place in range(0, len(keys), BATCH):
        for node in _open_nodes(check, keys[place : place + BATCH]):
            _add(check, node)

    def task_problems(name: str, nodes: Sequence[_Node]) -> Iterator[tuple[str, str]]:
        task = find_task(name)
        return iter(()) if task is None else _problems(check.database, task_parameters(task), nodes)

    check.examine("node", task_problems)
    check.examine("workflow", lambda key, nodes: _problems(check.database, definition_parameters(key), nodes))


def _workflow_keys(check: Check) -> Sequence[UUID]:
    """Return the live workflows, as many as have ``MAX_NODES`` nodes together."""
    live = Workflow.objects.using(check.database).live().order_by("status", "pk")
    keys: list[UUID] = []
    left = MAX_NODES
    for key, node_count in live.values_list("pk", "node_count")[: MAX_WORKFLOWS + 1].iterator():
        left -= min(node_count, MAX_OF_WORKFLOW)
        if keys and (left < 0 or len(keys) == MAX_WORKFLOWS):
            check.record_unread(f"There are more live workflows than the {len(keys):,} read.", *_WHATS)
            break
        if node_count > MAX_OF_WORKFLOW:
            check.record_unread(f"Of workflow {key} the first {MAX_OF_WORKFLOW:,} waiting nodes were read.", *_WHATS)
        keys.append(key)
    return keys


def _open_nodes(check: Check, keys: Sequence[UUID]) -> Iterator[_Node]:
    """Yield the open nodes of these workflows: the waiting ones by position, the others by their index."""
    nodes = WorkflowTask.objects.using(check.database).filter(workflow__in=keys)
    waiting = nodes.filter(status__in=_WAITING, task_index__lt=MAX_OF_WORKFLOW)
    begun = nodes.filter(status__in=IN_PROGRESS)
    sentence = f"There are more nodes of {len(keys):,} workflows than the {MAX_NODES:,} read."
    for ordered in (waiting.order_by("workflow_id", "task_index"), begun.order_by("workflow_id")):
        rows = ordered.values_list(*_Node._fields)[: MAX_NODES + 1].iterator()
        for node in map(_Node._make, check.read_rows(rows, MAX_NODES, sentence, *_WHATS)):
            if check.backend in (None, node.backend):
                yield node


def _add(check: Check, node: _Node) -> None:
    check.read["nodes"] += 1
    for path in node.conditions:
        check.add("condition", path, condition_problem(path), node.shown_id)
    if node.status in _WAITING:
        check.add_queue(node.queue_name, node.shown_id)
    key, name = node.builds, node.starts
    if key is not None and not check.add("workflow", key, definition_problem(key), node.shown_id):
        check.add_to_sample("workflow", key, node)
    if name is not None and not check.add("node", name, name_problem(name), node.shown_id):
        check.add_to_sample("node", name, node)


def _problems(database: str, parameters: Parameters, nodes: Sequence[_Node]) -> Iterator[tuple[str, str]]:
    """Yield the problems of the arguments of nodes, and of the results that they get from other nodes."""
    by_key = {node.pk: node for node in nodes}
    rows = WorkflowTask.objects.using(database).filter(pk__in=by_key).order_by("pk")
    texts = [Cast(name, TextField()) for name in ("kwargs", "args_from", "values_from", "ctx_from")]
    sources: dict[int, set[int]] = {}
    for key, *columns in rows.values_list("pk", *texts):
        node = by_key[key]
        try:
            kwargs, args_from, values_from = (read_json(text, dict) for text in columns[:3])
            context = [] if columns[3] in (None, "null") else read_json(columns[3], list)
        except ValueError as error:
            yield str(error), node.shown_id
            continue
        sources[key] = _indexes(args_from.values(), values_from.values(), context)
        for problem in value_problems(kwargs.values(), node.backend, is_typed=node.typed_payload):
            yield problem, node.shown_id
        names = {*kwargs, *args_from, *values_from, *(WORKFLOW_PARAMS & parameters.by_name)}
        if node.kind == NodeKind.MAP and node.param is not None:
            names.add(node.param)
        if misfit := signature_problem(parameters, (), names):
            yield misfit, node.shown_id
    yield from _source_problems(database, {by_key[key]: indexes for key, indexes in sources.items() if indexes})


def _source_problems(database: str, sources: Mapping[_Node, set[int]]) -> Iterator[tuple[str, str]]:
    """Yield problems of the results that these nodes get from the nodes at these indexes."""
    if not sources:
        return
    positions = [Q(workflow=node.workflow_id, task_index__in=indexes) for node, indexes in sources.items()]
    rows = WorkflowTask.objects.using(database).filter(reduce(or_, positions), typed_payload=True)
    columns = ("workflow_id", "task_index", "backend", Cast("result", TextField()))
    problems: dict[tuple[UUID, int], list[str]] = {}
    for workflow_id, index, backend, text in rows.filter(completed_at__isnull=False).values_list(*columns):
        problems[workflow_id, index] = _result_problems(text, backend)
    for node, indexes in sources.items():
        lists = (problems.get((node.workflow_id, index), ()) for index in indexes)
        for problem in dict.fromkeys(problem for each in lists for problem in each):
            yield f"a result that it is given: {problem}", node.shown_id


def _indexes(*sources: Iterable[Any]) -> set[int]:
    """Return the indexes in these sources, each an index or a list of them."""
    lists = (source if isinstance(source, list) else [source] for each in sources for source in each)
    return {index for indexes in lists for index in indexes if isinstance(index, int)}


def _result_problems(text: str | None, backend: str) -> list[str]:
    try:
        stored = read_json(text, dict)
    except ValueError as error:
        return [str(error)]
    return list(value_problems([stored.get("ok")], backend, is_typed=True))
