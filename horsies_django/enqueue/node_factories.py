"""Factories of nodes: ``task.node(**options)(**kwargs)``, ``task.map()``, ``sleep()``, ``wait_for_event()``.

Their options are TypedDicts, so that editors complete them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypedDict, TypeVar, Unpack

from ..core.option_parsers import Retention
from ..core.retry import RetryPolicy
from ..core.workflow_errors import DefinitionErrorCode, NodeError, shown
from ..core.workflow_status import Join
from .nodes import Condition, EventNode, MapNode, Node, ResultOf, SleepNode, Source, TaskNode

if TYPE_CHECKING:
    from .task import HorsiesTask

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_ONE_OR_MORE: Final = "allowed: a node, or a list of nodes."


class StepOptions(TypedDict, total=False):
    """The options of every node.

    ``join`` sets how many of the nodes that it waits for must complete (with QUORUM: ``min_success``).
    ``allow_failed_deps`` starts it even if some have not completed. ``run_when`` and ``skip_when`` are conditions.
    """

    node_id: str | None
    waits_for: Node[Any] | Iterable[Node[Any]]
    allow_failed_deps: bool
    join: Join
    min_success: int | None
    run_when: Condition | None
    skip_when: Condition | None


class InputOptions(StepOptions, total=False):
    """The options of nodes with parameters.

    ``args_from`` fills a parameter with the :class:`~horsies_django.TaskResult` of a node, ``values_from`` with its ok
    value; a list of nodes fills it with a list. ``workflow_ctx_from`` lists the nodes in the parameter
    ``workflow_ctx``.
    """

    args_from: Mapping[str, Node[Any] | ResultOf | Iterable[Node[Any]]]
    values_from: Mapping[str, Node[Any] | Iterable[Node[Any]]]
    workflow_ctx_from: Node[Any] | Iterable[Node[Any]] | None


class TaskNodeOptions(InputOptions, total=False):
    """The options of a task's node: those of the task, as in ``with_options()``, and those of a node."""

    queue_name: str | None
    priority: int | None
    good_until: datetime | None
    retry_policy: RetryPolicy | None
    timeout: float | None
    retention: Retention
    metadata: Mapping[str, Any] | None


class SubWorkflowNodeOptions(InputOptions, total=False):
    """The options of a subworkflow's node: ``retry_policy`` runs the whole subworkflow again."""

    retry_policy: RetryPolicy | None


STEP_OPTIONS: Final = StepOptions.__optional_keys__
INPUT_OPTIONS: Final = InputOptions.__optional_keys__ - STEP_OPTIONS
#: The options that a node passes to its task.
SEND_OPTIONS: Final = TaskNodeOptions.__optional_keys__ - STEP_OPTIONS - INPUT_OPTIONS


@dataclass(frozen=True, slots=True)
class TaskNodeFactory(Generic[P, T_co]):
    """Makes nodes of a task with the same options; call it with the arguments of the task's function."""

    task: HorsiesTask[P, Any]
    options: Mapping[str, Any]

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskNode[T_co]:
        """Return a node.

        Arguments are given by name. An argument that is a node, or a list of nodes, is replaced by its value when the
        task runs. ``node.value`` means the same and has the type of the value.
        """
        return TaskNode(task=self.task, **node_fields(self.options, args, kwargs))


def task_nodes(task: HorsiesTask[P, Any], options: Mapping[str, Any]) -> TaskNodeFactory[P, Any]:
    """Return a factory of a task's nodes. Raises TypeError for an unknown option."""
    check_option_names("node()", options, TaskNodeOptions.__optional_keys__)
    return TaskNodeFactory(task, options)


