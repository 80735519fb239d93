"""Checks what a node passes to the function it calls: values, values of other nodes, and contexts.

The value of a node fits a parameter if their type hints have a type in common. Hints are reduced to the types that JSON
has; a hint without such a type fits everything.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Annotated, Any, Final, Literal, NewType, Union, get_args, get_origin

from ..core.annotations import hints_of
from ..core.results import TaskResult
from ..core.type_check import unwrapped
from ..core.workflow_errors import DefinitionErrorCode, NodeError, shown
from ..core.workflow_status import Join, NodeKind
from ..enqueue.call_builder import CallBuilder, Target
from ..enqueue.nodes import CTX_PARAM, META_PARAM, WORKFLOW_PARAMS, CallNode, MapNode, Node, Source, TaskNode, nodes_in
from .subworkflow_node import SubWorkflowNode

_NONE: Final[frozenset[str]] = frozenset()


def compile_inputs(
    node: CallNode[Any], target: Target, waits_for: Collection[Node[Any]], node_errors: list[NodeError]
) -> dict[str, Any]:
    """Check what a node passes to the function it calls; return the columns of its arguments.

    ``waits_for`` are the nodes that it waits for.
    """
    columns: dict[str, Any] = {}
    later: Set[str] = _NONE
    if node.args_from or node.values_from or node.workflow_ctx_from is not None or isinstance(node, MapNode):
        if isinstance(node, MapNode):
            columns["param"] = _param(node, target, node_errors)
        later = _filled_later(node, columns.get("param"), target)
        # A node outside the workflow is an error of its own, found earlier.
        node_errors += _source_errors(node, target, {*waits_for, *node.waits_for})
    if META_PARAM in target.parameters.by_name:
        later = later | {META_PARAM}
    if node.args:
        problem = f"it is given {len(node.args)} arguments by position; allowed: arguments by name."
        node_errors.append((DefinitionErrorCode.POSITIONAL_ARGUMENTS, problem))
    if isinstance(node, SubWorkflowNode) and not node.definition._meta.takes_params:
        node_errors += _unexpected_params(node, node.kwargs.keys() | later)
        return columns
    try:
        columns["kwargs"] = target.partial_arguments(node.kwargs, later).kwargs
    except (TypeError, ValueError) as error:
        argument_errors = list(_argument_errors(node, target, later))
        if not argument_errors and not node.args:  # each argument is valid, but together they are too large
            argument_errors = [(DefinitionErrorCode.NOT_SERIALIZABLE, str(error))]
        node_errors += argument_errors
        return columns
    if isinstance(target, CallBuilder):
        try:
            columns["limit_key"] = target.partial_limit_key(node.kwargs, later - WORKFLOW_PARAMS)
        except (TypeError, ValueError) as error:
            node_errors.append((DefinitionErrorCode.INVALID_OPTION, str(error)))
    return columns


def _filled_later(node: CallNode[Any], param: str | None, target: Target) -> Set[str]:
    later = {*node.args_from, *node.values_from}
    if node.workflow_ctx_from is not None and CTX_PARAM in target.parameters.by_name:
        later.add(CTX_PARAM)
    if param is not None:
        later.add(param)
    return later


def _param(node: MapNode[Any], target: Target, node_errors: list[NodeError]) -> str | None:
    """Return the parameter that takes an item: the named one, else the first."""
    names = [name for name in target.parameters.own if name in target.parameters.by_name]
    param = node.param if node.param is not None else next(iter(names), None)
    if param is None or (param not in names and not target.parameters.accepts_any):
        node_errors.append(
            (DefinitionErrorCode.INVALID_MAP, f"param is {shown(param)}; allowed: {', '.join(names) or 'none'}.")
        )
        return next(iter(names), None)
    if param in node.kwargs or param in node.args_from or param in node.values_from:
        problem = f"{param!r} takes the items and is an argument too; allowed: one of them."
        node_errors.append((DefinitionErrorCode.GIVEN_TWICE, problem))
    return param


def _source_errors(node: CallNode[Any], target: Target, waits_for: Set[Node[Any]]) -> Iterator[NodeError]:
    """Yield the errors of parameters that other nodes fill."""
    own = target.parameters.by_name
    accepted = accepted_by_parameter(target.func)
    for name, sources in (("args_from", node.args_from), ("values_from", node.values_from)):
        for param, source in sources.items():
            if outsiders := [node for node in nodes_in(source) if node not in waits_for]:
                problem = (
                    f"{name}[{param!r}] is {outsiders[0]!r}, which it does not wait for; allowed: nodes of waits_for."
                )
                yield DefinitionErrorCode.INVALID_ARGS_FROM, problem
            if param in own:
                yield from _type_errors(name, param, source, accepted.get(param))
            if param in target.parameters.required and (reason := _omission_reason(node, name, source)):
                why = f"{name} may leave it out: {reason}"
                problem = f"{param!r} has no default, and {why}; allowed: a parameter with a default."
                yield DefinitionErrorCode.MISSING_PARAMETER, problem
    yield from _context_errors(node, target, waits_for)


def _omission_reason(node: CallNode[Any], name: str, source: Source) -> str | None:
    """Return why a source may have no value when the node starts; None if it has one.

    That is so with a ``join`` other than ALL; and for an ok value, if failed dependencies are allowed, or if the source
    has a condition that may skip it. A list is always passed, with the values that there are.
    """
    if isinstance(source, tuple):
        return None
    if node.join != Join.ALL:
        return f"join is {str(node.join)!r}"
    if name == "values_from" and node.allow_failed_deps:
        return "allow_failed_deps"
    is_conditional = source.run_when is not None or source.skip_when is not None
    return f"{source!r} has a condition" if name == "values_from" and is_conditional else None


def _type_errors(name: str, param: str, source: Source, accepted: TypeSet) -> Iterator[NodeError]:
    if name == "args_from" and not isinstance(source, tuple):
        if are_disjoint(frozenset({TaskResult}), accepted):
            problem = f"{param!r} takes {describe(accepted)}, and args_from gives a TaskResult; allowed: "
            yield DefinitionErrorCode.SOURCE_TYPE, f"{problem}values_from, or TaskResult as its hint."
        return
    types = frozenset({list}) if isinstance(source, tuple) else value_types(source)
    if are_disjoint(types, accepted):
        what = "a list of nodes" if isinstance(source, tuple) else repr(source)
        expected, actual = describe(accepted), describe(types)
        problem = f"{param!r} takes {expected}, and {what} gives {actual}; allowed: the same."
        yield DefinitionErrorCode.SOURCE_TYPE, problem


def _context_errors(node: CallNode[Any], target: Target, waits_for: Set[Node[Any]]) -> Iterator[NodeError]:
    if node.workflow_ctx_from is None:
        return
    for source in node.workflow_ctx_from:
        if source not in waits_for:
            problem = f"workflow_ctx_from has {source!r}, which it does not wait for; allowed: nodes of waits_for."
            yield DefinitionErrorCode.INVALID_CTX_FROM, problem
    if CTX_PARAM not in target.parameters.by_name:
        problem = f"{target.path} has no parameter {CTX_PARAM!r} for workflow_ctx_from; allowed: a function with one."
        yield DefinitionErrorCode.CTX_PARAM_MISSING, problem


def _argument_errors(node: CallNode[Any], target: Target, later: Set[str]) -> Iterator[NodeError]:
    """Yield the errors of the arguments, one by one."""
    parameters = target.parameters
    arguments = node.kwargs.keys() | later
    names = ", ".join(sorted(parameters.by_name)) or "none"
    for name in sorted(arguments - parameters.by_name) if not parameters.accepts_any else ():
        yield DefinitionErrorCode.UNKNOWN_PARAMETER, f"{target.path} has no parameter {name!r}; allowed: {names}."
    # With positional arguments it is unknown which parameters they were meant for.
    for name in sorted(parameters.required - arguments) if not node.args else ():
        hint = "; workflow_ctx_from fills it" if name == CTX_PARAM else ""
        yield (
            DefinitionErrorCode.MISSING_PARAMETER,
            f"{target.path} needs {name!r}, which is not given{hint}; allowed: a value.",
        )
    for name, value in node.kwargs.items():
        if problem := target.mismatch(name, value):
            yield DefinitionErrorCode.ARGUMENT_TYPE, f"{problem}."
        try:
            target.check(value, name)
        except (TypeError, ValueError) as error:
            yield DefinitionErrorCode.NOT_SERIALIZABLE, str(error)


def _unexpected_params(node: SubWorkflowNode[Any], names: Set[str]) -> Iterator[NodeError]:
    for name in sorted(names):
        problem = f"it is given {name!r}, and {node.label} does not override build_with; allowed: no parameters."
        yield DefinitionErrorCode.PARAMS_WITHOUT_BUILD_WITH, problem


def value_types(node: Node[Any]) -> TypeSet:
    """Return the types of a node's ok value, by its hints."""
    if isinstance(node, MapNode):
        return frozenset({list})
    if isinstance(node, TaskNode):
        return returned_types(node.task.func)
    if isinstance(node, SubWorkflowNode):
        return produced_types(node.definition._meta.output_hint)
    return frozenset({type(None)}) if node.kind == NodeKind.SLEEP else None


