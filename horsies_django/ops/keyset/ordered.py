"""Pages of a scan in the order of a time, such as the due time, from an index range that is read in that order."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db.models import ExpressionWrapper, F, Q
from django.utils.timezone import is_aware

from .keys import Key
from .scan import FIRST_INDEX_CHUNK, PAGE, FilterBudget, KeysetScan
from .scopes import IndexRange

#: Rows of the range that are read for one page: these, then these.
SIZES: Final = (2_000, 8_000)

#: Separates the time of a position from its id.
_SEPARATOR: Final = "_"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the order: a time, and the id among rows of the same time."""

    moment: datetime
    key: Key

    def __str__(self) -> str:
        return f"{self.moment.isoformat()}{_SEPARATOR}{self.key}"


def parse_position(text: str) -> Position | None:
    """Parse a position from a URL; return None if it is not valid."""
    moment, _, key = text.partition(_SEPARATOR)
    try:
        position = Position(datetime.fromisoformat(moment), UUID(key))
    except ValueError:
        return None
    is_valid = is_aware(position.moment) and 1970 <= position.moment.year < 9999
    return position if is_valid else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedPage:
    """Rows of one page and the positions of its neighbours; None: there is none.

    ``scanned_to`` is the time at which the scan stopped before the page was full; None if it did not.
    """

    rows: list[Any]
    previous: Position | None = None
    next: Position | None = None
    scanned_to: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class OrderedScan:
    """The rows of ``scan`` in ``index_range`` by ``column``, earliest first."""

    scan: KeysetScan
    index_range: IndexRange
    column: str

    def page(self, start: Position | None = None, *, is_back: bool = False) -> OrderedPage:
        """Return the first page, the one after a position or, with ``is_back``, the one before it."""
        candidates, end = self._find(start, is_back=is_back)
        is_more = len(candidates) > PAGE
        rows = candidates[:PAGE][::-1] if is_back else candidates[:PAGE]
        ahead = self._position(candidates[PAGE - 1]) if is_more else end
        stopped = None if is_more or end is None else end.moment
        behind = start if not rows else self._position(rows[-1] if is_back else rows[0])
        if is_back:
            return OrderedPage(rows=rows, previous=ahead, next=behind, scanned_to=stopped)
        return OrderedPage(rows=rows, previous=behind if start else None, next=ahead, scanned_to=stopped)

    def _find(self, start: Position | None, *, is_back: bool) -> tuple[list[Any], Position | None]:
        """Return up to one row more than a page holds, and the position at which the scan stopped."""
        matches: list[Any] = []
        end, budget = start, FilterBudget()
        rows = self.scan.rows.order_by(*self._order(is_back=is_back))
        for size in SIZES if self.scan.row_filter is None else SIZES[:1]:
            positions = self._positions(end, size, is_back=is_back)
            for first, last in ((0, FIRST_INDEX_CHUNK), (FIRST_INDEX_CHUNK, size)):
                some = {position.key: position for position in positions[first:last]}
                if some and len(matches) <= PAGE:
                    matching, last_key = self.scan.matching(rows, list(some), PAGE + 1 - len(matches), budget)
                    matches += matching
                    if last_key is not None:
                        return matches, some[last_key]
            end = positions[-1] if len(positions) == size else None
            if len(matches) > PAGE or end is None:
                break
        return matches, end

    def _positions(self, start: Position | None, size: int, *, is_back: bool) -> list[Position]:
        rows = self.scan.all_rows.filter(self.index_range.rows, **{f"{self.column}__isnull": False})
        if start is not None:
            side = "lt" if is_back else "gt"
            later = Q(**{f"{self.column}__{side}": start.moment})
            same = Q(**{self.column: start.moment, f"pk__{side}": start.key})
            rows = rows.filter(later | same, **{f"{self.column}__{side}e": start.moment})  # the last is for the index
        # Wrapped, since Django orders by a selected column as it is selected: clamped, which no index is.
        moment = ExpressionWrapper(F(self.column), rows.model._meta.get_field(self.column))
        keys = rows.order_by(*self._order(is_back=is_back)).values_list(moment, "pk")
        return [Position(*each) for each in keys[:size]]

    def _order(self, *, is_back: bool) -> tuple[str, str]:
        return (f"-{self.column}", "-pk") if is_back else (self.column, "pk")

    def _position(self, row: Any) -> Position:
        return Position(getattr(row, self.column), row.pk)
