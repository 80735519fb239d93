"""What the function of a node may take besides its arguments: its position and the results of other nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload
from uuid import UUID

from ..core.results import TaskError, TaskResult
from ..core.workflow_status import WorkflowStatus
from .nodes import Node, NodeKey, NodeRef

T = TypeVar("T")


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

    def _listed(self, node: NodeRef[Any], known: Mapping[str, Any]) -> str:
        if (node_id := self._id_of(node)) in known:
            return node_id
        allowed = ", ".join(map(repr, known)) or "none"
        raise KeyError(f"{node_id!r} is not in the workflow_ctx_from of node {self.node_id!r}; there are: {allowed}.")

    def _id_of(self, node: NodeRef[Any]) -> str:
        if isinstance(node, str):
            return node
        if isinstance(node, NodeKey):
            return node.node_id
        return self.node_ids.get(node) or node.key.node_id