# Types.

#: The types of values that a hint allows; None is any.
TypeSet = frozenset[type] | None

_ACCEPTED_BY_HINT: Final[dict[Any, frozenset[type]]] = {
    str: frozenset({str}),
    bool: frozenset({bool}),
    int: frozenset({int, bool}),
    float: frozenset({float, int, bool}),
    list: frozenset({list}),
    tuple: frozenset({list}),
    Sequence: frozenset({list, str}),
    Iterable: frozenset({list, str, dict}),
    dict: frozenset({dict}),
    Mapping: frozenset({dict}),
    None: frozenset({type(None)}),
    type(None): frozenset({type(None)}),
    TaskResult: frozenset({TaskResult}),
}
#: The narrowest types of a produced value: a float is no int, and an int no bool.
_PRODUCED_BY_HINT: Final[dict[Any, frozenset[type]]] = _ACCEPTED_BY_HINT | {
    int: frozenset({int}),
    float: frozenset({float}),
}


def accepted_types(hint: Any) -> TypeSet:
    """Return the types of values that a parameter with this hint accepts."""
    return _types(hint, _ACCEPTED_BY_HINT)


def produced_types(hint: Any) -> TypeSet:
    """Return the types of values that a result with this hint has."""
    return _types(unwrapped(hint), _PRODUCED_BY_HINT)


