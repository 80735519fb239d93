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
SHELF: Final = 10_000

#: More lanes than any ground has.
_MANY: Final = 100


@dataclass(frozen=True, slots=True)
class Shelf:
    """The rows of one partial index, or of one end of it, and the order that it has them in."""

    rows: Q
    order: tuple[str, ...]
    is_by_queue: bool = False


@dataclass(frozen=True, slots=True)
class Ground:
    """Where to look: on shelves, on lanes, or, with neither, in the whole table."""

    shelves: tuple[Shelf, ...] = ()
    lanes: tuple[Q, ...] = ()

    def of_queue(self, name: str) -> Ground:
        """Return the same with no more of its shelves than one queue's part, where they are sorted by queue."""
        part = Q(queue_name=name, is_async__in=[False, True])
        shelves = (replace(shelf, rows=shelf.rows & part) if shelf.is_by_queue else shelf for shelf in self.shelves)
        return replace(self, shelves=tuple(shelves))

    @property
    def width(self) -> tuple[int, int]:
        """Sorts grounds by how much there is to look through."""
        return (0, len(self.shelves)) if self.shelves else (1, len(self.lanes) or _MANY)


_LINE: Final = Shelf(
    Q(status=TaskStatus.PENDING, deferred=False),
    ("is_async", "queue_name", "-priority", "enqueued_at", "pk"),
    is_by_queue=True,
)
_LATER: Final = Shelf(Q(status=TaskStatus.PENDING, deferred=True, gated=False), ("enqueued_at",))
#: What waits for a place of its limit: all of it is due.
_GATED: Final = Shelf(Q(status=TaskStatus.PENDING, gated=True), ("limit_key", "-priority", "enqueued_at", "pk"))
#: What is due already, and has not been let into the line yet.
_JUST_DUE: Final = Shelf(_LATER.rows & Q(enqueued_at__lte=Now()), _LATER.order)
_TOO_LATE: Final = Shelf(Q(status=TaskStatus.PENDING, good_until__lte=Now()), ("good_until",))

WHOLE: Final = Ground()
PENDING: Final = Ground((_LINE, _LATER, _GATED))
DEFERRED: Final = Ground((_LATER,))
DUE: Final = Ground((_LINE, _JUST_DUE, _GATED))
OVERDUE: Final = Ground((_TOO_LATE,))
HELD: Final = Ground((Shelf(IS_HELD, ("claimed_by_worker_id",)),))
#: What ended without success, and what is tried again.
WITH_ERROR: Final = Ground(lanes=(Q(error_code__isnull=False),))


def of_status(status: str) -> Ground:
    """Return where tasks of a status are found."""
    if status in TASK_RETRYABLE_STATES:
        return Ground(lanes=(Q(status=status),))
    if status in TASK_LIVE_STATES:
        return PENDING if status == TaskStatus.PENDING else HELD
    return WHOLE
