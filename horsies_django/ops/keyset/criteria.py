"""Criteria of rows: a condition, and the part of the table that has the matching rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from django.db.models import Q, QuerySet

from .keys import KeyRange
from .scopes import TABLE, ScanScope


@dataclass(frozen=True, slots=True)
class Criteria:
    """Which rows match, and where to look for them. ``&`` combines two.

    Attributes:
        rows: The condition.
        scope: The part of the table that has the matching rows.
        bounds: The lowest and the highest id that a matching row can have.
        queue: The only queue of the matching tasks; empty: any.
        matches_none: Whether no row matches, so that no query is needed.
    """

    rows: Q = field(default_factory=Q)
    scope: ScanScope = TABLE
    bounds: KeyRange = field(default_factory=KeyRange)
    queue: str = ""
    matches_none: bool = False

    def __and__(self, other: Criteria) -> Criteria:
        return Criteria(
            self.rows & other.rows,
            min(self.scope, other.scope, key=lambda scope: scope.cost),
            self.bounds & other.bounds,
            self.queue or other.queue,
            self.matches_none or other.matches_none,
        )

    def filter(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows that match."""
        return rows.none() if self.matches_none else rows.filter(self.rows)


#: Matches no row.
NOTHING: Final = Criteria(matches_none=True)
