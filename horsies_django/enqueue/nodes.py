"""The nodes of workflows, as users write them, their order, and what a node's function may take besides its arguments.

A node is immutable, and validated together with the workflow that it goes into. Errors that show earlier are in its
``errors``. ``a >> [b, c] >> d`` keeps the order apart from the nodes: it returns a :class:`Flow`, which goes into a
workflow like a node. So one node can be part of several workflows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeAlias, TypeVar, cast, overload
from uuid import UUID

from ..core.results import TaskError, TaskResult
from ..core.serialization import clean_text
from ..core.workflow_errors import NodeError, shown
from ..core.workflow_status import Join, NodeKind, WorkflowStatus

if TYPE_CHECKING:
    from .task import HorsiesTask

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: The type of ``run_when`` and ``skip_when``: called once, when the node would become ready.
Condition = Callable[["WorkflowContext"], bool]

#: The maximum length of the name of an event, in characters.
EVENT_NAME_LENGTH: Final = 100

#: The parameters that a workflow fills: with a :class:`WorkflowMeta`, and a :class:`WorkflowContext`.
META_PARAM: Final = "workflow_meta"
CTX_PARAM: Final = "workflow_ctx"
WORKFLOW_PARAMS: Final = frozenset({META_PARAM, CTX_PARAM})

#: The node, or the nodes, whose values fill a parameter.
Source: TypeAlias = "Node[Any] | tuple[Node[Any], ...]"


class FlowPart:
    """A node, or a flow of nodes."""

    __slots__ = ()

    def __rshift__(self, later: FlowPart | Iterable[FlowPart]) -> Flow:
        """``self >> later``: the heads of ``later`` wait for the tails of this."""
        return NotImplemented if (flow := _flow(later)) is None else _chain(_as_flow(self), flow)

    def __rrshift__(self, earlier: Iterable[FlowPart]) -> Flow:
        """``[a, b] >> self``: the heads of this wait for all of them."""
        return NotImplemented if (flow := _flow(earlier)) is None else _chain(flow, _as_flow(self))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Flow(FlowPart):
    """Nodes and their order.

    ``parts`` run in parallel. With ``is_chain`` there are two parts, and the heads of the second wait for the tails of
    the first.
    """

    parts: tuple[FlowPart, ...]
    heads: tuple[Node[Any], ...]
    tails: tuple[Node[Any], ...]
    is_chain: bool = False

    def __repr__(self) -> str:
        return f"<Flow from {list(self.heads)} to {list(self.tails)}>"


@dataclass(frozen=True, slots=True)
class Dependency:
    """Each of ``later`` waits for each of ``earlier``."""

    earlier: tuple[Node[Any], ...]
    later: tuple[Node[Any], ...]


def together(*parts: FlowPart) -> Flow:
    """Return nodes, or flows, that run in parallel: ``together(a, b) >> [c, d]``.

    Needed only at the beginning: ``[a, b] >> [c, d]`` is an operation of two lists, and raises TypeError.
    """
    if (flow := _flow(parts)) is None:
        raise TypeError(f"together() got {parts!r}; allowed: nodes, and flows of them.")
    return flow


def walk(part: FlowPart) -> Iterator[Node[Any] | Dependency]:
    """Yield the nodes of a part in the order in which they are written, and the dependencies between them."""
    stack = [part]
    while stack:
        if isinstance(item := stack.pop(), Flow):
            if item.is_chain:
                yield Dependency(_as_flow(item.parts[0]).tails, _as_flow(item.parts[1]).heads)
            stack.extend(reversed(item.parts))
        else:
            yield item  # type: ignore[misc]  # a part that is no flow is a node


def _as_flow(part: FlowPart) -> Flow:
    return part if isinstance(part, Flow) else Flow((part,), (part,), (part,))  # type: ignore[arg-type]  # a node


def _flow(value: object) -> Flow | None:
    if isinstance(value, FlowPart):
        return _as_flow(value)
    if not isinstance(value, Iterable):
        return None
    parts = tuple(value)
    if not all(isinstance(part, FlowPart) for part in parts):
        return None
    flows = [_as_flow(part) for part in parts]
    return Flow(
        parts,
        tuple(node for flow in flows for node in flow.heads),
        tuple(node for flow in flows for node in flow.tails),
    )


def _chain(first: Flow, second: Flow) -> Flow:
    if not (first.parts and second.parts):
        return first if first.parts else second  # an empty list between two nodes changes nothing
    return Flow((first, second), first.heads, second.tails, is_chain=True)


@dataclass(frozen=True)  # with slots, NodeKey[str]("…") would raise before Python 3.13
class NodeKey(Generic[T_co]):
    """The id of a node, with the type of its value: looks up a result without the node object.

    >>> REPORT: NodeKey[str] = NodeKey("report")
    """

    node_id: str


@dataclass(frozen=True, slots=True)
class ResultOf:
    """The run-time value of ``node.result``: marks that a parameter takes the TaskResult rather than the ok value."""

    node: Node[Any]


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Node(FlowPart, Generic[T_co]):
    """A step of a workflow; ``T`` is the type of its ok value. Nodes are compared by identity."""

    #: How the engine runs the node.
    kind: ClassVar[NodeKind]

    node_id: str | None = None
    waits_for: tuple[Node[Any], ...] = ()
    allow_failed_deps: bool = False
    join: Join = Join.ALL
    min_success: int | None = None
    run_when: Condition | None = None
    skip_when: Condition | None = None
    errors: tuple[NodeError, ...] = ()

    @property
    def label(self) -> str:
        """Describes the node in error messages."""
        raise NotImplementedError

    @property
    def value(self) -> T_co:
        """The ok value, as an argument of a later node: ``save.node()(data=fetch.value)``.

        To a type checker it has the type of the value; at run time it is the node, so ``data=fetch`` means the same.
        """
        return cast("T_co", self)

    @property
    def result(self) -> TaskResult[T_co, TaskError[Any]]:
        """The TaskResult, ok or err, as an argument of a later node: ``report.node()(outcome=fetch.result)``."""
        return cast("TaskResult[T_co, TaskError[Any]]", ResultOf(self))

    @property
    def key(self) -> NodeKey[T_co]:
        """The key of the node. Raises ValueError for a node without its own ``node_id``; use ``Workflow.key(node)``."""
        if self.node_id is None:
            raise ValueError(f"{self!r} has no node_id of its own; Workflow.key(node) returns its key in a workflow.")
        return NodeKey(self.node_id)

    def __repr__(self) -> str:
        name = f" {self.node_id!r}" if self.node_id is not None else ""
        return f"<{type(self).__name__}{name}: {self.label}>"


#: A node of a workflow, as object, key or id.
NodeRef: TypeAlias = Node[T] | NodeKey[T] | str


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class CallNode(Node[T_co]):
    """A node that calls a function: ``kwargs`` are plain values, the other three are filled by nodes."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    args_from: Mapping[str, Source] = field(default_factory=dict)
    values_from: Mapping[str, Source] = field(default_factory=dict)
    workflow_ctx_from: tuple[Node[Any], ...] | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class TaskNode(CallNode[T_co]):
    """The call of a task, from ``task.node(**options)(**kwargs)``; ``options`` override those of the task."""

    task: HorsiesTask[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    kind = NodeKind.TASK

    @property
    def label(self) -> str:
        return self.task.task_name


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class MapNode(TaskNode[list[T]], Generic[T]):
    """One call of a task for each item of the list that ``over`` returns; its value is the list of theirs, in order."""

    over: Node[Any] | None
    param: str | None = None

    kind = NodeKind.MAP


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class SleepNode(Node[None]):
    """Waits for a time without holding a worker; :func:`sleep` makes one."""

    until: float | timedelta | datetime

    kind = NodeKind.SLEEP

    @property
    def label(self) -> str:
        return f"sleep({self.until!r})"


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class EventNode(Node[Any]):
    """Waits for an event without holding a worker; :func:`wait_for_event` makes one. Its value is the payload."""

    event_name: str
    timeout: float | timedelta | None = None

    kind = NodeKind.EVENT

    @property
    def label(self) -> str:
        return f"wait_for_event({self.event_name!r})"


def nodes_in(source: Source) -> Sequence[Node[Any]]:
    """Return the nodes of a source."""
    return source if isinstance(source, tuple) else (source,)


def event_name_error(name: object) -> str | None:
    """Return why this can't be the name of an event; None if it can."""
    if isinstance(name, str) and 0 < len(name) <= EVENT_NAME_LENGTH and name == clean_text(name):
        return None
    return f"{shown(name)}; allowed: a text of 1 to {EVENT_NAME_LENGTH} characters."


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowMeta:
    """The position of a node, for the parameter ``workflow_meta``."""

    workflow_id: UUID
    task_index: int
    task_name: str
    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubWorkflowSummary:
    """How a subworkflow ended: the number of nodes with each status, and its error as text."""

    workflow_id: UUID | None
    status: WorkflowStatus
    total: int = 0
    completed: int = 0
    failed: int = 0
    skipped: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowContext:
    """The results of the nodes of ``workflow_ctx_from``, for the parameter ``workflow_ctx``.

    Nodes are given by id, by :class:`~horsies_django.NodeKey`, or as objects that have a ``node_id`` or belong to a
    definition.
    """

    workflow_id: UUID
    task_index: int
    task_name: str
    node_id: str
    results: Mapping[str, TaskResult[Any, TaskError[Any]]] = field(default_factory=dict)
    summaries: Mapping[str, SubWorkflowSummary] = field(default_factory=dict)
    #: The ids of nodes without their own, where the definition is known.
    node_ids: Mapping[Node[Any], str] = field(default_factory=dict)

    @overload
    def result_for(self, node: Node[T] | NodeKey[T]) -> TaskResult[T, TaskError[Any]]: ...
    @overload
    def result_for(self, node: str) -> TaskResult[Any, TaskError[Any]]: ...
    def result_for(self, node: NodeRef[Any]) -> TaskResult[Any, TaskError[Any]]:
        """Return a node's result. Raises KeyError for a node outside ``workflow_ctx_from``."""
        return self.results[self._listed(node, self.results)]

    def has_result(self, node: NodeRef[Any]) -> bool:
        """Whether there is a result of this node."""
        return self._id_of(node) in self.results

    def summary_for(self, node: NodeRef[Any]) -> SubWorkflowSummary:
        """Return how a subworkflow ended. Raises KeyError for a node outside ``workflow_ctx_from``."""
        return self.summaries[self._listed(node, self.summaries)]

    def has_summary(self, node: NodeRef[Any]) -> bool:
        """Whether there is a summary of this node."""
        return self._id_of(node) in self.summaries

    def _listed(self, node: NodeRef[Any], names: Mapping[str, Any]) -> str:
        if (node_id := self._id_of(node)) in names:
            return node_id
        allowed = ", ".join(map(repr, names)) or "none"
        raise KeyError(f"{node_id!r} is not in the workflow_ctx_from of node {self.node_id!r}; there are: {allowed}.")

    def _id_of(self, node: NodeRef[Any]) -> str:
        if isinstance(node, str):
            return node
        if isinstance(node, NodeKey):
            return node.node_id
        return self.node_ids.get(node) or node.key.node_id
