"""Record the statements of a page, and check their plans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection

#: A table with more rows than that is big.
BIG = 20_000

#: How many rows a statement may read, however few it returns: a search scans the newest 100,000 tasks.
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


def big_tables() -> set[str]:
    """Return the names of the big tables."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND reltuples > %s", [BIG])
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
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {sql}", params)
        (plan,) = cursor.fetchone()
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
    with connection.cursor() as cursor:
        rendered = connection.ops.last_executed_query(cursor, sql, params)
    return " ".join(str(rendered or (sql, params)).split())[-400:]
