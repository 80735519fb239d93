"""All rows of a scan as of one time, in batches, so that no statement reads all of a large table."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.utils.timezone import now
from django.utils.translation import gettext as _

from ...core.numbers import format_number
from ...db.now import Now
from .keys import Key, offset_key
from .scan import KeysetScan
from .scopes import BATCH


@dataclass(frozen=True, slots=True)
class Tally:
    """How many rows match, as far as they have been counted. A page can post it, and a later request continues.

    Attributes:
        by_status: Matching rows by status.
        scanned: Rows that were scanned to find them.
        before: The id before which counting continues; None if it is complete.
    """

    by_status: Counter[str] = field(default_factory=Counter)
    scanned: int = 0
    before: Key | None = None

    def of_statuses(self, statuses: Collection[str] | None) -> int:
        """Return how many rows in these statuses were counted; None means all."""
        return self.by_status.total() if statuses is None else sum(self.by_status[status] for status in statuses)

    @property
    def is_complete(self) -> bool:
        """Whether all rows were counted."""
        return self.before is None

    def __str__(self) -> str:
        """Return the number as text; for a lower bound also how far the scan has come."""
        numbers = {"count": format_number(self.by_status.total()), "looked": format_number(self.scanned)}
        if self.is_complete:
            return numbers["count"]
        return _("at least %(count)s (looked through the newest %(looked)s)") % numbers


@dataclass(frozen=True, slots=True)
class MatchingRows:
    """The rows of a scan without those sent after ``asked_at``, from the newest to the oldest.

    Each method starts before an id: ``newest`` at first, which skips most rows sent later.
    """

    scan: KeysetScan
    asked_at: datetime
    newest: Key

    @classmethod
    def now(cls, scan: KeysetScan) -> MatchingRows:
        """Return the rows that match now, by the database's clock."""
        newest = scan.all_rows.annotate(asked=Now()).order_by("-pk").values_list("pk", "asked").first()
        key, asked_at = newest or (UUID(int=0), now())
        return cls(scan, asked_at, offset_key(key, 1))

    @property
    def rows(self) -> QuerySet[Any]:
        """The rows as a query."""
        return self._until.rows.order_by()

    def count(self, start: Tally | None = None, seconds: float | None = None) -> Tally:
        """Continue a count by at least one chunk, then for ``seconds``; None: until it is complete."""
        until = None if seconds is None else time.monotonic() + seconds
        tally = start or Tally(before=self.newest)
        for counts, scanned, before in self._until.counts(tally.before):
            tally = Tally(tally.by_status + counts, tally.scanned + scanned, before)
            if until is not None and time.monotonic() > until:
                break
        return tally

    def batches(self, before: Key | None = None, size: int = BATCH) -> Iterator[tuple[list[Key], Key | None]]:
        """Yield the ids of the next batch, and the id before which to continue; None at the end.

        A batch may have no ids; it then reports how far the scan has come.
        """
        yield from self._until.id_batches(self.newest if before is None else before, size)

    @property
    def _until(self) -> KeysetScan:
        return self.scan.sent_until(self.asked_at)
