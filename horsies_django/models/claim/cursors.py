"""Kept cursors: where claims from a queue begin while an old transaction keeps the index entries of tasks that ended.

A claim from the first row then reads all of these entries, each time, up to hundreds of thousands. A claim with kept
cursors reads those since the last claims only: it continues from a position for each priority.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from ...core.clock import parse_utc
from ...db import postgres
from ..claims import ClaimedTask
from ..queue_scan import DueQueue

#: The index that claims read.
_INDEX: Final = "horsies_task_claim"

#: Cursors are kept once scans of that index have read so many entries each. Without dead entries, a claim reads as many
#: as it takes, some dozens.
_MANY_ENTRIES: Final = 1_000

#: A claim from the first row is slow from so many seconds on. Only then the entries are counted, after so many seconds.
_SLOW: Final = 0.005
_PAUSE: Final = 2.0

#: Claims go back so far before the position of the last claimed task: a task that is committed, or becomes due, so long
#: after its time is not missed.
_LATE: Final = timedelta(seconds=2)

#: A claim from the first row, which finds tasks that came later, is made after this many times its duration, but not
#: sooner nor later than in so many seconds; and as soon as a poll has seen such a task. If it finds enough tasks, the
#: next one begins there too.
_DURATION_FACTOR: Final = 50
_WAITS: Final = (2.0, 10.0)

#: Cursors of a queue are forgotten after so many quick claims from the first row, one after another, or after so many
#: seconds without a claim.
_QUICK_ENOUGH: Final = 2
_UNUSED: Final = 60.0

#: Most priorities of a queue with cursors, and most queues that are claimed one by one with them: each is a statement.
_MAX_PRIORITIES: Final = 4
_MAX_QUEUES: Final = 16


@dataclass(slots=True)
class _Queue:
    """The cursors of one queue: the time of the last claimed task of each priority.

    ``fastest`` is the shortest claim with them since the last one from the first row, and ``quick`` how many of those
    were quick one after another.
    """

    times: dict[int, datetime] = field(default_factory=dict)
    first_row_at: float = -math.inf
    claimed_at: float = field(default_factory=time.monotonic)
    fastest: float = math.inf
    quick: int = 0

    def misses(self, priority: int, enqueued_at: datetime) -> bool:
        """Whether claims with these cursors do not find a task."""
        return priority not in self.times or enqueued_at < self.times[priority] - _LATE


class KeptCursors:
    """The kept cursors of one runner, for tasks of one kind. None are kept while claims are quick.

    They are kept in memory only. A worker that starts reads from the first row anyway, with its first poll.
    """

    def __init__(self, database: str) -> None:
        self._database = database
        self._queues: dict[str, _Queue] = {}
        self._slow: set[str] = set()
        self._unsuited: set[str] = set()
        self._counts: tuple[int, int] | None = None
        self._review_at = -math.inf

    def of(self, queue: str) -> list[tuple[int, datetime]]:
        """Return the priorities from which the next claim takes tasks, and since when; none: from the first row on."""
        kept = self._queues.get(queue)
        if kept is None or time.monotonic() >= kept.first_row_at:
            return []
        return [(priority, at - _LATE) for priority, at in sorted(kept.times.items(), reverse=True)]

    def are_of_any(self, queues: Collection[str]) -> bool:
        """Whether claims from these queues, one by one, would use cursors."""
        return len(queues) <= _MAX_QUEUES and not self._queues.keys().isdisjoint(queues)

    def add_claim(
        self, queue: str, room: int, tasks: Sequence[ClaimedTask], seconds: float, *, is_from_first_row: bool
    ) -> None:
        """Note what a claim from a queue got, and how long it took."""
        kept = self._queues.get(queue)
        if kept is None:
            if seconds >= _SLOW:
                self._slow.add(queue)
            return
        kept.claimed_at = time.monotonic()
        if is_from_first_row and len(tasks) < room:  # else there may be more, which the next one finds
            is_quick = seconds < max(_SLOW, 2 * kept.fastest if kept.fastest < math.inf else 0.0)
            kept.quick = kept.quick + 1 if is_quick else 0
            kept.first_row_at = kept.claimed_at + sorted([*_WAITS, _DURATION_FACTOR * seconds])[1]
            kept.fastest = math.inf
        elif not is_from_first_row:
            kept.fastest = min(kept.fastest, seconds)
        for task in tasks:
            at = parse_utc(task.enqueued_at)
            # A claim from the first row may go back: to a late task, or because the database's clock was set back.
            kept.times[task.priority] = at if is_from_first_row else max(at, kept.times.get(task.priority, at))
        # A limit releases older tasks, one with each end.
        if len(kept.times) > _MAX_PRIORITIES or any(task.limit_key is not None for task in tasks):
            self._unsuited.add(queue)
        if queue in self._unsuited or kept.quick >= _QUICK_ENOUGH:
            del self._queues[queue]

    def review(self, due: Iterable[DueQueue]) -> None:
        """Decide for which queues cursors are kept, and note the first due task of each queue, which a poll has seen.

        Call it between claims, outside of transactions.
        """
        for queue in due:
            kept = self._queues.get(queue.queue_name)
            if kept is not None and kept.misses(queue.priority, parse_utc(queue.enqueued_at)):
                kept.first_row_at = -math.inf
        now = time.monotonic()
        if not (self._slow or self._queues) or now < self._review_at:
            return
        self._review_at = now + _PAUSE
        self._queues = {name: kept for name, kept in self._queues.items() if now < kept.claimed_at + _UNUSED}
        new, self._slow = self._slow.difference(self._unsuited, self._queues), set()
        if new and self._read_many_entries():
            self._queues |= {name: _Queue() for name in new}

    def _read_many_entries(self) -> bool:
        """Return whether scans of the index, by any process, have read many entries each since the last call."""
        last, self._counts = self._counts, postgres.entries_and_scans(self._database, _INDEX)
        if last is None:
            return False
        entries, scans = self._counts[0] - last[0], self._counts[1] - last[1]
        return scans > 0 and entries > _MANY_ENTRIES * scans
