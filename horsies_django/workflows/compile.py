"""Compiles a workflow into columns of its row and of the rows of its nodes, and reports all errors at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils import timezone

from ..core.clock import DATES_ALLOWED, is_in_range
from ..core.compat import DEFAULT_TASK_BACKEND_ALIAS
from ..core.exceptions import InvalidWorkflow
from ..core.option_parsers import LONGEST_DURATION
from ..core.serialization import clean_text
from ..core.workflow_errors import DefinitionErrorCode, ErrorList, NodeError, shown
from ..core.workflow_status import Join, OnError
from ..enqueue.nodes import CallNode, EventNode, MapNode, Node, NodeRef, SleepNode, Source, TaskNode, event_name_error
from . import inputs, subworkflow_node
from .conditions import condition_path
from .node_options import NodeOptionsResolver
from .subworkflow_node import SubWorkflowNode
from .topology import Topology, build_topology, slug_of

#: Columns of a row, by name.
Columns = dict[str, Any]

NAME_LENGTH: Final = 255
_TEXT: Final = f"a text of 1 to {NAME_LENGTH} characters"
_ON_ERROR: Final = {text: str(word) for word in OnError for text in (str(word), str(word).lower())}


@dataclass(frozen=True, slots=True, init=False)
class SuccessCase:
    """A case is met once every node of ``required`` has completed; ``optional`` lists others that belong to it.

    Nodes are given as objects, by id or by :class:`~horsies_django.NodeKey`.
    """

    required: tuple[NodeRef[Any], ...]
    optional: tuple[NodeRef[Any], ...]

    def __init__(self, required: Iterable[NodeRef[Any]], optional: Iterable[NodeRef[Any]] = ()) -> None:
        object.__setattr__(self, "required", _refs(required))
        object.__setattr__(self, "optional", _refs(optional))


@dataclass(frozen=True, slots=True, init=False)
class SuccessPolicy:
    """The workflow is COMPLETED if any of ``cases`` is met, even if other nodes failed."""

    cases: tuple[SuccessCase, ...]

    def __init__(self, cases: Iterable[SuccessCase]) -> None:
        object.__setattr__(self, "cases", tuple(cases) if isinstance(cases, Iterable) else (cases,))


def _refs(value: Any) -> tuple[Any, ...]:
    """Accept one node as a list of one; the compiler checks what it is."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A workflow without errors: the columns of its row and of the rows of its nodes, before a run is inserted."""

    topology: Topology
    columns: Mapping[str, Any]
    nodes: tuple[Columns, ...]


def build(options: Mapping[str, Any]) -> Blueprint:
    """Return the blueprint of a workflow with these options. Raises InvalidWorkflow with all errors."""
    name = options["name"]
    errors = ErrorList(name if isinstance(name, str) else shown(name))
    _check_texts(options, errors)
    topology = build_topology(slug_of(name), options["nodes"], errors)
    alias = options.get("backend")
    alias = _backend_of(topology) if alias is None else alias
    inherited = {name: options.get(name) for name in ("queue_name", "priority", "good_until")}
    resolver = NodeOptionsResolver(alias, {name: value for name, value in inherited.items() if value is not None})
    for code, problem in resolver.errors:
        errors.add(code, problem)
    columns = {
        **{name: options.get(name) for name in ("name", "definition_key", "unique_key")},
        **inherited,
        "backend": alias,
        "on_error": _on_error(options.get("on_error", OnError.FAIL), errors),
        "output_index": _output(options.get("output"), topology, errors),
        "success_policy": _success_policy(options.get("success_policy"), topology, errors),
    }
    nodes = tuple([_node(index, node, topology, resolver, errors) for index, node in enumerate(topology.nodes)])
    if errors:
        raise InvalidWorkflow(errors)
    return Blueprint(topology, columns, nodes)


def _check_texts(options: Mapping[str, Any], errors: ErrorList) -> None:
    for name, code in (
        ("name", DefinitionErrorCode.NO_NAME),
        ("definition_key", DefinitionErrorCode.NO_DEFINITION_KEY),
        ("unique_key", DefinitionErrorCode.INVALID_OPTION),
    ):
        value = options.get(name)
        if (value is not None or name == "name") and not is_name(value):
            errors.add(code, f"{name} is {shown(value)}; allowed: {_TEXT}.")


