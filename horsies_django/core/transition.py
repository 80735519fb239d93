"""Transitions of a state machine: the states of the guarded updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.db.models import Q, QuerySet, TextChoices

S = TypeVar("S", bound=TextChoices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition(Generic[S]):
    """One permitted change of status.

    ``sources`` are the states that it starts from, in the order of the enum; a row without any is inserted.
    """

    sources: tuple[S, ...]
    target: S

    @property
    def is_possible(self) -> Q:
        """The rows in a state that this transition starts from."""
        return in_sources(self)

    def apply(self, rows: QuerySet[Any], **values: Any) -> int:
        """Change those of these rows that are in a source state, in one UPDATE; return how many."""
        return rows.filter(self.is_possible).update(status=self.target, **values)

    def __str__(self) -> str:
        return f"{', '.join(self.sources) or '–'} → {self.target}"


def in_sources(*transitions: Transition[Any]) -> Q:
    """The rows in a state from which one of these transitions starts."""
    sources = sorted({str(source) for transition in transitions for source in transition.sources})
    return Q(status=sources[0]) if len(sources) == 1 else Q(status__in=sources)


def transition(sources: str, target: S) -> Transition[S]:
    """Return a transition from ``sources``, names of states with spaces between them, to ``target``."""
    names = sources.split()
    states = tuple(state for state in type(target) if state in names)
    assert len(states) == len(names)
    return Transition(sources=states, target=target)
