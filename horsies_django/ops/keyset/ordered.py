"""Pages of a scan in the order of a time, such as the due time, from an index range that is read in that order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db.models import Q
from django.utils.timezone import is_aware

from .keys import Key, offset_key
from .scan import FIRST_INDEX_CHUNK, FilterBudget, KeysetScan
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


@dataclass(frozen=True, kw_only=True)
class OrderedScan(KeysetScan):
    """A scan of the rows in ``index_range`` by ``column``, a time. Its cursors are positions."""

    index_range: IndexRange
    column: str

    def _cursor(self, row: Any) -> Position:
        return Position(getattr(row, self.column), row.pk)

    def _time_of(self, cursor: Position) -> datetime:
        return cursor.moment

    def _beside(self, cursor: Position, step: int) -> Position:
        return Position(cursor.moment, offset_key(cursor.key, step))

    def _find(
        self, start: Position | None, count: int, sizes: Iterable[int], *, is_down: bool
    ) -> tuple[list[Any], Position | None]:
        """Return up to ``count`` rows, and the position at which the scan stopped; None: it saw all rows."""
        matches: list[Any] = []
        end, budget = start, FilterBudget()
        rows = self.rows.order_by(*self._order(is_down=is_down))
        for size in SIZES if self.row_filter is None else SIZES[:1]:
            positions = self._positions(end, size, is_down=is_down)
            for first, last in ((0, FIRST_INDEX_CHUNK), (FIRST_INDEX_CHUNK, size)):
                some = {position.key: position for position in positions[first:last]}
                if some and len(matches) < count:
                    matching, last_key = self._matching(rows, list(some), count - len(matches), budget)
                    matches += matching
                    if last_key is not None:
                        return matches, some[last_key]
            end = positions[-1] if len(positions) == size else None
            if len(matches) >= count or end is None:
                break
        return matches, end

    def _positions(self, start: Position | None, size: int, *, is_down: bool) -> list[Position]:
        rows = self.all_rows.filter(self.index_range.rows, **{f"{self.column}__isnull": False})
        if start is not None:
            side = "lt" if is_down else "gt"
            later = Q(**{f"{self.column}__{side}": start.moment})
            same = Q(**{self.column: start.moment, f"pk__{side}": start.key})
            rows = rows.filter(later | same, **{f"{self.column}__{side}e": start.moment})  # the last is for the index
        keys = rows.order_by(*self._order(is_down=is_down)).values_list(self.column, "pk")
        return [Position(*each) for each in keys[:size]]

    def _order(self, *, is_down: bool) -> tuple[str, str]:
        return (f"-{self.column}", "-pk") if is_down else (self.column, "pk")