def is_name(value: object) -> bool:
    """Whether a value is a text that the column of a name can hold."""
    return isinstance(value, str) and 0 < len(value.strip()) <= len(value) <= NAME_LENGTH and value == clean_text(value)


def _backend_of(topology: Topology) -> str:
    """Return the backend of the first task, for a workflow without its own."""
    tasks = (node.task for node in topology.nodes if isinstance(node, TaskNode))
    return next((task.backend for task in tasks), DEFAULT_TASK_BACKEND_ALIAS)


def _on_error(value: Any, errors: ErrorList) -> str:
    if isinstance(value, str) and value in _ON_ERROR:
        return _ON_ERROR[value]
    errors.add(DefinitionErrorCode.INVALID_OPTION, f"on_error is {shown(value)}; allowed: {', '.join(OnError.values)}.")
    return str(OnError.FAIL)


def _output(value: Any, topology: Topology, errors: ErrorList) -> int | None:
    if value is None:
        return None
    if (place := topology.place_of(value)) is None:
        problem = f"output is {shown(value)}, which is not in the workflow; allowed: {topology.names}."
        errors.add(DefinitionErrorCode.INVALID_OUTPUT, problem)
    return place


def _success_policy(policy: Any, topology: Topology, errors: ErrorList) -> list[dict[str, list[int]]] | None:
    if policy is None:
        return None
    code = DefinitionErrorCode.INVALID_SUCCESS_POLICY
    if not isinstance(policy, SuccessPolicy):
        errors.add(code, f"success_policy is {shown(policy)}; allowed: a SuccessPolicy.")
        return None
    if not policy.cases:
        errors.add(code, "success_policy has no cases; allowed: at least one.")
    cases = []
    for number, case in enumerate(policy.cases):
        if not isinstance(case, SuccessCase):
            errors.add(code, f"success_policy.cases[{number}] is {shown(case)}; allowed: a SuccessCase.")
            continue
        for problem in _problems_of_case(case, topology):
            errors.add(code, f"success_policy.cases[{number}]{problem}")
        refs_by_name = {"required": case.required, "optional": case.optional}
        cases.append({name: [topology.place_of(ref) or 0 for ref in refs] for name, refs in refs_by_name.items()})
    return cases


def _problems_of_case(case: SuccessCase, topology: Topology) -> Iterator[str]:
    if not case.required:
        yield ".required is empty, so it is always met; allowed: at least one node."
    for name, refs in (("required", case.required), ("optional", case.optional)):
        for ref in refs:
            if topology.place_of(ref) is None:
                yield f".{name} has {shown(ref)}, which is not in the workflow; allowed: {topology.names}."
    required = {topology.place_of(ref) for ref in case.required}
    for ref in case.optional:
        if (place := topology.place_of(ref)) is not None and place in required:
            yield f" has {topology.ids[place]!r} as required and as optional; allowed: one of them."


# Nodes.


def _node(index: int, node: Node[Any], topology: Topology, resolver: NodeOptionsResolver, errors: ErrorList) -> Columns:
    """Return the columns of a node. Those that its task will have are those of a sent task."""
    own = resolver.resolve(node)
    node_errors: list[NodeError] = [*node.errors, *own.errors]
    waits_for = topology.waits_for[index]
    columns: Columns = {
        **own.columns,
        **_step(node, len(waits_for), node_errors),
        "task_index": index,
        "node_id": topology.ids[index],
        "kind": node.kind.value,
        "waits_for": waits_for,
        "open_deps": len(waits_for),
        "dependents": topology.dependents[index],
    }
    if isinstance(node, CallNode):
        assert own.target is not None  # a call node has a target
        sources = [topology.nodes[place] for place in waits_for]
        columns |= inputs.compile_inputs(node, own.target, sources, node_errors)
        columns |= _call(node, topology, node_errors)
    elif isinstance(node, SleepNode):
        columns |= _sleep(node, node_errors)
    elif isinstance(node, EventNode):
        columns |= _event(node, node_errors)
    for code, problem in node_errors:
        errors.add(code, problem, topology.ids[index])
    return columns


