"""Keyset scan of a table by its ids, in bounded chunks, without COUNT or OFFSET."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, reduce
from itertools import chain
from operator import or_
from typing import Any, Final, NamedTuple, TypeAlias

from django.db import connections
from django.db.models import F, Q, QuerySet, Subquery

from ...db.expressions import AnyOf, InSubquery, encode_pk, json_array
from .keys import Key, created_at, offset_key
from .scopes import MAX_INDEX_ROWS, TABLE, ScanScope

#: Takes rows that match the query and returns the ids of those that may appear.
RowFilter: TypeAlias = Callable[[QuerySet[Any]], Iterable[Key]]

#: Rows on a page.
PAGE: Final = 50

#: Chunk sizes, in rows of the scope, for one page. Most pages are full after the first chunk.
CHUNKS: Final = (2_000, 48_000)

#: Up to EXTRA_CHUNKS more chunks of the last size follow while less than TIME_LIMIT seconds have passed.
EXTRA_CHUNKS: Final = 2
TIME_LIMIT: Final = 0.06

#: The same for searches that read and mask whole rows: chunks follow the first within SLOW_TIME_LIMIT seconds.
SLOW_CHUNKS: Final = (500, *(2_000,) * 25)
SLOW_TIME_LIMIT: Final = 0.5

#: Rows in the first chunk of an index range; the second has the rest.
FIRST_INDEX_CHUNK: Final = 200

#: Divides the chunk size for a partition, whose rows are far apart.
_PARTITION_DIVISOR: Final = 6

#: Maximum number of rows in a batch.
BATCH: Final = 500


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The lowest and the highest id that can match. None: no bound."""

    low: Key | None = None
    high: Key | None = None

    def __and__(self, other: KeyRange) -> KeyRange:
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return KeyRange(max(lows, default=None), min(highs, default=None))


