"""Samples the database of a peer during a measure, and writes the samples to CSV files."""

from __future__ import annotations

import csv
import re
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

_STATE: Final = """
    SELECT (SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = current_database()),
        (SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND state = 'idle in transaction' AND backend_xmin IS NOT NULL),
        coalesce(max(n_dead_tup), 0), coalesce(max(n_tup_del), 0), sum(pg_table_size(relid))::bigint,
        sum(pg_indexes_size(relid))::bigint
    FROM pg_stat_user_tables
"""
_STATEMENTS: Final = """
    SELECT query, sum(calls)::bigint, sum(shared_blks_hit + shared_blks_read)::bigint FROM pg_stat_statements
    WHERE toplevel AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND query !~ 'pg_(stat|class)' GROUP BY query
"""


class Calls(NamedTuple):
    """How often a statement was called, and the buffers that it read, from memory or from the disk."""

    number: int = 0
    buffers: int = 0

    @property
    def buffers_per_call(self) -> float:
        """Return the mean; 0 without calls."""
        return self.buffers / self.number if self.number else 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of a database.

    ``buffers`` and ``statements`` count from its creation. ``snapshots`` are those of idle transactions. ``dead_rows``
    and ``deleted_rows`` are those of the table that has most.
    """

    at: float
    statements: Mapping[str, Calls]
    buffers: int
    snapshots: int
    dead_rows: int
    deleted_rows: int
    table_bytes: int
    index_bytes: int

    def statements_since(self, earlier: Sample) -> dict[str, Calls]:
        """Return the calls of each statement since an earlier sample."""
        found = {}
        for query, now in self.statements.items():
            before = earlier.statements.get(query, Calls())
            if now.number > before.number:
                found[query] = Calls(now.number - before.number, now.buffers - before.buffers)
        return found

    def buffers_per_call(self, earlier: Sample, pattern: re.Pattern[str]) -> float | None:
        """Return the buffers of a call since an earlier sample: of the statements that match, that with most calls."""
        matching = [calls for query, calls in self.statements_since(earlier).items() if pattern.match(query)]
        return max(matching).buffers_per_call if matching else None


class Samples(list[Sample]):
    """Samples in order of time."""

    def __init__(self, connection: psycopg.Connection) -> None:
        super().__init__()
        self._connection = connection
        # A server that has not loaded the extension counts no statements.
        self._statements = "SELECT '', 0, 0 WHERE false"
        with suppress(psycopg.Error):
            connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            connection.execute("SELECT FROM pg_stat_statements LIMIT 1")
            self._statements = _STATEMENTS

    def take(self) -> None:
        """Add a sample."""
        state: Any = self._connection.execute(_STATE).fetchone()
        rows: Iterable[Any] = self._connection.execute(self._statements)
        self.append(Sample(time.monotonic(), {query: Calls(*counts) for query, *counts in rows}, *state))

    def at(self, moment: float) -> Sample:
        """Return the last sample until then, or else the first."""
        return self[max(0, bisect_right(self, moment, key=lambda sample: sample.at) - 1)]

    def write_statements(self, path: Path, phases: Mapping[str, tuple[float, float]]) -> None:
        """Write the buffers of a call of each statement, in each phase and in the interval with the most."""
        by_phase = [self.at(end).statements_since(self.at(start)) for start, end in phases.values()]
        intervals = [later.statements_since(earlier) for earlier, later in pairwise(self)]
        rows: list[list[Any]] = []
        for query, calls in self[-1].statements_since(self[0]).items():
            per_call = [found.get(query, Calls()).buffers_per_call for found in (*by_phase, *intervals)]
            shown = [*per_call[: len(phases)], max(per_call[len(phases) :])]
            rows.append([calls.number, calls.buffers, *(round(each, 1) for each in shown), " ".join(query.split())])
        rows.sort(key=lambda row: row[1], reverse=True)
        head = ["calls", "buffers", *(f"{phase}, buffers/call" for phase in phases), "most buffers/call", "statement"]
        write_csv(path, head, rows)


def write_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a file with a line of names above the rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
