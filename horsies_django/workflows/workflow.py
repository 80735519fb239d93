"""Workflows, as users write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict, TypeVar, Unpack, cast, overload
from uuid import UUID

from asgiref.sync import sync_to_async

from ..core.exceptions import InvalidWorkflow
from ..core.ids import parse_uuid
from ..core.results import TaskError, TaskResult
from ..core.workflow_errors import DefinitionError, DefinitionErrorCode
from ..core.workflow_status import OnError
from ..enqueue.node_factories import check_option_names
from ..enqueue.nodes import FlowPart, Node, NodeKey, NodeRef
from .compile import Blueprint, SuccessPolicy, build

if TYPE_CHECKING:
    from .handle import WorkflowHandle

T = TypeVar("T")
V = TypeVar("V")

#: Nodes and flows (``a >> b``), alone or in a list; in a dict the keys are the ids of the nodes.
Nodes = FlowPart | Iterable[FlowPart] | Mapping[str, FlowPart]

#: The result of a workflow without an output: the results of all nodes without dependents, by id.
Results = dict[str, TaskResult[Any, TaskError[Any]]]


class WorkflowKeywords(TypedDict, total=False):
    """The options of a workflow besides its name, nodes and output."""

    on_error: OnError
    success_policy: SuccessPolicy | None
    good_until: datetime | None
    priority: int | None
    queue_name: str | None
    unique_key: str | None
    definition_key: str | None
    backend: str | None


class CopyKeywords(WorkflowKeywords, total=False):
    """The options of a copy of a workflow."""

    name: str
    output: NodeRef[Any] | None


class Workflow(Generic[T]):
    """Nodes, their order and their options; ``T`` is the type of the output.

        >>> Workflow("import", fetch >> [parse, check] >> store, on_error=OnError.PAUSE, output=store)

    ``nodes`` are nodes, flows (``a >> b``), or a list of them; in a dict, the keys are the ids of the nodes. The
    default id of a node is ``<slug of the name>:<index>``. Nodes inherit ``queue_name``, ``priority`` and
    ``good_until`` unless they have their own. Without an ``output`` the result has the results of all nodes without
    dependents, by id.

    The constructor validates the workflow and raises InvalidWorkflow with all errors. A workflow is immutable, as are
    its nodes, which may also be part of other workflows.
    """

    __slots__ = ("_blueprint", "_options")

    _blueprint: Blueprint
    _options: Mapping[str, Any]

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
        """Raise InvalidWorkflow with all errors, and TypeError for an unknown option."""
        check_option_names("Workflow()", options, WorkflowKeywords.__optional_keys__ | {"output"})
        options |= {"name": name, "nodes": _frozen(nodes)}
        self._set(options, build(options))

    def _set(self, options: Mapping[str, Any], blueprint: Blueprint) -> Self:
        object.__setattr__(self, "_options", options)
        object.__setattr__(self, "_blueprint", blueprint)
        return self

    def with_options(self, **options: Unpack[CopyKeywords]) -> Workflow[T]:
        """Return a copy with other options, those of the constructor without the nodes. None clears an option.

        Raises TypeError for an unknown option, and InvalidWorkflow.
        """
        check_option_names("with_options()", options, CopyKeywords.__optional_keys__)
        changed = {**self._options, **options}
        return Workflow[T].__new__(Workflow)._set(changed, build(changed))

    def with_key(self, definition_key: str | None) -> Workflow[T]:
        """Return the workflow with the key of its definition, without validating it again."""
        key = {"definition_key": definition_key}
        blueprint = replace(self._blueprint, columns={**self._blueprint.columns, **key})
        return Workflow[T].__new__(Workflow)._set({**self._options, **key}, blueprint)

    def start(
        self,
        workflow_id: UUID | str | None = None,
        *,
        schedule_id: int | None = None,
        scheduled_for: datetime | None = None,
    ) -> WorkflowHandle[T]:
        """Start the workflow as part of the current transaction and return its handle.

        Returns the handle of the existing run if there is one with this ``workflow_id``, or a live one with its
        ``unique_key``. Raises PayloadMismatch if that has another name. ``schedule_id`` is the id of the schedule,
        ``scheduled_for`` its slot.
        """
        from .handle import WorkflowHandle
        from .start import start

        try:
            key = None if workflow_id is None else parse_uuid(workflow_id, "workflow_id")
        except ValueError as error:
            code = DefinitionErrorCode.INVALID_WORKFLOW_ID
            raise InvalidWorkflow([DefinitionError(code, self.name, None, str(error))]) from None
        started, is_new = start(self._blueprint, key, schedule_id, scheduled_for)
        node_ids = dict(zip(self.nodes, self.node_ids, strict=True))
        return WorkflowHandle(
            started, backend=self._blueprint.columns["backend"], node_ids=node_ids, replayed=not is_new
        )

    async def astart(self, workflow_id: UUID | str | None = None) -> WorkflowHandle[T]:
        """See :meth:`start`."""
        return await sync_to_async(self.start)(workflow_id)

    def blueprint(self) -> Blueprint:
        """Return the blueprint for the engine."""
        return self._blueprint

    @property
    def name(self) -> str:
        """The name of the workflow."""
        return str(self._blueprint.columns["name"])

    @property
    def nodes(self) -> tuple[Node[Any], ...]:
        """Its nodes, in the order in which they were given."""
        return self._blueprint.topology.nodes

    @property
    def node_ids(self) -> tuple[str, ...]:
        """The ids of its nodes, in the same order."""
        return self._blueprint.topology.ids

    @property
    def output(self) -> Node[T] | None:
        """The node whose value is the workflow's, if there is one."""
        place = self._blueprint.columns["output_index"]
        return None if place is None else cast("Node[T]", self.nodes[place])

    def index(self, node: NodeRef[Any]) -> int:
        """Return the index of a node. Raises KeyError for a node outside the workflow."""
        if (place := self._blueprint.topology.place_of(node)) is None:
            raise KeyError(f"{node!r} is not in {self!r}.")
        return place

    def key(self, node: Node[V]) -> NodeKey[V]:
        """Return the key of a node, with its id in this workflow. Raises KeyError for a node outside the workflow."""
        return NodeKey(self.node_ids[self.index(node)])

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self!r} can't be changed; with_options() gives a copy.")

    __delattr__ = __setattr__  # type: ignore[assignment]  # it takes no value, and raises all the same

    def __repr__(self) -> str:
        return f"<Workflow {self.name!r}: {len(self.nodes):,} nodes>"


def _frozen(nodes: Any) -> Any:
    """Return a copy that the caller can't change or exhaust."""
    if isinstance(nodes, FlowPart | str) or not isinstance(nodes, Iterable):
        return nodes
    return dict(nodes) if isinstance(nodes, Mapping) else tuple(nodes)
