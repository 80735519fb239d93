"""Workflow definitions: workflows as classes whose attributes are the nodes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final, Generic, TypeVar, Unpack, cast, get_args, get_origin

from ..core.exceptions import InvalidWorkflow
from ..core.registry import registry as names
from ..core.workflow_errors import DefinitionErrorCode, NodeError, shown
from ..core.workflow_status import OnError
from ..enqueue.flow import FlowPart
from ..enqueue.node_option_types import SubWorkflowNodeOptions
from .conditions import register_conditions_of
from .errors import ErrorList
from .inputs import value_types
from .recursion_check import building
from .registry import registry
from .subworkflow_node import SubWorkflowNodeFactory, subworkflow_nodes
from .type_compat import are_disjoint, describe, produced_types
from .workflow import Workflow

T = TypeVar("T")

#: Names that the class itself uses.
_RESERVED: Final = frozenset({"build", "build_with", "node"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionOptions:
    """The options in ``class Meta``, which names nodes by their ids.

    ``definition_key`` is stored in rows, so it must stay the same in every process and release. ``cases`` are
    parameters of ``build_with`` with which ``manage.py check`` builds the definition. An ``abstract`` class is only a
    base for others.
    """

    definition_key: str | None = None
    name: str | None = None
    on_error: OnError = OnError.FAIL
    output: Any = None
    success_policy: Any = None
    priority: int | None = None
    queue_name: str | None = None
    unique_key: str | None = None
    backend: str | None = None
    cases: Sequence[Mapping[str, Any]] = ()
    abstract: bool = False

    def for_workflow(self) -> dict[str, Any]:
        """Return the options that the workflow takes as they are."""
        return {name: getattr(self, name) for name in _FOR_WORKFLOW}


_FOR_WORKFLOW: Final = ("on_error", "output", "success_policy", "priority", "queue_name", "unique_key", "backend")
_KNOWN: Final = frozenset(entry.name for entry in fields(DefinitionOptions))


@dataclass(frozen=True, slots=True)
class DefinitionMeta:
    """The metadata of a definition: ``output_hint`` is its ``T``, ``errors`` are those of the class itself."""

    path: str
    name: str
    options: DefinitionOptions
    output_hint: Any
    takes_params: bool
    errors: tuple[NodeError, ...]

    @property
    def is_registered(self) -> bool:
        """Whether a worker can find it by its key."""
        return not self.options.abstract and bool(self.options.definition_key)


class WorkflowDefinition(Generic[T]):
    """A workflow that has a class; ``T`` is the type of its output.

    Attributes that are nodes become its nodes. Their ids are the names of the attributes, unless a node has its own
    ``node_id``. Attributes that are flows (``order = a >> b``) give the order. ``class Meta`` has a ``definition_key``
    and the other options of :class:`~horsies_django.workflows.definition.DefinitionOptions`. Override
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
                names.read_hints_of(own.__func__)
                setattr(cls, "build_with", classmethod(_checked(own.__func__)))  # noqa: B010  # mypy allows no other way
        takes_params = any("build_with" in vars(kind) for kind in cls.__mro__ if kind is not WorkflowDefinition)
        cls._meta = meta_of(cls, WorkflowDefinition, class_errors, takes_params=takes_params)
        if not cls._meta.options.abstract:
            registry.add(cls)

    @classmethod
    def build(cls) -> Workflow[T]:
        """Return the workflow. Raises InvalidWorkflow with all errors of the definition."""
        return cls.build_with()

    @classmethod
    def build_with(cls, *args: Any, **params: Any) -> Workflow[T]:
        """Return the workflow for these parameters; override it as a classmethod that takes some.

        An override returns any Workflow that it makes; the workflow then gets the definition's key.
        """
        if args or params:
            raise TypeError(f"{cls.__qualname__} takes no parameters: it does not override build_with().")
        meta = cls._meta
        errors = _errors_of_class(cls)
        try:
            with building(cls, has_arguments=False):
                workflow = Workflow[T](
                    meta.name, _parts_of(cls), definition_key=meta.options.definition_key, **meta.options.for_workflow()
                )
        except InvalidWorkflow as error:
            raise InvalidWorkflow([*errors, *error.mistakes]) from error
        _check_output(cls, workflow, errors)
        errors.raise_if_any()
        return workflow

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
    elif others := [one._meta.path for one in registry.with_key(key) if one is not cls]:
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
    for parameter in list(inspect.signature(own.__func__).parameters.values())[1:]:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            problem = (
                f"build_with has the positional parameter '{parameter}'; allowed: parameters that can be given by name."
            )
            yield DefinitionErrorCode.INVALID_BUILD_WITH, problem


def _checked(function: Callable[..., Any]) -> Callable[..., Workflow[Any]]:
    """Wrap a ``build_with``: check the workflow that it returns, and set the definition's key."""

    @functools.wraps(function)
    def build_with(cls: type[WorkflowDefinition[Any]], *args: Any, **params: Any) -> Workflow[Any]:
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
        errors.raise_if_any()
        return cast("Workflow[Any]", workflow.with_key(cls._meta.options.definition_key))

    return build_with


def _check_output(cls: type[WorkflowDefinition[Any]], workflow: Workflow[Any], errors: ErrorList) -> None:
    declared = produced_types(cls._meta.output_hint)
    if workflow.output is not None and are_disjoint(found := value_types(workflow.output), declared):
        names = describe(found), describe(declared)
        problem = "the output gives {}, and the definition declares {}; allowed: the same.".format(*names)
        errors.add(DefinitionErrorCode.OUTPUT_TYPE, problem, workflow.key(workflow.output).node_id)


def meta_of(cls: type, generic: type, class_errors: list[NodeError], *, takes_params: bool) -> DefinitionMeta:
    """Return the metadata of ``cls``, a subclass of ``generic``."""
    options = _options_of(cls, class_errors)
    if not isinstance(options.cases, list | tuple):
        class_errors.append(
            (DefinitionErrorCode.INVALID_CASE, f"cases is {shown(options.cases)}; allowed: a list of dicts.")
        )
        options = replace(options, cases=())
    name = options.name if options.name is not None else cls.__name__
    path = f"{cls.__module__}.{cls.__qualname__}"
    return DefinitionMeta(path, name, options, _output_hint(cls, generic), takes_params, tuple(class_errors))


def _options_of(cls: type, class_errors: list[NodeError]) -> DefinitionOptions:
    """Read ``Meta``; ``abstract`` is not inherited, all else is."""
    meta = getattr(cls, "Meta", None)
    stated = {name: getattr(meta, name) for name in dir(meta) if meta and not name.startswith("_")}
    if "Meta" not in vars(cls):
        stated.pop("abstract", None)
    for name in sorted(stated.keys() - _KNOWN):
        instead = "; give it per start: build().with_options(good_until=…)" if name == "good_until" else ""
        class_errors.append(
            (DefinitionErrorCode.INVALID_OPTION, f"Meta has {name}{instead}; allowed: {', '.join(sorted(_KNOWN))}.")
        )
    return DefinitionOptions(**{name: value for name, value in stated.items() if name in _KNOWN})


def _output_hint(cls: type, generic: type) -> Any:
    """Return the type argument of the generic base class; Any if there is none."""
    for kind in cls.__mro__:
        for base in vars(kind).get("__orig_bases__", ()):
            if get_origin(base) is generic and not isinstance(get_args(base)[0], TypeVar):
                return get_args(base)[0]
    return Any
