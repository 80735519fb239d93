"""The registry of imported definitions and builders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.exceptions import NotRegistered
from ..core.registry import registry
from .definition_meta import Definition


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
    found = list(definition_registry.with_key(definition_key))
    if len(found) != 1:
        what = " and ".join(one._meta.path for one in found) or "no imported definition"
        raise NotRegistered(f"definition_key {definition_key!r} belongs to {what}; allowed: one definition.")
    return found[0]
