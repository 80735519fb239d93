"""Scan scopes: the part of a table that a filter needs to read, so that every list reads a bounded number of rows.

A partition, such as the rows of a status with its own index, is in the order of ids, like the whole table, and is
scanned in chunks. An index range, such as the pending or the held tasks, has another order and is usually small: it is
read at once if it has at most ``MAX_INDEX_ROWS`` rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from django.db.models import Q

from ...core.status import TASK_LIVE_STATES, TASK_RETRYABLE_STATES, TaskStatus
from ...db.now import Now
from ...models.filters import IS_HELD, in_error_group

#: Maximum number of rows of an index range that are read at once.
MAX_INDEX_ROWS: Final = 10_000

#: Maximum number of rows in a batch.
BATCH: Final = 500

#: More partitions than any scope has.
_MANY: Final = 100


@dataclass(frozen=True, slots=True)
class IndexRange:
    """The rows of a partial index, or of one end of it, and the order of that index."""

    rows: Q
    order: tuple[str, ...]
    is_queue_ordered: bool = False


@dataclass(frozen=True, slots=True)
class ScanScope:
    """Where to scan: index ranges, partitions or, with neither, the whole table."""

    ranges: tuple[IndexRange, ...] = ()
    partitions: tuple[Q, ...] = ()
    #: Whether it has fewer rows than any other scope, whatever their kinds.
    is_narrow: bool = False

    def for_queue(self, name: str) -> ScanScope:
        """Return the scope with its index ranges limited to one queue, where they are sorted by queue."""
        part = Q(queue_name=name, is_async__in=[False, True])
        ranges = (
            replace(index_range, rows=index_range.rows & part) if index_range.is_queue_ordered else index_range
            for index_range in self.ranges
        )
        return replace(self, ranges=tuple(ranges))

    @property
    def cost(self) -> tuple[int, int]:
        """Sort key: scopes with fewer rows to scan come first."""
        if self.is_narrow:
            return (-1, 0)
        return (0, len(self.ranges)) if self.ranges else (1, len(self.partitions) or _MANY)


_CLAIMABLE: Final = IndexRange(
    Q(status=TaskStatus.PENDING, deferred=False),
    ("is_async", "queue_name", "-priority", "enqueued_at", "pk"),
    is_queue_ordered=True,
)
_DEFERRED: Final = IndexRange(Q(status=TaskStatus.PENDING, deferred=True, blocked=False), ("enqueued_at",))
#: Tasks that wait for their limit; all of them are due.
_BLOCKED: Final = IndexRange(
    Q(status=TaskStatus.PENDING, blocked=True), ("limit_key", "-priority", "enqueued_at", "pk")
)
#: Deferred tasks that are due already and that no worker has made claimable yet.
_JUST_DUE: Final = IndexRange(_DEFERRED.rows & Q(enqueued_at__lte=Now()), _DEFERRED.order)
_AWAITING: Final = IndexRange(Q(status=TaskStatus.PENDING, waits_for__isnull=False), ("waits_for", "pk"))
_TOO_LATE: Final = IndexRange(Q(status=TaskStatus.PENDING, good_until__lte=Now()), ("good_until",))

TABLE: Final = ScanScope()
PENDING: Final = ScanScope((_CLAIMABLE, _DEFERRED, _BLOCKED))
DEFERRED: Final = ScanScope((_DEFERRED,))
DUE: Final = ScanScope((_CLAIMABLE, _JUST_DUE))
BLOCKED: Final = ScanScope((_BLOCKED,))
READY: Final = ScanScope((*DUE.ranges, *BLOCKED.ranges))
AWAITING: Final = ScanScope((_AWAITING,))
OVERDUE: Final = ScanScope((_TOO_LATE,))
HELD: Final = ScanScope((IndexRange(IS_HELD, ("claimed_by_worker_id",)),))
#: Tasks with an error code: failed ones, and those that wait for a retry.
WITH_ERROR: Final = ScanScope(partitions=(Q(error_code__isnull=False),))


def awaiting(waits_for: str) -> ScanScope:
    """Return the scope of the tasks that wait for this."""
    return ScanScope(partitions=(_AWAITING.rows & Q(waits_for=waits_for),), is_narrow=True)


def about_row(model: str, key: str) -> ScanScope:
    """Return the scope of the tasks about a row."""
    return ScanScope(partitions=(Q(about_model=model, about_id=key),), is_narrow=True)


def of_error_group(fingerprint: str) -> ScanScope:
    """Return the scope of the tasks in an error group: failed ones, and those that wait for a retry or are in one."""
    return ScanScope(partitions=(in_error_group(fingerprint),), is_narrow=True)


def of_status(status: str) -> ScanScope:
    """Return the scope of the tasks in a status."""
    if status in TASK_RETRYABLE_STATES:
        return ScanScope(partitions=(Q(status=status),))
    if status in TASK_LIVE_STATES:
        return PENDING if status == TaskStatus.PENDING else HELD
    return TABLE