@functools.cache
def returned_types(func: Callable[..., Any]) -> TypeSet:
    """Return the types of a function's ok values."""
    return None if hasattr(func, "__wrapped__") else produced_types(hints_of(func).get("return", Any))


@functools.cache
def accepted_by_parameter(func: Callable[..., Any]) -> Mapping[str, TypeSet]:
    """Return the types that the hinted parameters of a function accept; the others accept anything."""
    return {name: accepted_types(hint) for name, hint in hints_of(func).items()}


def are_disjoint(source: TypeSet, target: TypeSet) -> bool:
    """Whether no value has both types."""
    return source is not None and target is not None and source.isdisjoint(target)


def describe(kinds: TypeSet) -> str:
    """Return types as text for an error message."""
    return " or ".join(sorted("None" if kind is type(None) else kind.__name__ for kind in kinds or ())) or "anything"


def _types(hint: Any, bindings: Mapping[Any, frozenset[type]]) -> TypeSet:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        type_sets = [_types(argument, bindings) for argument in inner]
        return None if None in type_sets else frozenset[type]().union(*(kinds for kinds in type_sets if kinds))
    if origin is Literal:
        return frozenset(map(type, inner))
    if origin is Annotated:
        return _types(inner[0], bindings)
    if isinstance(hint, NewType):
        return _types(hint.__supertype__, bindings)
    if typing.is_typeddict(hint):
        return bindings[dict]
    try:
        return bindings.get(origin or hint)
    except TypeError:  # an unhashable hint
        return None
