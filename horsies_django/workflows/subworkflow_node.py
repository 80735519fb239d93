"""The node of a subworkflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..core.workflow_status import NodeKind
from ..enqueue.node_factories import SubWorkflowNodeOptions, check_option_names, node_fields
from ..enqueue.nodes import CallNode
from .definition_meta import Definition

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class SubWorkflowNode(CallNode[T_co]):
    """A workflow as a node of another one, from ``Import.node(**options)(**params)``; its value is the output."""

    definition: type[Definition]
    options: Mapping[str, Any] = field(default_factory=dict)

    kind = NodeKind.SUBWORKFLOW

    @property
    def label(self) -> str:
        """The dotted path of the definition."""
        return self.definition._meta.path


@dataclass(frozen=True, slots=True)
class SubWorkflowNodeFactory(Generic[T_co]):
    """Makes nodes of a subworkflow with the same options; call it with the parameters of ``build_with``."""

    definition: type[Definition]
    options: Mapping[str, Any]

    def __call__(self, /, *args: Any, **kwargs: Any) -> SubWorkflowNode[T_co]:
        """Return a node. See :meth:`TaskNodeFactory.__call__`."""
        return SubWorkflowNode(definition=self.definition, **node_fields(self.options, args, kwargs))


def subworkflow_nodes(definition: type[Any], options: Mapping[str, Any]) -> SubWorkflowNodeFactory[Any]:
    """Return a factory of a subworkflow's nodes. Raises TypeError for an unknown option."""
    check_option_names("node()", options, SubWorkflowNodeOptions.__optional_keys__)
    return SubWorkflowNodeFactory(definition, options)