class Chunk(NamedTuple):
    """A chunk of the scope: one condition per index, and the id at which it ends; None for the last chunk."""

    parts: tuple[Q, ...]
    end: Key | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Rows of one page, the newest first, and the cursors of its neighbours.

    Attributes:
        rows: At most ``PAGE`` rows.
        newer: The page of newer rows begins after this id. None: there is none.
        older: The page of older rows begins before this id. None: there is none.
        scanned_from: The time at which the scan stopped before the page was full; None if it did not.
        scanned_to: The time at which the scan began, if ``scanned_from`` is set.
    """

    rows: list[Any]
    newer: Key | None = None
    older: Key | None = None
    scanned_from: datetime | None = None
    scanned_to: datetime | None = None


@dataclass(frozen=True)
class KeysetScan:
    """A scan of ``rows`` within ``scope`` and ``bounds``, of which ``row_filter`` may drop some.

    ``is_slow`` says that filtering a row is expensive.
    """

    rows: QuerySet[Any]
    scope: ScanScope = TABLE
    bounds: KeyRange = field(default_factory=KeyRange)
    row_filter: RowFilter | None = None
    is_slow: bool = False

    def page(self, *, before: Key | None = None, after: Key | None = None) -> Page:
        """Return the page with the newest rows, with those just before an id, or with those just after one."""
        return self._page_after(after) if after is not None else self._page_before(before)

    def first(self, count: int, before: Key | None = None) -> list[Any]:
        """Return up to ``count`` rows, the newest or those just before an id, however far the scan has to go."""
        found: list[Any] = []
        start, sizes = before, self._long_sizes if len(self.scope.partitions) > 1 else CHUNKS
        while True:
            for chunk in self._chunks(start, sizes, is_down=True):
                found += self._first(chunk, count - len(found), is_down=True)
                start = chunk.end
                if len(found) >= count or start is None:
                    return found
            sizes = self._long_sizes

    def sent_until(self, moment: datetime) -> KeysetScan:
        """Return the scan without rows sent after that time."""
        return replace(self, rows=self.rows.filter(sent_at__lte=moment))

    def id_batches(self, before: Key | None, size: int = BATCH) -> Iterator[tuple[list[Key], Key | None]]:
        """Yield batches of ids, the newest first, each with the id to continue before; None at the end.

        A batch may be empty; it then reports how far the scan has come.
        """
        for chunk in self._long_chunks(before):
            keys = self.rows.order_by().values_list("pk", flat=True)
            found = self._filtered(sorted(chain(*(keys.filter(part) for part in chunk.parts)), reverse=True))
            for first in range(0, len(found), size):
                batch = found[first : first + size]
                yield batch, batch[-1]
            yield [], chunk.end

    def counts(self, before: Key | None) -> Iterator[tuple[Counter[str], int, Key | None]]:
        """Yield counts by status, chunk by chunk, each with the number of scanned rows and the id to continue before.

        The number assumes that the last chunk is as long as the others. Each query has a limit, since without one
        PostgreSQL may read all of a table that is shorter than a chunk.
        """
        statuses = self.rows.order_by("-pk").values_list("pk", "status")
        (size,) = self._long_sizes
        length = self._partition_size(size) * max(1, len(self.scope.partitions))
        for chunk in self._long_chunks(before):
            found = dict(chain(*(statuses.filter(part)[: size + 1] for part in chunk.parts)))
            yield Counter(found[key] for key in self._filtered(list(found))), length, chunk.end

    @property
    def scanned_rows(self) -> QuerySet[Any]:
        """The rows to scan: those of the partitions, or of the whole table, within the bounds."""
        partitions: Q = reduce(or_, self.scope.partitions, Q())
        return self._all_rows.filter(self._between(None, None, is_down=True), partitions)

    def _long_chunks(self, before: Key | None) -> Iterator[Chunk]:
        start = before
        while True:
            chunk = next(self._chunks(start, self._long_sizes, is_down=True))
            yield chunk
            if (start := chunk.end) is None:
                return

    def _page_before(self, before: Key | None) -> Page:
        found, end = self._find(before, is_down=True)
        rows = found[:PAGE]
        newer = None
        if before is not None:
            newer = rows[0].pk if rows else offset_key(before, -1)
        if len(found) > PAGE:
            return Page(rows=rows, newer=newer, older=rows[-1].pk)
        if end is None:
            return Page(rows=rows, newer=newer)
        until = created_at(before) if before is not None else None
        return Page(rows=rows, newer=newer, older=end, scanned_from=created_at(end), scanned_to=until)

    def _page_after(self, after: Key) -> Page:
        found, end = self._find(after, is_down=False)
        rows = found[:PAGE][::-1]
        older = rows[-1].pk if rows else offset_key(after, 1)
        if len(found) > PAGE:
            return Page(rows=rows, newer=rows[0].pk, older=older)
        if end is None:
            return Page(rows=rows, older=older)
        return Page(rows=rows, newer=end, older=older, scanned_from=created_at(after), scanned_to=created_at(end))

    def _find(self, start: Key | None, *, is_down: bool) -> tuple[list[Any], Key | None]:
        """Return up to one row more than a page holds, and the id at which the scan stopped."""
        found: list[Any] = []
        end: Key | None = None
        until = time.monotonic() + (SLOW_TIME_LIMIT if self.is_slow else TIME_LIMIT)
        sizes: tuple[int, ...] = SLOW_CHUNKS if self.is_slow else CHUNKS + CHUNKS[-1:] * EXTRA_CHUNKS
        least = 1 if self.is_slow else len(CHUNKS)
        if len(self.scope.partitions) > 1:
            sizes = self._long_sizes  # each costs two queries per partition
        for number, chunk in enumerate(self._chunks(start, sizes, is_down=is_down), 1):
            found += self._first(chunk, PAGE + 1 - len(found), is_down=is_down)
            end = chunk.end
            if len(found) > PAGE or (number >= least and time.monotonic() > until):
                break
        return found, end

    @property
    def _long_sizes(self) -> tuple[int, ...]:
        """The chunk size where no time limit applies."""
        return SLOW_CHUNKS[1:2] if self.is_slow else CHUNKS[-1:]

    def _first(self, chunk: Chunk, count: int, *, is_down: bool) -> list[Any]:
        """Return the first rows of a chunk in scan order. Each part has its own index, so it gets its own query."""
        rows = self.rows.order_by("-pk" if is_down else "pk")
        found = [row for part in chunk.parts for row in self._matching(rows.filter(part), count)]
        return sorted(found, key=_key_of, reverse=is_down)[:count]

    def _matching(self, rows: QuerySet[Any], count: int) -> list[Any]:
        """Return the first rows that pass the row filter.

        If some do not pass, the whole chunk is filtered: otherwise the end of a page would reveal how many dropped out.
        """
        found = list(rows[:count])
        keys = self._filtered([row.pk for row in found])
        if len(keys) == len(found):
            return found
        if len(found) == count:
            keys = self._filtered(list(rows.values_list("pk", flat=True)))
        return list(rows.filter(self._with_keys(keys))[:count])

    def _filtered(self, keys: list[Key]) -> list[Key]:
        if self.row_filter is None or not keys:
            return keys
        left = set(self.row_filter(self._all_rows.filter(self._with_keys(keys))))
        return [key for key in keys if key in left]

    # Chunks of the scope.

    def _chunks(self, start: Key | None, sizes: tuple[int, ...], *, is_down: bool) -> Iterator[Chunk]:
        if self.rows.query.is_empty():
            yield Chunk((), None)
            return
        if self._index_keys is not None:
            yield from self._index_chunks(self._index_keys, start, len(sizes) > 1, is_down=is_down)
            return
        for size in sizes:
            end = self._chunk_end(start, size, is_down=is_down)
            yield Chunk(self._parts(start, end, size, is_down=is_down), end)
            if end is None:
                return
            start = end

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
            rows = self._all_rows.filter(index_range.rows).order_by(*index_range.order)
            keys.update(rows.values_list("pk", flat=True)[: MAX_INDEX_ROWS + 1])
            if len(keys) > MAX_INDEX_ROWS:
                return None
        return sorted(keys)

    def _chunk_end(self, start: Key | None, size: int, *, is_down: bool) -> Key | None:
        """Return the id of the last of the next ``size`` rows of the scope; None if there are fewer."""
        ends: list[Key] = []
        for partition in self.scope.partitions or (Q(),):
            ends += self._next_keys(start, partition, is_down=is_down)[
                self._partition_size(size) - 1 : self._partition_size(size)
            ]
        return (max if is_down else min)(ends, default=None)

    def _parts(self, start: Key | None, end: Key | None, size: int, *, is_down: bool) -> tuple[Q, ...]:
        between = self._between(start, end, is_down=is_down)
        nexts = [
            self._next_keys(start, partition, is_down=is_down)[: self._partition_size(size)]
            for partition in self.scope.partitions
        ]
        return tuple(between & Q(InSubquery(F("pk"), Subquery(keys))) for keys in nexts) or (between,)

    def _next_keys(self, start: Key | None, partition: Q, *, is_down: bool) -> QuerySet[Any, Any]:
        """Return the keys of one partition from ``start`` on."""
        rows = self._all_rows.filter(self._between(start, None, is_down=is_down), partition)
        return rows.order_by("-pk" if is_down else "pk").values_list("pk", flat=True)

    def _partition_size(self, size: int) -> int:
        """Return how many rows of one partition a chunk has."""
        return size // _PARTITION_DIVISOR if self.scope.partitions else size

    def _between(self, start: Key | None, end: Key | None, *, is_down: bool) -> Q:
        """Return the condition for rows after ``start`` up to and including ``end``, or up to the bound."""
        low, high = self.bounds.low, self.bounds.high
        rows = Q()
        if is_down:
            rows &= Q(pk__lte=high) if high and (start is None or start > high) else Q(pk__lt=start) if start else Q()
            return rows & (Q(pk__gte=end) if end else Q(pk__gte=low) if low else Q())
        rows &= Q(pk__gte=low) if low and (start is None or start < low) else Q(pk__gt=start) if start else Q()
        return rows & (Q(pk__lte=end) if end else Q(pk__lte=high) if high else Q())

    def _with_keys(self, keys: list[Key]) -> Q:
        connection = connections[self.rows.db]
        return Q(AnyOf(json_array(encode_pk(keys, connection), connection)))

    @property
    def _all_rows(self) -> QuerySet[Any]:
        every: QuerySet[Any] = self.rows.model._default_manager.using(self.rows.db)
        return every


def _key_of(row: Any) -> Key:
    return row.pk
