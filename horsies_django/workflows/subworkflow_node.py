"""The node of a subworkflow, and the check for definitions that contain themselves, which could never be built.

The check follows only subworkflows without arguments. One with arguments may end: that shows when it is built in a run,
where the number of levels is limited (see engine_tasks.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

from ..core.current_task import dry_run
from ..core.exceptions import InvalidWorkflow
from ..core.workflow_errors import DefinitionErrorCode, NodeError
from ..core.workflow_status import NodeKind
from ..enqueue.node_factories import SubWorkflowNodeOptions, check_option_names, node_fields
from ..enqueue.nodes import CallNode
from .definition_registry import Definition

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


#: The definitions that are being built, from the outermost; None stands for one with arguments.
_building: Final[ContextVar[tuple[type[Definition] | None, ...]]] = ContextVar("horsies_building", default=())

#: Definitions known not to contain themselves.
_without_recursion: Final[WeakSet[type[Definition]]] = WeakSet()


@contextmanager
def building(definition: type[Definition], *, has_arguments: bool) -> Iterator[None]:
    """Mark a definition as being built in the block."""
    token = _building.set((*_building.get(), None if has_arguments else definition))
    try:
        yield
    finally:
        _building.reset(token)


def definition_errors(node: SubWorkflowNode[Any]) -> Iterator[NodeError]:
    """Yield the error of a node whose definition is not registered, or contains itself."""
    if not node.definition._meta.is_registered:
        problem = f"{node.label} is abstract or has no definition_key; allowed: a definition with a key."
        yield DefinitionErrorCode.UNREGISTERED_SUBWORKFLOW, problem
    elif not _has_arguments(node) and (recursion := _find_recursion(node.definition)):
        yield DefinitionErrorCode.CONTAINS_ITSELF, recursion


def _has_arguments(node: CallNode[Any]) -> bool:
    return bool(node.args or node.kwargs or node.args_from or node.values_from or node.workflow_ctx_from)


def _find_recursion(definition: type[Definition]) -> str | None:
    """Return the error if this subworkflow, without arguments, makes a definition contain itself; None if not."""
    above = _building.get()
    if definition in above:
        cycle = [*above[above.index(definition) :], definition]
        chain = " >> ".join(str(each._meta.options.definition_key) for each in cycle if each is not None)
        return f"a definition contains itself: {chain}; allowed: no cycle."
    if definition in _without_recursion:
        return None
    problem = _find_recursion_within(definition)
    if problem is None:
        _without_recursion.add(definition)
    return problem


def _find_recursion_within(definition: type[Definition]) -> str | None:
    try:
        with dry_run():
            definition.build_with()
    except InvalidWorkflow as error:
        return next((each.problem for each in error.mistakes if each.code is DefinitionErrorCode.CONTAINS_ITSELF), None)
    except Exception:  # noqa: BLE001  # user code; other errors are reported when it is built itself
        return None
    return None
