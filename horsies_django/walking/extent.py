"""How many rows a walk will meet: counted as far as that is quick, else estimated. And where it has to begin."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db import connections
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils.timezone import now
from django.utils.translation import gettext as _

from .keys import Key, beside
from .walk import Walk

#: Rows that are counted at most.
COUNTED: Final = 10_000

#: Seconds after which counting takes no further stretch, and stretches that are counted at most.
#: Each is two statements, for each lane.
COUNTS: Final = 0.05
STRETCHES: Final = 2


@dataclass(frozen=True, slots=True)
class Edge:
    """What is there at a moment by the database's clock: what was sent later is not meant.

    Nor are the rows from the id ``upper`` on, which most of those have.
    """

    asked: datetime
    upper: Key


def edge_of(rows: QuerySet[Any]) -> Edge:
    """Return the edge of the table that these rows are of, as it is now."""
    every = rows.model._default_manager.using(rows.db)
    newest = every.annotate(asked=Now()).order_by("-pk").values_list("pk", "asked").first()
    return Edge(newest[1], beside(newest[0], 1)) if newest else Edge(now(), UUID(int=0))


@dataclass(frozen=True, slots=True)
class Extent:
    """How many rows match, by status; how many there may be in all, if these are not all."""

    by_status: Counter[str]
    estimate: int | None = None
    is_whole: bool = True

    @property
    def counted(self) -> int:
        """How many were counted."""
        return self.by_status.total()

    def __str__(self) -> str:
        if self.is_whole:
            return str(self.counted)
        if self.estimate is None:
            return _("more than %d") % self.counted
        return f"≈ {max(self.estimate, self.counted)}"


def extent_of(walk: Walk, before: UUID | None) -> Extent:
    """Count what matches, a stretch or a little more; beyond ``COUNTED`` rows, or if it takes long, ask the planner."""
    counts: Counter[str] = Counter()
    until = time.monotonic() + COUNTS
    for number, (found, cursor) in enumerate(walk.counts(before, COUNTED + 1), 1):
        counts.update(found)
        is_enough = number == STRETCHES or time.monotonic() > until
        if counts.total() > COUNTED or (cursor is not None and is_enough):
            return Extent(counts, _estimate(walk), is_whole=False)
    return Extent(counts)


def _estimate(walk: Walk) -> int | None:
    if connections[walk.rows.db].vendor != "postgresql":
        return None
    (plan,) = json.loads(walk.rows.order_by().values("pk").explain(format="json"))
    return int(plan["Plan"]["Plan Rows"])