def _step(node: Node[Any], deps: int, node_errors: list[NodeError]) -> Columns:
    join = str(node.join) if isinstance(node.join, str) and node.join in _JOINS else None
    node_errors += _join_errors(node, join, deps)
    if not isinstance(node.allow_failed_deps, bool):
        problem = f"allow_failed_deps is {shown(node.allow_failed_deps)}; allowed: True or False."
        node_errors.append((DefinitionErrorCode.INVALID_OPTION, problem))
    columns: Columns = {"join": join, "min_success": node.min_success, "allow_failed_deps": node.allow_failed_deps}
    for name, condition in (("run_when", node.run_when), ("skip_when", node.skip_when)):
        try:
            columns[name] = None if condition is None else condition_path(condition)
        except ValueError as error:
            node_errors.append((DefinitionErrorCode.INVALID_CONDITION, f"{name} is {error}."))
    return columns


_JOINS: Final = frozenset(Join.values)


def _join_errors(node: Node[Any], join: str | None, deps: int) -> Iterator[NodeError]:
    code, least = DefinitionErrorCode.INVALID_JOIN, node.min_success
    if join is None:
        yield code, f"join is {shown(node.join)}; allowed: {', '.join(Join.values)}."
    elif join == Join.QUORUM:
        if type(least) is not int or not 1 <= least <= deps:
            yield code, f"min_success is {shown(least)}; allowed: from 1 to {deps}, the nodes that it waits for."
    elif least is not None:
        yield code, f"min_success is {shown(least)}, and join is {join!r}; allowed: only with join='quorum'."
    if join == Join.ANY and not deps:
        yield code, "join is 'any', and it waits for nothing; allowed: at least one node to wait for."


def _call(node: CallNode[Any], topology: Topology, node_errors: list[NodeError]) -> Columns:
    columns: Columns = {}
    places = topology.index
    if node.args_from or node.values_from:
        columns |= {"args_from": _indices(node.args_from, places), "values_from": _indices(node.values_from, places)}
    if node.workflow_ctx_from is not None:
        context = tuple(dict.fromkeys(places[source] for source in node.workflow_ctx_from if source in places))
        columns |= {"ctx_from": context, "open_ctx": len(context)}
    if isinstance(node, MapNode):
        columns["over_index"] = places.get(node.over) if node.over else None
        node_errors += _map_errors(node)
    elif isinstance(node, SubWorkflowNode):
        columns["definition_key"] = node.definition._meta.options.definition_key
        node_errors += subworkflow_node.definition_errors(node)
    return columns


def _indices(sources: Mapping[str, Source], places: Mapping[Node[Any], int]) -> dict[str, Any]:
    """Return sources by index; -1 stands for a node outside the workflow, which is an error found earlier."""
    return {
        param: tuple([places.get(node, -1) for node in source]) if isinstance(source, tuple) else places.get(source, -1)
        for param, source in sources.items()
    }


def _map_errors(node: MapNode[Any]) -> Iterator[NodeError]:
    if node.over is None:
        return
    if inputs.are_disjoint(types := inputs.value_types(node.over), frozenset({list})):
        problem = f"over is {node.over!r}, which gives {inputs.describe(types)}; allowed: a node that returns a list."
        yield DefinitionErrorCode.INVALID_MAP, problem
    if node.join != Join.ALL:
        problem = f"join is {shown(node.join)}; allowed: 'all', since a map needs the list."
        yield DefinitionErrorCode.INVALID_MAP, problem


def _sleep(node: SleepNode, node_errors: list[NodeError]) -> Columns:
    until = node.until
    if isinstance(until, datetime):
        if timezone.is_aware(until) and is_in_range(until):
            return {"until": until}
    elif (seconds := _seconds(until)) is not None:
        return {"seconds": seconds}
    allowed = f"seconds from 0 to a hundred years, a timedelta, or an aware datetime, {DATES_ALLOWED}"
    node_errors.append((DefinitionErrorCode.INVALID_SLEEP, f"it sleeps {shown(until)}; allowed: {allowed}."))
    return {}


def _event(node: EventNode, node_errors: list[NodeError]) -> Columns:
    name = node.event_name
    if problem := event_name_error(name):
        node_errors.append((DefinitionErrorCode.INVALID_EVENT, f"its event is {problem}"))
    timeout = None if node.timeout is None else _seconds(node.timeout)
    if node.timeout is not None and not timeout:
        problem = f"timeout is {shown(node.timeout)}; allowed: more than 0 seconds, a timedelta, or None for no limit."
        node_errors.append((DefinitionErrorCode.INVALID_EVENT, problem))
    return {"event_name": name, "event_timeout": timeout}


def _seconds(value: object) -> float | None:
    """Return a duration in seconds; None for any other value."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_DURATION:
        return None
    return float(seconds)
