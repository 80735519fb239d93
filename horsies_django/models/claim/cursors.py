"""Kept cursors: where claims begin while an old transaction keeps the index entries of tasks that have ended.

A claim from the first row then reads all of these entries, each time, up to hundreds of thousands. With a kept cursor
for each queue and priority, it reads those since the cursor only, and all rows that have no cursor's priority. Claims
from queues with limited tasks always begin at the first row.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Final

from django.db import connections, models
from django.db.models import TextField
from django.db.models.functions import Cast
from django.utils.translation import gettext_lazy as _

from ...core.clock import parse_utc
from ...db import postgres
from ...db.claim_expressions import LATE
from ...db.constraints import values_in_range
from ...db.fields import DateTimeField
from ..claims import ClaimedTask

#: The index that claims read.
_INDEX: Final = "horsies_task_claim"

#: Cursors are kept once scans of that index have read so many entries each. Without dead entries, a claim reads as many
#: as it takes, some dozens.
_MANY_ENTRIES: Final = 1_000

#: A claim is slow from so many seconds on: only then the entries are counted, once in so many seconds at most.
_SLOW: Final = 0.005
_PAUSE: Final = 5.0

#: A claim from the first row, which finds tasks that came late, is made after this many times its duration, but not
#: sooner nor later than in so many seconds; at once after a poll that has seen such a task.
_DURATION_FACTOR: Final = 50
_WAITS: Final = (2.0, 30.0)

#: Above and below all priorities.
_HIGHEST: Final = 32_767
_LOWEST: Final = -32_768


class ClaimCursor(models.Model):
    """The time of the last claimed task of a queue and a priority, so that a new process goes on from there."""

    is_async = models.BooleanField(_("async"))
    queue_name = models.CharField(_("queue"), max_length=100)
    priority = models.SmallIntegerField(_("priority"))
    enqueued_at = DateTimeField(_("enqueued at"))

    class Meta:
        db_table = "horsies_claim_cursors"
        verbose_name = _("claim cursor")
        verbose_name_plural = _("claim cursors")
        constraints = [
            models.UniqueConstraint(fields=["is_async", "queue_name", "priority"], name="horsies_claim_cursor_is_one"),
            values_in_range("claim_cursor", "enqueued_at priority"),
        ]

    def __str__(self) -> str:
        return f"{self.queue_name} {self.priority}: {self.enqueued_at}"


class KeptCursors:
    """The kept cursors of one runner. None are kept, and no statement is sent, while claims are quick.

    All statements come before a claim: none may fail between a claim and its answer.
    """

    def __init__(self, database: str, *, is_async: bool) -> None:
        self._connection = connections[database]
        self._rows = ClaimCursor.objects.using(database).filter(is_async=is_async)
        self._is_async = is_async
        self._times: dict[tuple[str, int], str] | None = None
        self._limited: set[str] = set()
        self._are_kept = self._was_slow = self._is_saved = False
        self._counts: tuple[int, int] | None = None
        self._seconds = 0.0
        self._decide_at = time.monotonic() + _PAUSE
        self._first_row_at = float("-inf")

    def ranges(self, queues: Sequence[str]) -> str | None:
        """Return which rows a claim reads, as JSON; None: all, from the first one on.

        Each range is the rows of a priority ``since`` its cursor, and those of the priorities between it and the next.
        """
        if self._times is None:
            self._times = self._load()
        if self._are_kept != self._was_slow and time.monotonic() >= self._decide_at:
            self._decide()
        if not self._are_kept or time.monotonic() >= self._first_row_at or not self._limited.isdisjoint(queues):
            return None
        if not self._is_saved:
            self._save()
        ranges: list[dict[str, str | int]] = []
        for queue in queues:
            cursors = sorted(((priority, at) for (name, priority), at in self._times.items() if name == queue))
            above = [(_HIGHEST, "infinity"), *reversed(cursors)]
            below = [*(priority for priority, _ in above[1:]), _LOWEST]
            ranges += (
                {"name": queue, "priority": priority, "since": since, "below": lower}
                for (priority, since), lower in zip(above, below, strict=True)
            )
        return json.dumps(ranges)

    def claimed(self, tasks: Iterable[ClaimedTask], seconds: float, *, is_from_first_row: bool) -> None:
        """Note what a claim of so many ``seconds`` got, in the order of claims."""
        if is_from_first_row:
            # As quick as a claim from the cursors, if there are any: no dead entries are left.
            self._was_slow = seconds >= max(_SLOW, 2 * self._seconds)
            self._first_row_at = time.monotonic() + sorted([*_WAITS, _DURATION_FACTOR * seconds])[1]
            self._is_saved = False
        if self._are_kept and self._times is not None:
            if not is_from_first_row:
                self._seconds = seconds
            for task in tasks:
                self._times[task.queue_name, task.priority] = task.enqueued_at
                if task.limit_key is not None:  # a limit may release older ones after it
                    self._limited.add(task.queue_name)

    def see_due(self, queue: str, priority: int, enqueued_at: str) -> None:
        """Note the first due task of a queue. If it came late, the next claim reads from the first row."""
        at = self._times.get((queue, priority)) if self._are_kept and self._times else None
        if at is not None and parse_utc(enqueued_at) < parse_utc(at) - LATE:
            self._first_row_at = float("-inf")

    def _load(self) -> dict[tuple[str, int], str]:
        rows = self._rows.values_list("queue_name", "priority", Cast("enqueued_at", TextField()))
        times = {(name, priority): at for name, priority, at in rows}
        if times:
            self._are_kept = self._was_slow = self._is_saved = True
            self._first_row_at = time.monotonic() + _WAITS[0]
        return times

    def _decide(self) -> None:
        """Keep cursors from now on, or forget them."""
        self._decide_at = time.monotonic() + _PAUSE
        if self._are_kept:
            self._rows.filter(queue_name__in={name for name, _ in self._times or ()}).delete()
            self._are_kept, self._times, self._seconds = False, {}, 0.0
        else:
            self._are_kept = self._read_many_entries()

    def _read_many_entries(self) -> bool:
        """Return whether scans of the index, by any process, have read many entries each since the last call."""
        last, self._counts = self._counts, postgres.entries_and_scans(self._connection, _INDEX)
        if last is None:
            return False
        entries, scans = self._counts[0] - last[0], self._counts[1] - last[1]
        return entries > _MANY_ENTRIES * scans

    def _save(self) -> None:
        """Store the cursors for processes that start later, but not in a transaction, which would hold their rows."""
        if self._connection.in_atomic_block or not self._times:
            return
        self._is_saved = True
        ClaimCursor.objects.using(self._connection.alias).bulk_create(
            [
                ClaimCursor(is_async=self._is_async, queue_name=name, priority=priority, enqueued_at=parse_utc(at))
                for (name, priority), at in sorted(self._times.items())
            ],
            update_conflicts=True,
            unique_fields=["is_async", "queue_name", "priority"],
            update_fields=["enqueued_at"],
        )
