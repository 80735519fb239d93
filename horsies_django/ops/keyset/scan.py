"""Keyset scan of a table by its ids, in bounded chunks, without COUNT or OFFSET."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import chain, repeat
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from django.db.models import F, Q, QuerySet, Subquery

from ...db.expressions import InSubquery, where_in
from .criteria import Criteria
from .keys import Key, created_at, offset_key
from .scopes import BATCH, MAX_INDEX_ROWS, ScanScope

#: Takes rows that match the query; returns the ids of those that may appear, and the number of bytes that it has read.
RowFilter: TypeAlias = Callable[[QuerySet[Any]], tuple[Iterable[Key], int]]

#: Rows on a page.
PAGE: Final = 50

#: Chunk sizes, in rows of the scope, for one page. Most pages are full after the first chunk. How far a page looks is
#: a number of rows, not a time: the same page looks equally far on a busy machine, unless a row filter takes long.
CHUNKS: Final = (2_000, 48_000)

#: What a row filter may read for one page: rows, bytes, and the seconds that this may take.
MAX_FILTERED: Final = 5_000
MAX_FILTERED_BYTES: Final = 32_000_000
MAX_FILTER_SECONDS: Final = 5.0

#: Rows that a row filter reads at once at first.
FILTERED_BATCH: Final = 400

#: The chunk size of a scan with a row filter that is longer than a page.
FILTERED_CHUNK: Final = 2_000

#: Rows in the first chunk of an index range; the second has the rest.
FIRST_INDEX_CHUNK: Final = 200

#: Divides the chunk size for a partition, whose rows are far apart.
_PARTITION_DIVISOR: Final = 6


class Chunk(NamedTuple):
    """A chunk of the scope: one condition per index, its rows, and the id at which it ends; None for the last chunk."""

    parts: tuple[Q, ...]
    end: Key | None


@dataclass(slots=True)
class FilterBudget:
    """What a row filter has read for one page: rows, bytes, and since when."""

    read: int = 0
    size: int = 0
    began: float = field(default_factory=time.monotonic)

    @property
    def is_used_up(self) -> bool:
        """Whether nothing is left."""
        return self._share >= 1 or time.monotonic() - self.began > MAX_FILTER_SECONDS

    @property
    def batch(self) -> int:
        """How many rows to read at once: few at first, then what is left at the size of the rows so far."""
        batch_size = min(4 * self.read, self.read * (1 / self._share - 1)) if self.read else 0
        return max(FILTERED_BATCH, int(batch_size))

    @property
    def _share(self) -> float:
        return max(self.read / MAX_FILTERED, self.size / MAX_FILTERED_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Rows of one page, the newest first, and the cursors of its neighbours.

    Attributes:
        rows: At most ``PAGE`` rows.
        newer: The page of newer rows begins after this cursor. None: there is none.
        older: The page of older rows begins before this cursor. None: there is none.
        stopped_at: The time at which the scan stopped before the page was full; None if it did not.
        began_at: The time at which such a scan began; None: at an end of the table.
    """

    rows: list[Any]
    newer: Any = None
    older: Any = None
    stopped_at: datetime | None = None
    began_at: datetime | None = None


