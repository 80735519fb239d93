"""The transitions of tasks: every change of status that exists, and what a transition of a state machine is.

The querysets in ``models/transitions.py`` take the states of each update from here. docs/states.md says what makes each
change, its guard and which columns it writes; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from django.db.models import Q, QuerySet, TextChoices

from .status import TASK_RETRYABLE_STATES, TaskStatus

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


SEND: Final = transition("", TaskStatus.PENDING)
CLAIM: Final = transition("PENDING", TaskStatus.CLAIMED)
CLAIM_AND_START: Final = transition("PENDING", TaskStatus.RUNNING)
START: Final = transition("CLAIMED", TaskStatus.RUNNING)
EXPIRE_CLAIMED: Final = transition("CLAIMED", TaskStatus.EXPIRED)
SUSPEND: Final = transition("PENDING CLAIMED", TaskStatus.PENDING)
RELEASE: Final = transition("CLAIMED", TaskStatus.PENDING)
REQUEUE: Final = transition("CLAIMED", TaskStatus.PENDING)
REVERT_START: Final = transition("RUNNING", TaskStatus.PENDING)
COMPLETE: Final = transition("RUNNING", TaskStatus.COMPLETED)
FAIL: Final = transition("RUNNING", TaskStatus.FAILED)
FAIL_UNREADABLE: Final = transition("PENDING CLAIMED RUNNING", TaskStatus.FAILED)
RETRY_LATER: Final = transition("RUNNING", TaskStatus.PENDING)
SNOOZE: Final = transition("RUNNING", TaskStatus.PENDING)
RESTART: Final = transition("RUNNING", TaskStatus.PENDING)
RELEASE_UNKNOWN: Final = transition("RUNNING", TaskStatus.PENDING)
EXPIRE: Final = transition("PENDING", TaskStatus.EXPIRED)
CANCEL: Final = transition("PENDING CLAIMED", TaskStatus.CANCELLED)
CANCEL_RUNNING: Final = transition("RUNNING", TaskStatus.CANCELLED)
RETRY_ENDED: Final = transition(" ".join(TASK_RETRYABLE_STATES), TaskStatus.PENDING)
