"""What a definition's ``class Meta`` says, and what else is known of the class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeVar, get_args, get_origin

from ..core.workflow_errors import NodeError, DefinitionErrorCode, shown
from ..core.workflow_status import OnError


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionOptions:
    """What ``class Meta`` may say. Nodes are named there by their ids: a class's own names are not seen inside it.

    ``definition_key`` is what the class is found under, in any process and for ever: it is in the rows. ``cases`` are
    parameters of ``build_with`` with which ``manage.py check`` builds it. An ``abstract`` class is none of its own.
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
        """Return those that go to the workflow as they are."""
        return {name: getattr(self, name) for name in _FOR_WORKFLOW}


_FOR_WORKFLOW: Final = ("on_error", "output", "success_policy", "priority", "queue_name", "unique_key", "backend")
_KNOWN: Final = frozenset(entry.name for entry in fields(DefinitionOptions))


@dataclass(frozen=True, slots=True)
class DefinitionMeta:
    """What is known of a definition: ``output_hint`` is its ``T``; ``flaws`` are wrong with the class itself."""

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


def meta_of(cls: type, generic: type, flaws: list[NodeError], *, takes_params: bool) -> DefinitionMeta:
    """Return what is known of ``cls``, a subclass of ``generic``."""
    options = _options_of(cls, flaws)
    if not isinstance(options.cases, list | tuple):
        flaws.append((DefinitionErrorCode.INVALID_CASE, f"cases is {shown(options.cases)}; allowed: a list of dicts."))
        options = replace(options, cases=())
    name = options.name if options.name is not None else cls.__name__
    path = f"{cls.__module__}.{cls.__qualname__}"
    return DefinitionMeta(path, name, options, _output_hint(cls, generic), takes_params, tuple(flaws))


def _options_of(cls: type, flaws: list[NodeError]) -> DefinitionOptions:
    """Read ``Meta``; ``abstract`` alone is not inherited."""
    meta = getattr(cls, "Meta", None)
    stated = {name: getattr(meta, name) for name in dir(meta) if meta and not name.startswith("_")}
    if "Meta" not in vars(cls):
        stated.pop("abstract", None)
    for name in sorted(stated.keys() - _KNOWN):
        instead = "; give it per start: build().with_options(good_until=…)" if name == "good_until" else ""
        flaws.append((DefinitionErrorCode.INVALID_OPTION, f"Meta has {name}{instead}; allowed: {', '.join(sorted(_KNOWN))}."))
    return DefinitionOptions(**{name: value for name, value in stated.items() if name in _KNOWN})


def _output_hint(cls: type, generic: type) -> Any:
    """Return what stands in the brackets of the base class; Any if nothing does."""
    for kind in cls.__mro__:
        for base in vars(kind).get("__orig_bases__", ()):
            if get_origin(base) is generic and not isinstance(get_args(base)[0], TypeVar):
                return get_args(base)[0]
    return Any
