"""Criteria of tasks, by state, queue, name and error: what the admin, the inspector and the commands filter by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_
from typing import Final

from django.db.models import Q

from ..core.registry import registry
from ..core.status import TaskStatus
from ..db.now import Now
from ..db.row_key import RowRef
from ..models import filters
from ..models.claim.query import not_past_deadline
from .keyset import scopes
from .keyset.criteria import Criteria
from .keyset.scopes import ScanScope
from .task_states import State

_PENDING: Final = Q(status=TaskStatus.PENDING)
_IS_READY: Final = _PENDING & Q(enqueued_at__lte=Now())
#: What the inspector calls pending: due tasks, also those that are blocked or overdue.
READY: Final = Criteria(_IS_READY, scopes.READY)

#: The statuses, the kinds of pending tasks, and the tasks that workers hold.
BY_STATE: Final[Mapping[str, Criteria]] = {
    "due": Criteria(_IS_READY & not_past_deadline() & Q(blocked=False), scopes.DUE),
    "blocked": Criteria(_PENDING & not_past_deadline() & Q(blocked=True), scopes.BLOCKED),
    "overdue": Criteria(_PENDING & Q(good_until__lte=Now()), scopes.OVERDUE),
    "scheduled": Criteria(_PENDING & filters.IS_SCHEDULED, scopes.DEFERRED),
    "aggregating": Criteria(_PENDING & filters.IS_AGGREGATING, scopes.DEFERRED),
    "retrying": Criteria(_PENDING & filters.IS_RETRYING, scopes.DEFERRED),
    "awaiting": Criteria(_PENDING & filters.IS_AWAITING, scopes.AWAITING),
    "active": Criteria(filters.IS_HELD, scopes.HELD),
    **{status.lower(): Criteria(Q(status=status), scopes.of_status(status)) for status in TaskStatus.values},
}


def in_states(states: Iterable[State]) -> Criteria:
    """Match the tasks in one of these states of the inspector."""
    each = [READY if state is State.PENDING else BY_STATE[state] for state in sorted(states)]
    return Criteria(reduce(or_, (criteria.rows for criteria in each)), _union({criteria.scope for criteria in each}))


def in_queue(name: str) -> Criteria:
    """Match the tasks in a queue."""
    return Criteria(Q(queue_name=name), queue=name)


def awaiting(waits_for: str) -> Criteria:
    """Match the tasks that wait for this, such as ``event:approved``."""
    return Criteria(_PENDING & filters.IS_AWAITING & Q(waits_for=waits_for), scopes.awaiting(waits_for))


def about_row(row: RowRef) -> Criteria:
    """Match the tasks about a row."""
    return Criteria(Q(about_model=row.model, about_id=row.key), scopes.about_row(row.model, row.key))


def of_task(name: str) -> Criteria:
    """Match the calls of a task, also by the old names of a renamed one."""
    return Criteria(Q(task_name__in=registry.names_of(name)))


def in_error_group(fingerprint: str) -> Criteria:
    """Match the failed and retrying tasks whose last attempt failed with this error."""
    return Criteria(filters.in_error_group(fingerprint), scopes.of_error_group(fingerprint))


def _union(parts: set[ScanScope]) -> ScanScope:
    """Return the scope that contains all of these."""
    if len(parts) == 1:
        return parts.pop()
    if all(scope.ranges for scope in parts):
        return ScanScope(ranges=tuple(dict.fromkeys(index_range for scope in parts for index_range in scope.ranges)))
    if all(scope.partitions for scope in parts):
        return ScanScope(partitions=tuple(partition for scope in parts for partition in scope.partitions))
    return scopes.TABLE
