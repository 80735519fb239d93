"""Success policies: when a workflow with failed nodes is COMPLETED."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..enqueue.nodes import NodeRef


@dataclass(frozen=True, slots=True, init=False)
class SuccessCase:
    """A case is met once every node of ``required`` has completed; ``optional`` lists others that belong to it.

    Nodes are given as objects, by id or by :class:`~horsies_django.NodeKey`.
    """

    required: tuple[NodeRef[Any], ...]
    optional: tuple[NodeRef[Any], ...]

    def __init__(self, required: Iterable[NodeRef[Any]], optional: Iterable[NodeRef[Any]] = ()) -> None:
        object.__setattr__(self, "required", _refs(required))
        object.__setattr__(self, "optional", _refs(optional))


@dataclass(frozen=True, slots=True, init=False)
class SuccessPolicy:
    """The workflow is COMPLETED if any of ``cases`` is met, even if other nodes failed."""

    cases: tuple[SuccessCase, ...]

    def __init__(self, cases: Iterable[SuccessCase]) -> None:
        object.__setattr__(self, "cases", tuple(cases) if isinstance(cases, Iterable) else (cases,))


def _refs(given: Any) -> tuple[Any, ...]:
    """Accept one node as a list of one; the workflow's validation checks what it is."""
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