@dataclass(frozen=True)
class KeysetScan:
    """A scan of ``rows``, which were filtered by ``criteria`` and of which ``row_filter`` may drop more.

    The filter reads whole rows, so each page has a :class:`FilterBudget` for it.
    """

    rows: QuerySet[Any]
    criteria: Criteria = field(default_factory=Criteria)
    row_filter: RowFilter | None = None

    def page(self, start: Any = None, *, is_down: bool = True) -> Page:
        """Return the page of the rows just before a cursor or, if not ``is_down``, of those just after it.

        Without a cursor the page begins at the newest row, or at the oldest.
        """
        rows, end = self._find(start, PAGE + 1, self._sizes, is_down=is_down)
        is_full = len(rows) > PAGE
        rows = rows[:PAGE]
        ahead = self._cursor(rows[-1]) if is_full else end
        behind = None
        if start is not None:
            behind = self._cursor(rows[0]) if rows else self._beside(start, -1 if is_down else 1)
        ends = (None, None) if is_full or end is None else (end, start)
        stopped_at, began_at = (None if cursor is None else self._time_of(cursor) for cursor in ends)
        if not is_down:
            rows, ahead, behind = rows[::-1], behind, ahead
        return Page(rows=rows, newer=behind, older=ahead, stopped_at=stopped_at, began_at=began_at)

    def _cursor(self, row: Any) -> Any:
        return row.pk

    def _time_of(self, cursor: Any) -> datetime:
        return created_at(cursor)

    def _beside(self, cursor: Any, step: int) -> Any:
        return offset_key(cursor, step)

    def first(self, count: int, before: Key | None = None) -> list[Any]:
        """Return up to ``count`` rows, the newest or those just before an id, however far the scan has to go.

        For scans without a row filter.
        """
        return self._find(before, count, chain(self._sizes, repeat(self._long_size)), is_down=True)[0]

    def sent_until(self, moment: datetime) -> KeysetScan:
        """Return the scan without rows sent after that time."""
        return replace(self, rows=self.rows.filter(sent_at__lte=moment))

    def id_batches(self, before: Key | None, size: int = BATCH) -> Iterator[tuple[list[Key], Key | None]]:
        """Yield batches of ids, the newest first, each with the id to continue before; None at the end.

        A batch may be empty; it then reports how far the scan has come.
        """
        for chunk in self._chunks(before, repeat(self._long_size), is_down=True):
            keys = self.rows.order_by().values_list("pk", flat=True)
            ordered = sorted(chain(*(keys.filter(part) for part in chunk.parts)), reverse=True)
            ids, _ = self._passing(ordered)
            for first in range(0, len(ids), size):
                batch = ids[first : first + size]
                yield batch, batch[-1]
            yield [], chunk.end

    def counts(self, before: Key | None) -> Iterator[tuple[Counter[str], int, Key | None]]:
        """Yield counts by status, chunk by chunk, each with the number of scanned rows and the id to continue before.

        The number assumes that the last chunk is as long as the others. Each query has a limit, since without one
        PostgreSQL may read all of a table that is shorter than a chunk.
        """
        statuses = self.rows.order_by("-pk").values_list("pk", "status")
        size = self._long_size
        length = self._partition_size(size) * max(1, len(self.scope.partitions))
        for chunk in self._chunks(before, repeat(self._long_size), is_down=True):
            status_by_key = dict(chain(*(statuses.filter(part)[: size + 1] for part in chunk.parts)))
            yield Counter(status_by_key[key] for key in self._passing(list(status_by_key))[0]), length, chunk.end

    def _matching(
        self, rows: QuerySet[Any], keys: list[Key], count: int, budget: FilterBudget
    ) -> tuple[list[Any], Key | None]:
        """Return the first of ``rows`` with these ids that the row filter lets pass.

        It reads all of them, even if fewer suffice for the page: otherwise the end of a page would reveal how many
        dropped out. The second value is the id at which the budget was used up; None: it was not.
        """
        matching = rows.filter(self._with_keys(keys))
        if self.row_filter is None:
            return list(matching[:count]), None
        return self._first_passing(rows, list(matching.values_list("pk", flat=True)), count, budget)

    def _first_passing(
        self, rows: QuerySet[Any], keys: list[Key], count: int, budget: FilterBudget
    ) -> tuple[list[Any], Key | None]:
        """See :meth:`_matching`; all ``keys`` are those of rows that match the query."""
        passed, read = self._passing(keys, budget)
        matches = list(rows.filter(self._with_keys(passed[:count]))) if passed else []
        return matches, keys[read - 1] if read and budget.is_used_up else None

    def _passing(self, keys: list[Key], budget: FilterBudget | None = None) -> tuple[list[Key], int]:
        """Return those of the ids that the row filter lets pass, and how many it read until the budget was used up."""
        if self.row_filter is None:
            return keys, len(keys)
        passed, read = list[Key](), 0
        while read < len(keys):
            some = keys[read : read + budget.batch] if budget else keys
            # The range keeps PostgreSQL from reading the whole table, which it expects to cost less than many keys.
            between = Q(pk__gte=min(some), pk__lte=max(some))
            matches, size = self.row_filter(self.all_rows.filter(self._with_keys(some), between))
            left = set(matches)
            passed += [key for key in some if key in left]
            read += len(some)
            if budget:
                budget.read, budget.size = budget.read + len(some), budget.size + size
                if budget.is_used_up:
                    break
        return passed, read

    def _find(
        self, start: Key | None, count: int, sizes: Iterable[int], *, is_down: bool
    ) -> tuple[list[Any], Key | None]:
        """Return up to ``count`` rows of chunks of these sizes, and the id at which the scan stopped.

        None for the id: the scan saw all rows.
        """
        matches: list[Any] = []
        budget = FilterBudget()
        end: Key | None = None
        for chunk in self._chunks(start, sizes, is_down=is_down, is_page=True):
            rows, last = self._first(chunk, count - len(matches), budget, is_down=is_down)
            matches += rows
            end = chunk.end if last is None else last
            if len(matches) >= count or last is not None:
                break
        return matches, end

    @property
    def _sizes(self) -> Sequence[int]:
        """The chunk sizes of a page. Each chunk costs two queries for each partition."""
        return [self._long_size] if len(self.scope.partitions) > 1 else CHUNKS

    @property
    def _long_size(self) -> int:
        """The chunk size of scans that are longer than a page."""
        return CHUNKS[-1] if self.row_filter is None else FILTERED_CHUNK

    def _first(self, chunk: Chunk, count: int, budget: FilterBudget, *, is_down: bool) -> tuple[list[Any], Key | None]:
        """Return the first rows of a chunk in scan order, and the id at which the row filter's budget was used up.

        Each part has its own index, so it gets its own query.
        """
        rows = self.rows.order_by("-pk" if is_down else "pk")
        if self.row_filter is None:
            every = [row for part in chunk.parts for row in rows.filter(part)[:count]]
            return sorted(every, key=attrgetter("pk"), reverse=is_down)[:count], None
        limit = MAX_FILTERED - budget.read
        keys = {key for part in chunk.parts for key in rows.filter(part).values_list("pk", flat=True)[:limit]}
        return self._first_passing(rows, sorted(keys, reverse=is_down)[:limit], count, budget)

    # Chunks of the scope.

    @cached_property
    def scope(self) -> ScanScope:
        """Where to scan. The tasks of one queue may lie behind any number of others, so an index is read there only."""
        scope, queue = self.criteria.scope, self.criteria.queue
        return scope.for_queue(queue) if queue else scope

    def _chunks(
        self, start: Key | None, sizes: Iterable[int], *, is_down: bool, is_page: bool = False
    ) -> Iterator[Chunk]:
        if self.rows.query.is_empty():
            yield Chunk((), None)
            return
        if self._index_keys is not None:
            is_short = is_page and self.row_filter is None  # a row filter reads a few rows at first anyway
            yield from self._index_chunks(self._index_keys, start, is_short, is_down=is_down)
            return
        for size in sizes:
            chunk = self._chunk(start, size, is_down=is_down)
            yield chunk
            start = chunk.end
            if start is None:
                return

    def _chunk(self, start: Key | None, size: int, *, is_down: bool) -> Chunk:
        """Return the next ``size`` rows of the scope; its end is the id of the last; None if there are fewer."""
        length = self._partition_size(size)
        rows = self.all_rows.filter(self._between(start, None, is_down=is_down))
        keys = rows.order_by("-pk" if is_down else "pk").values_list("pk", flat=True)
        nexts = [keys.filter(partition) for partition in self.scope.partitions or (Q(),)]
        ends = [key for each in nexts for key in each[length - 1 : length]]
        end: Key | None = (max if is_down else min)(ends, default=None)
        between = self._between(start, end, is_down=is_down)
        if not self.scope.partitions:
            return Chunk((between,), end)
        return Chunk(tuple(between & Q(InSubquery(F("pk"), Subquery(each[:length]))) for each in nexts), end)

    def _index_chunks(self, keys: list[Key], start: Key | None, is_short: bool, *, is_down: bool) -> Iterator[Chunk]:
        ahead = [key for key in keys if start is None or (key < start if is_down else key > start)]
        if is_down:
            ahead.reverse()
        first, rest = (ahead[:FIRST_INDEX_CHUNK], ahead[FIRST_INDEX_CHUNK:]) if is_short else (ahead, [])
        yield Chunk((self._with_keys(first),), first[-1] if rest else None)
        if rest:
            yield Chunk((self._with_keys(rest),), None)

    @cached_property
    def _index_keys(self) -> list[Key] | None:
        """All keys in the index ranges; None if there are too many to read, or no ranges."""
        if not self.scope.ranges:
            return None
        keys: set[Key] = set()
        for index_range in self.scope.ranges:
            rows = self.all_rows.filter(index_range.rows).order_by(*index_range.order)
            keys.update(rows.values_list("pk", flat=True)[: MAX_INDEX_ROWS + 1])
            if len(keys) > MAX_INDEX_ROWS:
                return None
        return sorted(keys)

    def _partition_size(self, size: int) -> int:
        """Return how many rows of one partition a chunk has."""
        return size // _PARTITION_DIVISOR if self.scope.partitions else size

    def _between(self, start: Key | None, end: Key | None, *, is_down: bool) -> Q:
        """Return the condition for rows after ``start`` up to and including ``end``, or up to the bound."""
        low, high = self.criteria.bounds.low, self.criteria.bounds.high
        rows = Q()
        if is_down:
            rows &= Q(pk__lte=high) if high and (start is None or start > high) else Q(pk__lt=start) if start else Q()
            return rows & (Q(pk__gte=end) if end else Q(pk__gte=low) if low else Q())
        rows &= Q(pk__gte=low) if low and (start is None or start < low) else Q(pk__gt=start) if start else Q()
        return rows & (Q(pk__lte=end) if end else Q(pk__lte=high) if high else Q())

    def _with_keys(self, keys: list[Key]) -> Q:
        return where_in(self.rows.db, keys)

    @property
    def all_rows(self) -> QuerySet[Any]:
        """All rows of the table."""
        every: QuerySet[Any] = self.rows.model._default_manager.using(self.rows.db)
        return every
