"""The registry of imported definitions and builders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..core.exceptions import NotRegistered
from ..core.registry import registry as names

if TYPE_CHECKING:
    from .builders import Builder
    from .definition import WorkflowDefinition


@dataclass(slots=True)
class Registry:
    """Definitions and builders by their paths, so that a module that is imported again replaces its own."""

    definitions: dict[str, type[WorkflowDefinition[Any]]] = field(default_factory=dict)
    builders: dict[str, Builder] = field(default_factory=dict)

    def add(self, definition: type[WorkflowDefinition[Any]]) -> None:
        """Add a definition. A duplicate key is reported when one of the two is built."""
        path = definition._meta.path
        names.note(path, is_new=path not in self.definitions)
        self.definitions[path] = definition

    def with_key(self, definition_key: str) -> Iterator[type[WorkflowDefinition[Any]]]:
        """Yield the definitions with this key."""
        for definition in self.definitions.values():
            if definition._meta.options.definition_key == definition_key:
                yield definition


registry = Registry()


def definition_at(definition_key: str) -> type[WorkflowDefinition[Any]]:
    """Return the definition with this key. Raises NotRegistered unless there is exactly one."""
    found = list(registry.with_key(definition_key))
    if len(found) != 1:
        what = " and ".join(one._meta.path for one in found) or "no imported definition"
        raise NotRegistered(f"definition_key {definition_key!r} belongs to {what}; allowed: one definition.")
    return found[0]
