"""The registry of imported definitions and builders, and the metadata of definitions: ``class Meta`` and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Final, Protocol, TypeVar, get_args, get_origin

from ..core.exceptions import NotRegistered
from ..core.registry import registry
from ..core.workflow_errors import DefinitionErrorCode, NodeError, shown
from ..core.workflow_status import OnError


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


class Definition(Protocol):
    """A workflow definition, as far as the modules below it need to know it."""

    _meta: ClassVar[DefinitionMeta]

    @classmethod
    def build_with(cls, /, *args: Any, **params: Any) -> Any:
        """Return the workflow for these parameters."""


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


@dataclass(frozen=True, slots=True)
class Builder:
    """A function that returns a workflow, and the arguments with which ``manage.py check`` calls it."""

    func: Callable[..., Any]
    cases: Sequence[Mapping[str, Any]]

    @property
    def path(self) -> str:
        """The dotted path of the function."""
        return f"{self.func.__module__}.{self.func.__qualname__}"


@dataclass(slots=True)
class DefinitionRegistry:
    """Definitions and builders by their paths, so that a module that is imported again replaces its own."""

    definitions: dict[str, type[Definition]] = field(default_factory=dict)
    builders: dict[str, Builder] = field(default_factory=dict)

    def add(self, definition: type[Definition]) -> None:
        """Add a definition. A duplicate key is reported when one of the two is built."""
        path = definition._meta.path
        registry.record_registration(path, is_new=path not in self.definitions)
        self.definitions[path] = definition

    def with_key(self, definition_key: str) -> Iterator[type[Definition]]:
        """Yield the definitions with this key."""
        for definition in self.definitions.values():
            if definition._meta.options.definition_key == definition_key:
                yield definition


definition_registry = DefinitionRegistry()


def definition_at(definition_key: str) -> type[Definition]:
    """Return the definition with this key. Raises NotRegistered unless there is exactly one."""
    definitions = list(definition_registry.with_key(definition_key))
    if len(definitions) != 1:
        what = " and ".join(definition._meta.path for definition in definitions) or "no imported definition"
        raise NotRegistered(f"definition_key {definition_key!r} belongs to {what}; allowed: one definition.")
    return definitions[0]
