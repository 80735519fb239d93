"""The states that an inspector tells apart: those of a row, and why a pending one waits (as asynq has them)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from functools import reduce
from operator import or_
from typing import Any, Final

from ...core.status import TaskStatus
from ...models.transitions import TaskQuerySet
from ..keyset import scopes
from ..keyset.scopes import ScanScope


class State(StrEnum):
    """What a task is at. Each task is in exactly one; the first four are all of PENDING."""

    SCHEDULED = "scheduled"
    AGGREGATING = "aggregating"
    PENDING = "pending"
    RETRYING = "retrying"
    CLAIMED = "claimed"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


#: What has not begun and that no worker holds.
WAITING: Final = frozenset({State.SCHEDULED, State.AGGREGATING, State.PENDING, State.RETRYING})

#: What a worker holds.
HELD: Final = frozenset({State.CLAIMED, State.RUNNING})

#: What has ended.
ENDED: Final = frozenset(State) - WAITING - HELD

#: What asynq calls states that have another name here, or that are two.
ASYNQ: Final = {
    "active": HELD,
    "retry": frozenset({State.RETRYING}),
    "archived": frozenset({State.FAILED}),
}

#: Every word that names a state.
ALLOWED: Final = ", ".join([*State, *ASYNQ])

_SCOPES: Final = {
    State.SCHEDULED: scopes.DEFERRED,
    State.AGGREGATING: scopes.DEFERRED,
    State.PENDING: scopes.DUE,
    State.RETRYING: scopes.DEFERRED,
}


def parse_states(given: State | str | Iterable[State | str]) -> frozenset[State]:
    """Read one state or several, by our words or asynq's. Raises ValueError for a text that is none."""
    names = [given] if isinstance(given, str) else list(given)
    if unknown := [name for name in names if name not in ASYNQ and name not in set(State)]:
        raise ValueError(f"status is {', '.join(map(repr, unknown))}; allowed: {ALLOWED}.")
    return frozenset(state for name in names for state in ASYNQ.get(name) or {State(name)})


def in_states(rows: TaskQuerySet, states: Iterable[State]) -> TaskQuerySet:
    """Return those of the rows that are in one of these states."""
    return reduce(or_, (_in_state(rows, state) for state in sorted(states)), rows.none())


def scope_of(states: Iterable[State]) -> ScanScope:
    """Return where to look for tasks in these states."""
    found = {_SCOPES.get(state) or scopes.of_status(state.upper()) for state in states}
    if len(found) == 1:
        return found.pop()
    if all(scope.ranges for scope in found):
        return ScanScope(ranges=tuple(dict.fromkeys(index_range for scope in found for index_range in scope.ranges)))
    if all(scope.partitions for scope in found):
        return ScanScope(partitions=tuple(partition for scope in found for partition in scope.partitions))
    return scopes.TABLE


def state_of(row: Any, now: datetime) -> State | str:
    """Return the state of a row, or of what was read of it, at ``now`` by the database's clock.

    An unknown status, which only a table without its constraint can hold, is returned unchanged.
    """
    if row.status != TaskStatus.PENDING:
        return State(row.status.lower()) if row.status in TaskStatus.values else row.status
    if row.enqueued_at <= now:
        return State.PENDING
    if row.next_retry_at is not None:
        return State.RETRYING
    return State.AGGREGATING if row.group_key is not None and row.claim == 0 else State.SCHEDULED


def _in_state(rows: TaskQuerySet, state: State) -> TaskQuerySet:
    match state:
        case State.SCHEDULED:
            return rows.scheduled()
        case State.AGGREGATING:
            return rows.aggregating()
        case State.RETRYING:
            return rows.retrying()
        case State.PENDING:
            return rows.in_line()
        case _:
            return rows.filter(status=TaskStatus(state.upper()))
