"""All that a row says of one node of a workflow: what it was given, what came of it, and its options."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from ...models import WorkflowTask
from ..readable import as_json, at
from .contents import mask_of_node

#: What the table says, by name, and what says nothing to a reader.
_HIDDEN: Final = frozenset({"id", "workflow", "node_id", "waits_for", "dependents"})


def facts_of(node: WorkflowTask | None) -> list[tuple[str, Any]]:
    """Return the name and the value of each column that has something, large ones last."""
    if node is None:
        return []
    fields = [field for field in node._meta.concrete_fields if field.name not in _HIDDEN]
    facts = [(field, _value(node, field)) for field in fields]
    return sorted(
        (
            (str(field.verbose_name), _shown(node, field.name, value))
            for field, value in facts
            if value not in (None, "", [], {}) and value is not False
        ),
        key=lambda fact: "<pre" in str(fact[1]),
    )


def _value(node: WorkflowTask, field: Any) -> Any:
    value = field.value_from_object(node)
    return dict(field.flatchoices).get(value, value) if field.choices else value


def _shown(node: WorkflowTask, name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return at(value, exactly=False)
    if not isinstance(value, dict | list):
        return value
    mask = mask_of_node(node)
    return as_json(mask.seen(name, value), mask)
