"""Compiles nodes into blueprints, and collects the errors of the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from django.utils import timezone

from ..core.clock import DATES_ALLOWED, is_in_range
from ..core.option_parsers import LONGEST_DURATION
from ..core.workflow_errors import DefinitionErrorCode, NodeError, shown
from ..core.workflow_status import Join
from ..enqueue.call_builder import Target
from ..enqueue.nodes import CallNode, EventNode, MapNode, Node, SleepNode, Source, event_name_error
from . import recursion_check
from .blueprint import NodeBlueprint, SourceIndex
from .conditions import condition_path
from .errors import ErrorList
from .inputs import check_inputs, value_types
from .node_options import NodeOptionsResolver
from .subworkflow_node import SubWorkflowNode
from .topology import Topology
from .type_compat import are_disjoint, describe

_JOINS: Final = frozenset(Join.values)
#: The columns of a node with invalid options, whose blueprint is never used.
_NO_COLUMNS: Final = {"backend": "", "queue_name": "", "priority": 0, "typed_payload": False}


def compile_nodes(topology: Topology, resolver: NodeOptionsResolver, errors: ErrorList) -> tuple[NodeBlueprint, ...]:
    """Return the blueprint of each node."""
    return tuple([_compile_node(index, node, topology, resolver, errors) for index, node in enumerate(topology.nodes)])


def _compile_node(
    index: int, node: Node[Any], topology: Topology, resolver: NodeOptionsResolver, errors: ErrorList
) -> NodeBlueprint:
    own = resolver.resolve(node)
    node_errors: list[NodeError] = [*node.errors, *own.errors]
    values = {**(own.columns or _NO_COLUMNS), "join": "all"}
    if _has_step_options(node):
        values |= _step_options(node, len(topology.waits_for[index]), node_errors)
    if isinstance(node, CallNode):
        assert own.target is not None  # a call node has a target
        values |= _call(index, node, own.target, topology, node_errors)
    elif isinstance(node, SleepNode):
        values |= _sleep(node, node_errors)
    elif isinstance(node, EventNode):
        values |= _event(node, node_errors)
    for code, problem in node_errors:
        errors.add(code, problem, topology.ids[index])
    return NodeBlueprint(
        index=index,
        node_id=topology.ids[index],
        kind=node.kind.value,
        waits_for=topology.waits_for[index],
        dependents=topology.dependents[index],
        **values,
    )


def _call(
    index: int, node: CallNode[Any], target: Target, topology: Topology, node_errors: list[NodeError]
) -> dict[str, Any]:
    inputs = check_inputs(node, target, partial(topology.sources_of, index))
    node_errors += inputs.errors
    values: dict[str, Any] = {"kwargs": inputs.kwargs, "limit_key": inputs.limit_key}
    if node.args_from or node.values_from or node.workflow_ctx_from is not None:
        values |= _sources(node, topology)
    if isinstance(node, MapNode):
        values |= {"param": inputs.param, "over": topology.index.get(node.over) if node.over else None}
        node_errors += _map_errors(node)
    elif isinstance(node, SubWorkflowNode):
        values["definition_key"] = node.definition._meta.options.definition_key
        node_errors += _definition_errors(node)
    return values


def _has_step_options(node: Node[Any]) -> bool:
    return (
        node.join is not Join.ALL
        or node.min_success is not None
        or node.allow_failed_deps is not False
        or node.run_when is not None
        or node.skip_when is not None
    )


def _step_options(node: Node[Any], deps: int, node_errors: list[NodeError]) -> dict[str, Any]:
    join = str(node.join) if isinstance(node.join, str) and node.join in _JOINS else None
    node_errors += _join_errors(node, join, deps)
    if not isinstance(node.allow_failed_deps, bool):
        problem = f"allow_failed_deps is {shown(node.allow_failed_deps)}; allowed: True or False."
        node_errors.append((DefinitionErrorCode.INVALID_OPTION, problem))
    values: dict[str, Any] = {"join": join, "min_success": node.min_success}
    values["allow_failed_deps"] = node.allow_failed_deps
    for name in ("run_when", "skip_when"):
        if (condition := getattr(node, name)) is not None:
            try:
                values[name] = condition_path(condition)
            except ValueError as error:
                node_errors.append((DefinitionErrorCode.INVALID_CONDITION, f"{name} is {error}."))
    return values


def _join_errors(node: Node[Any], join: str | None, deps: int) -> Iterator[NodeError]:
    code, least = DefinitionErrorCode.INVALID_JOIN, node.min_success
    if join is None:
        yield code, f"join is {shown(node.join)}; allowed: {', '.join(Join.values)}."
    elif join == Join.QUORUM:
        if type(least) is not int or not 1 <= least <= deps:
            yield code, f"min_success is {shown(least)}; allowed: from 1 to {deps}, the nodes that it waits for."
    elif least is not None:
        yield (
            code,
            f"min_success is {shown(least)}, and join is {join!r}; allowed: only with join='quorum'.",
        )
    if join == Join.ANY and not deps:
        yield code, "join is 'any', and it waits for nothing; allowed: at least one node to wait for."


def _sources(node: CallNode[Any], topology: Topology) -> dict[str, Any]:
    places = topology.index
    context = node.workflow_ctx_from
    return {
        "args_from": _indices(node.args_from, places),
        "values_from": _indices(node.values_from, places),
        "ctx_from": None if context is None else tuple(dict.fromkeys(places[one] for one in context if one in places)),
    }


def _indices(sources: Mapping[str, Source], places: Mapping[Node[Any], int]) -> dict[str, SourceIndex]:
    """Return sources by index; -1 stands for a node outside the workflow, which is an error found earlier."""
    return {
        param: tuple([places.get(one, -1) for one in source]) if isinstance(source, tuple) else places.get(source, -1)
        for param, source in sources.items()
    }


def _map_errors(node: MapNode[Any]) -> Iterator[NodeError]:
    if node.over is None:
        return
    if are_disjoint(found := value_types(node.over), frozenset({list})):
        problem = f"over is {node.over!r}, which gives {describe(found)}; allowed: a node that returns a list."
        yield DefinitionErrorCode.INVALID_MAP, problem
    if node.join != Join.ALL:
        problem = f"join is {shown(node.join)}; allowed: 'all', since a map needs the list."
        yield DefinitionErrorCode.INVALID_MAP, problem


def _definition_errors(node: SubWorkflowNode[Any]) -> Iterator[NodeError]:
    if not node.definition._meta.is_registered:
        problem = f"{node.label} is abstract or has no definition_key; allowed: a definition with a key."
        yield DefinitionErrorCode.UNREGISTERED_SUBWORKFLOW, problem
    elif not _has_arguments(node) and (recursion := recursion_check.find_recursion(node.definition)):
        yield DefinitionErrorCode.CONTAINS_ITSELF, recursion


def _has_arguments(node: CallNode[Any]) -> bool:
    return bool(node.args or node.kwargs or node.args_from or node.values_from or node.workflow_ctx_from)


def _sleep(node: SleepNode, node_errors: list[NodeError]) -> dict[str, Any]:
    until = node.until
    if isinstance(until, datetime):
        if timezone.is_aware(until) and is_in_range(until):
            return {"until": until}
    elif (seconds := _seconds(until)) is not None:
        return {"seconds": seconds}
    allowed = f"seconds from 0 to a hundred years, a timedelta, or an aware datetime, {DATES_ALLOWED}"
    node_errors.append((DefinitionErrorCode.INVALID_SLEEP, f"it sleeps {shown(until)}; allowed: {allowed}."))
    return {}


def _event(node: EventNode, node_errors: list[NodeError]) -> dict[str, Any]:
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
