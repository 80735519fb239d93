"""Workflows that have a name of their own: classes whose attributes are the nodes, and functions that build them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, ParamSpec, TypeVar, Unpack, cast, overload

from ..core.annotations import bare_signature
from ..core.exceptions import InvalidWorkflow
from ..core.registry import registry
from ..core.workflow_errors import DefinitionErrorCode, ErrorList, NodeError, shown
from ..enqueue.node_factories import SubWorkflowNodeOptions
from ..enqueue.nodes import FlowPart
from .conditions import register_conditions_of
from .definition_registry import Builder, DefinitionMeta, definition_registry, meta_of
from .inputs import are_disjoint, describe, produced_types, value_types
from .subworkflow_node import SubWorkflowNodeFactory, building, subworkflow_nodes
from .workflow import Workflow

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W", bound=Workflow[Any])

#: Names that the class itself uses.
_RESERVED: Final = frozenset({"build", "build_with", "node"})


def _checked(function: Callable[..., Any]) -> Callable[..., Workflow[Any]]:
    """Wrap a ``build_with``: check the workflow that it returns, and set the definition's key."""

    @functools.wraps(function)
    def build_with(cls: type[WorkflowDefinition[Any]], /, *args: Any, **params: Any) -> Workflow[Any]:
        errors = _errors_of_class(cls)
        try:
            with building(cls, has_arguments=bool(args or params)):
                workflow = function(cls, *args, **params)
        except InvalidWorkflow as error:
            raise InvalidWorkflow([*errors, *error.mistakes]) from error
        if isinstance(workflow, Workflow):
            _check_output(cls, workflow, errors)
        else:
            problem = f"build_with returned {shown(workflow)}; allowed: a Workflow."
            errors.add(DefinitionErrorCode.INVALID_BUILD_WITH, problem)
        if errors:
            raise InvalidWorkflow(errors)
        return cast("Workflow[Any]", workflow.with_key(cls._meta.options.definition_key))

    # It takes no more than the function does, which ``**params`` would promise (see signature_of()).
    build_with.__signature__ = bare_signature(function)  # type: ignore[attr-defined]
    return build_with


class WorkflowDefinition(Generic[T]):
    """A workflow that has a class; ``T`` is the type of its output.

    Attributes that are nodes become its nodes. Their ids are the names of the attributes, unless a node has its own
    ``node_id``. Attributes that are flows (``order = a >> b``) give the order. ``class Meta`` has a ``definition_key``
    and the other options of :class:`~horsies_django.workflows.definition_registry.DefinitionOptions`. Override
    :meth:`build_with` to take parameters.
    """

    _meta: ClassVar[DefinitionMeta]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        class_errors: list[NodeError] = []
        for part in vars(cls).values():
            register_conditions_of(part)
        for name in vars(cls).keys() & _RESERVED:
            if isinstance(vars(cls)[name], FlowPart):
                problem = f"a node can't be named {name!r}; allowed: any other name."
                class_errors.append((DefinitionErrorCode.INVALID_NODE_ID, problem))
        if own := vars(cls).get("build_with"):
            class_errors += _build_with_errors(own)
            if isinstance(own, classmethod):
                registry.read_hints_of(own.__func__)
                setattr(cls, "build_with", classmethod(_checked(own.__func__)))  # noqa: B010  # mypy allows no other way
        takes_params = any("build_with" in vars(kind) for kind in cls.__mro__ if kind is not WorkflowDefinition)
        cls._meta = meta_of(cls, WorkflowDefinition, class_errors, takes_params=takes_params)
        if not cls._meta.options.abstract:
            definition_registry.add(cls)

    @classmethod
    def build(cls) -> Workflow[T]:
        """Return the workflow. Raises InvalidWorkflow with all errors of the definition."""
        return cls.build_with()

    @classmethod
    @_checked
    def build_with(cls, /, *args: Any, **params: Any) -> Workflow[T]:
        """Return the workflow for these parameters; override it as a classmethod that takes some.

        An override returns any Workflow that it makes; the workflow then gets the definition's key.
        """
        if args or params:
            raise TypeError(f"{cls.__qualname__} takes no parameters: it does not override build_with().")
        meta = cls._meta
        key = meta.options.definition_key
        return Workflow(meta.name, _parts_of(cls), definition_key=key, **meta.options.for_workflow())

    @classmethod
    def node(cls, **options: Unpack[SubWorkflowNodeOptions]) -> SubWorkflowNodeFactory[T]:
        """Return a factory of nodes: ``Import.node(waits_for=[a])(day="…")``. See ``task.node()``."""
        return subworkflow_nodes(cls, options)


def _parts_of(cls: type[WorkflowDefinition[Any]]) -> dict[str, FlowPart]:
    """Return nodes and flows by the names of their attributes, those of base classes first."""
    parts: dict[str, FlowPart] = {}
    for kind in reversed(cls.__mro__):
        for name, value in vars(kind).items():
            if isinstance(value, FlowPart):
                parts[name] = value
            else:
                parts.pop(name, None)  # a subclass may replace a node by another value
    return parts


def _errors_of_class(cls: type[WorkflowDefinition[Any]]) -> ErrorList:
    """Return the errors of the class itself."""
    meta = cls._meta
    errors = ErrorList(meta.name)
    key = meta.options.definition_key
    if key is None:
        errors.add(DefinitionErrorCode.NO_DEFINITION_KEY, f"{meta.path} has no definition_key; allowed: a text.")
    elif others := [definition._meta.path for definition in definition_registry.with_key(key) if definition is not cls]:
        problem = (
            f"definition_key {key!r} of {meta.path} is also that of {', '.join(others)}; allowed: a key of its own."
        )
        errors.add(DefinitionErrorCode.DUPLICATE_DEFINITION_KEY, problem)
    for code, problem in meta.errors:
        errors.add(code, problem)
    return errors


def _build_with_errors(own: Any) -> Iterator[NodeError]:
    if not isinstance(own, classmethod):
        yield DefinitionErrorCode.INVALID_BUILD_WITH, f"build_with is {shown(own)}; allowed: a classmethod."
        return
    for parameter in list(bare_signature(own.__func__).parameters.values())[1:]:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            problem = (
                f"build_with has the positional parameter '{parameter}'; allowed: parameters that can be given by name."
            )
            yield DefinitionErrorCode.INVALID_BUILD_WITH, problem


def _check_output(cls: type[WorkflowDefinition[Any]], workflow: Workflow[Any], errors: ErrorList) -> None:
    declared = produced_types(cls._meta.output_hint)
    if workflow.output is not None and are_disjoint(types := value_types(workflow.output), declared):
        names = describe(types), describe(declared)
        problem = "the output gives {}, and the definition declares {}; allowed: the same.".format(*names)
        errors.add(DefinitionErrorCode.OUTPUT_TYPE, problem, workflow.key(workflow.output).node_id)


@overload
def workflow_builder(function: Callable[P, W], /) -> Callable[P, W]: ...
@overload
def workflow_builder(*, cases: Sequence[Mapping[str, Any]] = ...) -> Callable[[Callable[P, W]], Callable[P, W]]: ...
def workflow_builder(function: Any = None, /, *, cases: Sequence[Mapping[str, Any]] = ()) -> Any:
    """Register a function that returns a :class:`Workflow`, and return the function unchanged.

    ``manage.py check`` calls it with the arguments of each of ``cases``; tasks that it sends are discarded.
    """

    def register(func: Callable[..., Any]) -> Callable[..., Any]:
        builder = Builder(func, cases)
        definition_registry.builders[builder.path] = builder
        registry.read_hints_of(func)
        return func

    return register if function is None else register(function)
