"""The definitions and builders that have been imported, by what they are found under."""

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
    """Everything by its path, so that a module that is imported again replaces what it had defined."""

    definitions: dict[str, type[WorkflowDefinition[Any]]] = field(default_factory=dict)
    builders: dict[str, Builder] = field(default_factory=dict)

    def add(self, definition: type[WorkflowDefinition[Any]]) -> None:
        """Note a definition; two with the same key are a mistake of both, which is told when one is built."""
        path = definition._meta.path
        names.note(path, is_new=path not in self.definitions)
        self.definitions[path] = definition

    def with_key(self, definition_key: str) -> Iterator[type[WorkflowDefinition[Any]]]:
        """Yield the definitions that have this key."""
        for definition in self.definitions.values():
            if definition._meta.options.definition_key == definition_key:
                yield definition


registry = Registry()


def definition_at(definition_key: str) -> type[WorkflowDefinition[Any]]:
    """Return the definition with this key. Raises NotRegistered if there is none, or more than one."""
    found = list(registry.with_key(definition_key))
    if len(found) != 1:
        what = " and ".join(one._meta.path for one in found) or "none that was imported"
        raise NotRegistered(f"definition_key {definition_key!r} is that of {what}; allowed: one definition.")
    return found[0]