def map_node(
    task: HorsiesTask[..., Any],
    over: Any,
    param: str | None,
    kwargs: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> MapNode[Any]:
    """Return the node of ``task.map()``. Raises TypeError for an unknown option."""
    check_option_names("map()", options, TaskNodeOptions.__optional_keys__)
    node_errors: list[NodeError] = []
    if not isinstance(kwargs, Mapping | None):
        node_errors.append(
            (DefinitionErrorCode.INVALID_MAP, f"kwargs is {shown(kwargs)}; allowed: a dict of arguments.")
        )
        kwargs = None
    fields = node_fields(options, (), kwargs or {})
    if isinstance(over, Node):
        fields["waits_for"] = (*fields.get("waits_for", ()), over)
    else:
        node_errors.append(
            (DefinitionErrorCode.INVALID_MAP, f"over is {shown(over)}; allowed: a node whose value is a list.")
        )
    fields["errors"] = (*fields.get("errors", ()), *node_errors)
    return MapNode(task=task, over=over if isinstance(over, Node) else None, param=param, **fields)


def sleep(until: float | timedelta | datetime, **options: Unpack[StepOptions]) -> SleepNode:
    """Return a node that waits: for seconds or a timedelta from its start, or until an aware datetime.

    It holds no worker. Its value is None.
    """
    check_option_names("sleep()", options, STEP_OPTIONS)
    return SleepNode(until=until, **node_fields(options, (), {}))


def wait_for_event(name: str, timeout: float | timedelta | None = None, **options: Unpack[StepOptions]) -> EventNode:
    """Return a node that waits for ``handle.send_event(name, payload)``, at most ``timeout`` seconds from its start.

    It holds no worker; an event that was sent before its start counts. Its value is the payload.
    """
    check_option_names("wait_for_event()", options, STEP_OPTIONS)
    return EventNode(event_name=name, timeout=timeout, **node_fields(options, (), {}))


def check_option_names(where: str, options: Mapping[str, Any], allowed: frozenset[str]) -> None:
    """Raise TypeError for an option that is not allowed."""
    if unknown := options.keys() - allowed:
        names, others = ", ".join(sorted(unknown)), ", ".join(sorted(allowed))
        raise TypeError(f"{where} got unknown option {names}; allowed: {others}.")


def node_fields(options: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a node for these options and arguments, with the errors that show already."""
    fields: dict[str, Any] = {}
    node_errors: list[NodeError] = []
    waits_for: list[Node[Any]] = []
    if options:
        fields, waits_for = _from_options(options, node_errors)
    if kwargs:
        _add_arguments(fields, kwargs, waits_for, node_errors)
    if args:
        fields["args"] = args
    if waits_for:
        fields["waits_for"] = tuple(waits_for)
    if node_errors:
        fields["errors"] = tuple(node_errors)
    return fields


def _from_options(options: Mapping[str, Any], node_errors: list[NodeError]) -> tuple[dict[str, Any], list[Node[Any]]]:
    fields = {name: value for name, value in options.items() if name in STEP_OPTIONS}
    if sending := {name: value for name, value in options.items() if name in SEND_OPTIONS}:
        fields["options"] = sending
    waits_for = _nodes("waits_for", fields.pop("waits_for", ()), DefinitionErrorCode.INVALID_DEPENDENCY, node_errors)
    if (context := options.get("workflow_ctx_from")) is not None:
        fields["workflow_ctx_from"] = tuple(
            _nodes("workflow_ctx_from", context, DefinitionErrorCode.INVALID_CTX_FROM, node_errors)
        )
    for name in ("args_from", "values_from"):
        if name in options:
            fields[name] = dict(_sources(name, options[name], node_errors))
    node_errors += [
        (DefinitionErrorCode.GIVEN_TWICE, f"{param!r} is in args_from and in values_from; allowed: one of them.")
        for param in fields.get("args_from", {}).keys() & fields.get("values_from", {}).keys()
    ]
    return fields, waits_for


def _nodes(name: str, value: Any, code: DefinitionErrorCode, node_errors: list[NodeError]) -> list[Node[Any]]:
    if isinstance(value, Node):
        return [value]
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        node_errors.append((code, f"{name} is {shown(value)}; {_ONE_OR_MORE}"))
        return []
    nodes = list(value)
    if invalid := [node for node in nodes if not isinstance(node, Node)]:
        node_errors.append((code, f"{name} has {shown(invalid[0])}; {_ONE_OR_MORE}"))
    return [node for node in nodes if isinstance(node, Node)]


def _sources(name: str, value: Any, node_errors: list[NodeError]) -> Iterator[tuple[str, Source]]:
    if not isinstance(value, Mapping):
        node_errors.append(
            (DefinitionErrorCode.INVALID_ARGS_FROM, f"{name} is {shown(value)}; allowed: a dict of parameter to node.")
        )
        return
    for param, node in value.items():
        source = _source(node)
        # In args_from a node means its result, with or without ``.result``.
        if isinstance(param, str) and source and (source[0] is Node or name == "args_from"):
            yield param, source[1]
        else:
            problem = f"{name}[{param!r}] is {shown(node)}; {_ONE_OR_MORE}"
            node_errors.append((DefinitionErrorCode.INVALID_ARGS_FROM, problem))


def _source(value: Any) -> tuple[type, Source] | None:
    """Return the nodes that an argument stands for, and whether as values (Node) or as results (ResultOf)."""
    first = value[0] if isinstance(value, list | tuple) and value else value
    if not isinstance(first, Node | ResultOf):
        return None
    if first is value:
        return (Node, value) if isinstance(value, Node) else (ResultOf, value.node)
    kind = Node if isinstance(first, Node) else ResultOf
    if not all(isinstance(member, kind) for member in value):
        return None  # encoding reports the mixed items
    return kind, tuple(value) if kind is Node else tuple(member.node for member in value)


def _add_arguments(
    fields: dict[str, Any], kwargs: Mapping[str, Any], waits_for: list[Node[Any]], node_errors: list[NodeError]
) -> None:
    """Separate arguments that are nodes from plain values, and wait for the nodes."""
    plain: dict[str, Any] = {}
    for name, value in kwargs.items():
        if name in fields.get("args_from", ()) or name in fields.get("values_from", ()):
            problem = f"{name!r} is an argument and in args_from or values_from; allowed: one of them."
            node_errors.append((DefinitionErrorCode.GIVEN_TWICE, problem))
        if (pair := _source(value)) is None:
            plain[name] = value
            continue
        kind, source = pair
        fields.setdefault("values_from" if kind is Node else "args_from", {})[name] = source
        waits_for.extend(source if isinstance(source, tuple) else (source,))
    fields["kwargs"] = plain
