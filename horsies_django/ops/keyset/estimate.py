"""Count the rows of a scan in chunks, so that no statement reads all of a large table.

A partial count is a value that a page can post, so that a later request continues from it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db import connections
from django.db.models import QuerySet
from django.utils.timezone import now
from django.utils.translation import gettext as _

from ...core.numbers import format_number
from ...db.now import Now
from .keys import Key, offset_key
from .scan import KeysetScan

#: Upper bound for counts that a page shows in passing.
MAX_COUNTED: Final = 10_000


@dataclass(frozen=True, slots=True)
class UpperBound:
    """The newest rows that a scan includes: those sent until ``asked_at``, by the database's clock.

    Also excludes ids from ``upper`` on, which most of the later rows have.
    """

    asked_at: datetime
    upper: Key


def upper_bound(rows: QuerySet[Any]) -> UpperBound:
    """Return the current upper bound of the table that these rows belong to."""
    every = rows.model._default_manager.using(rows.db)
    newest = every.annotate(asked=Now()).order_by("-pk").values_list("pk", "asked").first()
    return UpperBound(newest[1], offset_key(newest[0], 1)) if newest else UpperBound(now(), UUID(int=0))


@dataclass(frozen=True, slots=True)
class Estimate:
    """How many rows match, as far as they have been counted.

    Attributes:
        by_status: Matching rows by status.
        scanned: Rows that were scanned to find them.
        planner_rows: All rows to scan, as PostgreSQL's planner estimates; None without an estimate.
        before: The id at which counting continues; None if it is complete.
    """

    by_status: Counter[str] = field(default_factory=Counter)
    scanned: int = 0
    planner_rows: int | None = None
    before: Key | None = None

    def in_statuses(self, statuses: Collection[str] | None) -> Estimate:
        """Return the count of rows in these statuses only; None means all."""
        if statuses is None:
            return self
        return replace(self, by_status=Counter({one: self.by_status[one] for one in statuses if one in self.by_status}))

    @property
    def counted(self) -> int:
        """How many of the scanned rows match."""
        return self.by_status.total()

    @property
    def is_complete(self) -> bool:
        """Whether the count is complete."""
        return self.before is None

    @property
    def rows_to_scan(self) -> int | None:
        """The estimated number of rows to scan, always above ``scanned``."""
        return None if self.planner_rows is None else max(self.planner_rows, self.scanned + 1)

    @property
    def only_status(self) -> str:
        """The status of all matching rows; empty if they have several, or if not all are counted."""
        found = [status for status, count in self.by_status.items() if count]
        return found[0] if self.is_complete and len(found) == 1 else ""

    @property
    def number(self) -> str:
        """The count as text, marked if it is a lower bound."""
        return format_number(self.counted) if self.is_complete else _("at least %s") % format_number(self.counted)

    def __str__(self) -> str:
        """Return the count as text; for a lower bound also how far the scan has come."""
        numbers = {"count": format_number(self.counted), "looked": format_number(self.scanned)}
        if self.is_complete:
            return numbers["count"]
        if self.rows_to_scan is None:
            return _("at least %(count)s (looked through the newest %(looked)s)") % numbers
        numbers["about"] = format_number(self.rows_to_scan)
        return _("at least %(count)s (looked through the newest %(looked)s of about %(about)s)") % numbers


def estimate_rows(scan: KeysetScan, start: Estimate, seconds: float | None = None) -> Estimate:
    """Continue the count ``start`` by at least one chunk, then for ``seconds``; None: until it is complete."""
    until = None if seconds is None else time.monotonic() + seconds
    counts, looked, before = Counter(start.by_status), start.scanned, start.before
    for found, passed, end in scan.counts(start.before):
        before = end
        counts.update(found)
        looked += passed
        if until is not None and time.monotonic() > until:
            break
    of = start.planner_rows
    if of is None and before is not None:
        of = _planner_rows(scan)
    return Estimate(counts, looked, of, before)


def _planner_rows(scan: KeysetScan) -> int | None:
    """Return the planner's estimate of the rows to scan; None on databases other than PostgreSQL."""
    if connections[scan.rows.db].vendor != "postgresql":
        return None
    (plan,) = json.loads(scan.scanned_rows.values("pk").explain(format="json"))
    return int(plan["Plan"]["Plan Rows"])
