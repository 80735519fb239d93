"""A workflow, as a user writes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, cast, overload
from uuid import UUID

from asgiref.sync import sync_to_async

from ..core.results import TaskError, TaskResult
from ..core.workflow_status import OnError
from ..enqueue.flow import Part
from ..enqueue.node_factories import check_names
from ..enqueue.nodes import Node, NodeKey, NodeRef
from . import validation
from .blueprint import WorkflowBlueprint
from .success_policy import SuccessPolicy
from .validation import ValidWorkflow, WorkflowOptions, build, index_of

if TYPE_CHECKING:
    from .handle import WorkflowHandle

T = TypeVar("T")
V = TypeVar("V")

#: Nodes, and flows of them (``a >> b``), alone or in a list; in a dict their names are the nodes' ids.
Nodes = Part | Iterable[Part] | Mapping[str, Part]

#: What a workflow without an output gives: the result of each node for which none waits, by id.
Results = dict[str, TaskResult[Any, TaskError[Any]]]


class WorkflowKeywords(TypedDict, total=False):
    """What a workflow takes beside its name, its nodes and its output."""

    on_error: OnError
    success_policy: SuccessPolicy | None
    good_until: datetime | None
    priority: int | None
    queue_name: str | None
    unique_key: str | None
    definition_key: str | None
    backend: str | None


class CopyKeywords(WorkflowKeywords, total=False):
    """What a copy of a workflow may have otherwise."""

    name: str
    output: NodeRef[Any] | None


class Workflow(Generic[T]):
    """Nodes, their order, and what is to come of them; ``T`` is the type of its output.

    >>> Workflow("import", fetch >> [parse, check] >> store, on_error=OnError.PAUSE, output=store)

    ``nodes`` are nodes, flows (``a >> b``), or a list of them; in a dict, the names are the nodes' ids. A node that is
    given none has ``<slug of the name>:<place>``. ``queue_name``, ``priority`` and ``good_until`` are for the nodes
    that don't say otherwise. Without an ``output`` the result is that of each node for which none waits, by id.

    It is judged as it is made: InvalidWorkflow has every mistake. It never changes after, nor do its nodes, which may
    go into other workflows too.
    """

    __slots__ = ("_built", "_options")

    _built: ValidWorkflow
    _options: WorkflowOptions

    @overload
    def __init__(
        self: Workflow[T],
        name: str,
        nodes: Nodes,
        *,
        output: Node[T] | NodeKey[T],
        **options: Unpack[WorkflowKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Workflow[Results],
        name: str,
        nodes: Nodes,
        *,
        output: None = ...,
        **options: Unpack[WorkflowKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Workflow[Any], name: str, nodes: Nodes, *, output: str, **options: Unpack[WorkflowKeywords]
    ) -> None: ...
    def __init__(self, name: str, nodes: Nodes, **options: Any) -> None:
        """Raise InvalidWorkflow with every mistake there is, and TypeError for an unknown option."""
        check_names("Workflow()", options, WorkflowKeywords.__optional_keys__ | {"output"})
        self._set(WorkflowOptions(name=name, nodes=_frozen(nodes), **options))

    def _set(self, options: WorkflowOptions) -> None:
        object.__setattr__(self, "_options", options)
        object.__setattr__(self, "_built", build(options))

    def with_options(self, **options: Unpack[CopyKeywords]) -> Workflow[T]:
        """Return a copy with other options: those of the constructor, but for the nodes. None clears one.

        Raises TypeError for any other name, and InvalidWorkflow.
        """
        check_names("with_options()", options, CopyKeywords.__optional_keys__)
        copy: Workflow[T] = object.__new__(Workflow)
        copy._set(replace(self._options, **options))
        return copy

    def with_key(self, definition_key: str | None) -> Workflow[T]:
        """Return it with the key of the definition that it was built by; nothing else of it is judged again."""
        copy: Workflow[T] = object.__new__(Workflow)
        built = replace(self._built, blueprint=replace(self._built.blueprint, definition_key=definition_key))
        object.__setattr__(copy, "_options", replace(self._options, definition_key=definition_key))
        object.__setattr__(copy, "_built", built)
        return copy

    def start(
        self,
        workflow_id: UUID | str | None = None,
        *,
        schedule_id: int | None = None,
        scheduled_for: datetime | None = None,
    ) -> WorkflowHandle[T]:
        """Start it as part of the current transaction and return its handle (P-01).

        With a ``workflow_id`` that is there already, or a ``unique_key`` that a live one has, that run's handle comes
        back (W-70). Raises PayloadMismatch if it has another name. ``schedule_id`` is that of the schedule's row,
        ``scheduled_for`` its slot.
        """
        from .handle import WorkflowHandle
        from .start import start

        given = validation.workflow_id(workflow_id, self.name)
        blueprint = self.blueprint()
        started = start(blueprint, given, schedule_id, scheduled_for)
        node_ids = dict(zip(self.nodes, self.node_ids, strict=True))
        return WorkflowHandle(started.id, backend=blueprint.backend, node_ids=node_ids, replayed=not started.is_new)

    async def astart(self, workflow_id: UUID | str | None = None) -> WorkflowHandle[T]:
        """See :meth:`start`."""
        return await sync_to_async(self.start)(workflow_id)

    def blueprint(self) -> WorkflowBlueprint:
        """Return what goes to the engine."""
        return self._built.blueprint

    @property
    def name(self) -> str:
        """What it is called."""
        return self._built.blueprint.name

    @property
    def nodes(self) -> tuple[Node[Any], ...]:
        """Its nodes, in the order in which they were given."""
        return self._built.topology.nodes

    @property
    def node_ids(self) -> tuple[str, ...]:
        """The ids of its nodes, in the same order."""
        return self._built.topology.ids

    @property
    def options(self) -> WorkflowOptions:
        """What it was made with."""
        return self._options

    @property
    def output(self) -> Node[T] | None:
        """The node whose value is the workflow's, if there is one."""
        place = self._built.blueprint.output_index
        return None if place is None else cast("Node[T]", self.nodes[place])

    def index(self, node: NodeRef[Any]) -> int:
        """Return a node's place. Raises KeyError for one that is not in the workflow."""
        if (place := index_of(node, self._built.topology)) is None:
            raise KeyError(f"{node!r} is not in {self!r}.")
        return place

    def key(self, node: Node[V]) -> NodeKey[V]:
        """Return the key of a node, which has its id here. Raises KeyError for one that is not in the workflow."""
        return NodeKey(self.node_ids[self.index(node)])

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self!r} can't be changed; with_options() gives a copy.")

    __delattr__ = __setattr__  # type: ignore[assignment]  # it takes no value, and comes to the same

    def __repr__(self) -> str:
        return f"<Workflow {self.name!r}: {len(self.nodes):,} nodes>"


def _frozen(nodes: Any) -> Any:
    """Return what nobody else can change, or use up."""
    if isinstance(nodes, Part | str) or not isinstance(nodes, Iterable):
        return nodes
    return dict(nodes) if isinstance(nodes, Mapping) else tuple(nodes)
