"""The states that the inspector distinguishes: a row's status, and for a PENDING row why it waits, as asynq does."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from ..core.status import TaskStatus
from ..models.claims import FOREVER


class State(StrEnum):
    """The state of a task. Each task is in exactly one; the first five are kinds of PENDING."""

    SCHEDULED = "scheduled"
    AGGREGATING = "aggregating"
    PENDING = "pending"
    RETRYING = "retrying"
    AWAITING = "awaiting"
    CLAIMED = "claimed"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class Wait(StrEnum):
    """What a PENDING task waits for, as far as its row shows. Every text about a waiting task agrees with this.

    A limit blocks a task, and a paused workflow suspends one that a worker had claimed. One that is *awaiting* has
    begun and waits for an event, a workflow, a time or the next try of a step.
    """

    OVERDUE = "overdue"
    BLOCKED = "blocked"
    SUSPENDED = "suspended"
    DUE = "due"
    RETRYING = "retrying"
    AGGREGATING = "aggregating"
    SCHEDULED = "scheduled"
    AWAITING = "awaiting"


#: States of tasks that have not ended and that no worker holds.
WAITING: Final = frozenset({State.SCHEDULED, State.AGGREGATING, State.PENDING, State.RETRYING, State.AWAITING})

#: States of tasks that a worker holds.
HELD: Final = frozenset({State.CLAIMED, State.RUNNING})

#: States of ended tasks.
ENDED: Final = frozenset(State) - WAITING - HELD

#: asynq's names for states that are called differently here, or that are two states here.
ASYNQ: Final = {
    "active": HELD,
    "retry": frozenset({State.RETRYING}),
    "archived": frozenset({State.FAILED}),
}

#: All accepted names of states.
ALLOWED: Final = ", ".join([*State, *ASYNQ])


def parse_states(value: State | str | Iterable[State | str]) -> frozenset[State]:
    """Parse one or more states, by our names or asynq's. Raises ValueError for an unknown name."""
    names = [value] if isinstance(value, str) else list(value)
    if unknown := [name for name in names if name not in ASYNQ and name not in set(State)]:
        raise ValueError(f"status is {', '.join(map(repr, unknown))}; allowed: {ALLOWED}.")
    return frozenset(state for name in names for state in ASYNQ.get(name) or {State(name)})


def state_of(row: Any, now: datetime) -> State | str:
    """Return the state of a row, or of an object with the same attributes, at ``now`` by the database's clock.

    Returns an unknown status unchanged; only a table without its check constraint can hold one.
    """
    if row.status != TaskStatus.PENDING:
        return State(row.status.lower()) if row.status in TaskStatus.values else row.status
    if row.enqueued_at <= now:
        return State.PENDING
    if row.waits_for is not None:
        return State.AWAITING
    if row.next_retry_at is not None:
        return State.RETRYING
    return State.AGGREGATING if row.group_key is not None and row.claim == 0 else State.SCHEDULED


def wait_of(row: Any, now: datetime) -> Wait | None:
    """Return what a PENDING row waits for; None for another status. Takes what :func:`state_of` takes."""
    if row.status != TaskStatus.PENDING:
        return None
    if row.good_until is not None and row.good_until <= now:
        return Wait.OVERDUE
    if row.blocked:
        return Wait.SUSPENDED if row.limit_key is None else Wait.BLOCKED
    return Wait.DUE if (state := state_of(row, now)) is State.PENDING else Wait(state)


def waits_until(row: Any, now: datetime) -> datetime | None:
    """Return when the wait of an awaiting row ends at the latest; None if it has no end."""
    moment: datetime = row.due_at
    return None if moment - now > timedelta(seconds=FOREVER / 2) else moment
