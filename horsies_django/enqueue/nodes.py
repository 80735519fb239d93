"""The nodes of workflows, as users write them.

A node is immutable, and validated together with the workflow that it goes into. Errors that show earlier are in its
``errors``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeAlias, TypeVar, cast

from ..core.results import TaskError, TaskResult
from ..core.serialization import clean_text
from ..core.workflow_errors import NodeError, shown
from ..core.workflow_status import Join, NodeKind
from .flow import FlowPart
from .node_option_types import Condition

if TYPE_CHECKING:
    from .task import HorsiesTask

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: The maximum length of the name of an event, in characters.
EVENT_NAME_LENGTH: Final = 100

#: The node, or the nodes, whose values fill a parameter.
Source: TypeAlias = "Node[Any] | tuple[Node[Any], ...]"


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
