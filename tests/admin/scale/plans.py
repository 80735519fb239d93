"""Record the statements of a page, and check their plans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection

#: A table with more rows than BIG is big. A search for the end of an id, which no index finds, scans the newest SCANNED
#: rows: all of a table that has fewer.
BIG, SCANNED = 20_000, 50_000

#: How many rows a statement may read, however few it returns. Some read the rows of a scan twice, first their keys.
READ = 120_000


class Statements(list[tuple[str, Any]]):
    """Records the statements that are executed, with their parameters."""

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if not sql.startswith(("SAVEPOINT", "RELEASE", "ROLLBACK", "SET LOCAL")):  # these are the test's own
            self.append((sql, params))
        return execute(sql, params, many, context)


@contextmanager
def statements() -> Iterator[Statements]:
    """Record the statements that are executed within the context."""
    recorded = Statements()
    with connection.execute_wrapper(recorded):
        yield recorded


def big_tables(than: int = BIG) -> set[str]:
    """Return the names of the tables with more rows than that."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND reltuples > %s", [than])
        return {name for (name,) in cursor.fetchall()}


def problems(recorded: Statements, big: set[str]) -> Iterator[str]:
    """Yield what is wrong with the plans of the reading statements."""
    for sql, params in recorded:
        if not sql.lstrip(" (").upper().startswith(("SELECT", "WITH")):
            continue
        if not any(table in sql for table in big):
            continue
        scans = list(_scans(_plan(sql, params)))
        scanned = {scan["Relation Name"] for scan in scans if "Seq Scan" in scan["Node Type"]} & big
        if scanned:
            yield f"sequential scan of {', '.join(sorted(scanned))}: {_rendered(sql, params)}"
        read = sum(map(_rows_read, scans))
        if read > READ:
            yield f"{read:,} rows read: {_rendered(sql, params)}"


def _plan(sql: str, params: Any) -> dict[str, Any]:
    """Return the plan of a server whose disks read pages in any order, as is recommended for SSDs.

    At the default cost it prefers to scan the nodes of all workflows, a tenth of a million, to a thousand index reads.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET random_page_cost = 1.1")
        cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {sql}", params)
        (plan,) = cursor.fetchone()
        cursor.execute("RESET random_page_cost")
    entries = json.loads(plan) if isinstance(plan, str) else plan
    return dict(entries[0]["Plan"])


def _scans(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "Relation Name" in node:
        yield node
    for child in node.get("Plans", ()):
        yield from _scans(child)


def _rows_read(scan: dict[str, Any]) -> float:
    removed = scan.get("Rows Removed by Filter", 0) + scan.get("Rows Removed by Index Recheck", 0)
    return float((scan["Actual Rows"] + removed) * scan["Actual Loops"])


def _rendered(sql: str, params: Any) -> str:
    return " ".join(connection.ops.compose_sql(sql, params).split())[-400:]
