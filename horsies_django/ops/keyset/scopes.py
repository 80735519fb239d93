"""Grounds: where a list has to look, so that what it reads is bounded whatever it is narrowed by.

The rows of a ground are found by one index. Those of a lane, as of a status that has an index, lie in the order of ids,
and so does the whole table: that is walked, a stretch at a time. What is to be done and what is being done is mostly
little, and lies in an order of its own: that is read whole, if it is not more than ``SHELF``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from django.db.models import Q
from django.db.models.functions import Now

from ...core.status import TASK_LIVE_STATES, TASK_RETRYABLE_STATES, TaskStatus
from ...models.filters import IS_HELD

#: Rows of a shelf that are read whole at most.
MAX_INDEX_ROWS: Final = 10_000

#: More lanes than any ground has.
_MANY: Final = 100


@dataclass(frozen=True, slots=True)
class IndexRange:
    """The rows of one partial index, or of one end of it, and the order that it has them in."""

    rows: Q
    order: tuple[str, ...]
    is_queue_ordered: bool = False


@dataclass(frozen=True, slots=True)
class ScanScope:
    """Where to look: on shelves, on lanes, or, with neither, in the whole table."""

    ranges: tuple[IndexRange, ...] = ()
    partitions: tuple[Q, ...] = ()

    def for_queue(self, name: str) -> ScanScope:
        """Return the same with no more of its shelves than one queue's part, where they are sorted by queue."""
        part = Q(queue_name=name, is_async__in=[False, True])
        ranges = (
            replace(index_range, rows=index_range.rows & part) if index_range.is_queue_ordered else index_range
            for index_range in self.ranges
        )
        return replace(self, ranges=tuple(ranges))

    @property
    def cost(self) -> tuple[int, int]:
        """Sorts grounds by how much there is to look through."""
        return (0, len(self.ranges)) if self.ranges else (1, len(self.partitions) or _MANY)


_CLAIMABLE: Final = IndexRange(
    Q(status=TaskStatus.PENDING, deferred=False),
    ("is_async", "queue_name", "-priority", "enqueued_at", "pk"),
    is_queue_ordered=True,
)
_DEFERRED: Final = IndexRange(Q(status=TaskStatus.PENDING, deferred=True, gated=False), ("enqueued_at",))
#: What waits for a place of its limit: all of it is due.
_GATED: Final = IndexRange(Q(status=TaskStatus.PENDING, gated=True), ("limit_key", "-priority", "enqueued_at", "pk"))
#: What is due already, and has not been let into the line yet.
_JUST_DUE: Final = IndexRange(_DEFERRED.rows & Q(enqueued_at__lte=Now()), _DEFERRED.order)
_TOO_LATE: Final = IndexRange(Q(status=TaskStatus.PENDING, good_until__lte=Now()), ("good_until",))

TABLE: Final = ScanScope()
PENDING: Final = ScanScope((_CLAIMABLE, _DEFERRED, _GATED))
DEFERRED: Final = ScanScope((_DEFERRED,))
DUE: Final = ScanScope((_CLAIMABLE, _JUST_DUE, _GATED))
OVERDUE: Final = ScanScope((_TOO_LATE,))
HELD: Final = ScanScope((IndexRange(IS_HELD, ("claimed_by_worker_id",)),))
#: What ended without success, and what is tried again.
WITH_ERROR: Final = ScanScope(partitions=(Q(error_code__isnull=False),))


def of_status(status: str) -> ScanScope:
    """Return where tasks of a status are found."""
    if status in TASK_RETRYABLE_STATES:
        return ScanScope(partitions=(Q(status=status),))
    if status in TASK_LIVE_STATES:
        return PENDING if status == TaskStatus.PENDING else HELD
    return TABLE
