"""Run many small queries in one statement."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.db import connections
from django.db.models import BooleanField, Expression, ExpressionWrapper, FloatField, Q, QuerySet

from .statements import JSON, Statement


def run_queries(database: str, parts: Mapping[str, Statement]) -> dict[str, Any]:
    """Run queries that each return one value, in one statement. Return the values by name."""
    columns = ", ".join(f"({part.sql})" for part in parts.values())
    params = [param for part in parts.values() for param in part.params]
    with connections[database].cursor() as cursor:
        cursor.execute(f"SELECT {columns}", params)
        return dict(zip(parts, cursor.fetchone(), strict=True))


def count_query(rows: QuerySet[Any], limit: int, **conditions: Q) -> Statement:
    """Return a query that counts up to ``limit`` rows, and those that meet each condition, as a JSON array."""
    json_of = JSON[connections[rows.db].vendor]
    flags = {f"is_{name}": ExpressionWrapper(condition, BooleanField()) for name, condition in conditions.items()}
    inner = Statement.select(rows.annotate(**flags).values_list("pk", *flags)[:limit])
    sums = "".join(f", COUNT(CASE WHEN counted.{flag} THEN 1 END)" for flag in flags)
    return Statement(f"SELECT {json_of.values}(COUNT(*){sums}) FROM ({inner.sql}) AS counted", inner.params)  # noqa: S608  # compiled by the ORM


def grouped_count_query(rows: QuerySet[Any], column: str, limit: int, **conditions: Q) -> Statement:
    """Return a query like :func:`count_query` for each value of a column: a JSON array of ``[value, *counts]``."""
    json_of = JSON[connections[rows.db].vendor]
    flags = {f"is_{name}": ExpressionWrapper(condition, BooleanField()) for name, condition in conditions.items()}
    inner = Statement.select(rows.annotate(**flags).values_list(column, *flags)[:limit])
    sums = "".join(f", COUNT(CASE WHEN counted.{flag} THEN 1 END) AS {flag}" for flag in flags)
    names = "".join(f", grouped.{flag}" for flag in flags)
    return Statement(
        f"SELECT {json_of.rows}({json_of.values}(grouped.{column}, grouped.number{names})) FROM"  # noqa: S608  # compiled by the ORM
        f" (SELECT counted.{column}, COUNT(*) AS number{sums} FROM ({inner.sql}) AS counted"
        f" GROUP BY counted.{column}) AS grouped",
        inner.params,
    )


def scalar(expression: Expression, rows: QuerySet[Any]) -> Statement:
    """Return a query for the value of an expression that needs no row; ``rows`` only name the database."""
    sql, params = rows.query.get_compiler(rows.db).compile(expression)
    return Statement(f"SELECT {sql}", tuple(params))


def rows_query(rows: QuerySet[Any], columns: Mapping[str, Any], database: str) -> Statement:
    """Return a query for a JSON array of arrays with some columns of ``rows``, each an expression by its name.

    Infinite numbers and NaN become null, because JSON has no such numbers.
    """
    json_of = JSON[connections[database].vendor]
    annotated = rows.annotate(**{f"c_{name}": column for name, column in columns.items()})
    inner = Statement.select(annotated.values_list(*(f"c_{name}" for name in columns)))
    floats = {name for name in columns if isinstance(annotated.query.annotations[f"c_{name}"].output_field, FloatField)}
    names = ", ".join(
        f"CASE WHEN abs(listed.c_{name}) < 1e300 THEN listed.c_{name} END" if name in floats else f"listed.c_{name}"
        for name in columns
    )
    return Statement(f"SELECT {json_of.rows}({json_of.values}({names})) FROM ({inner.sql}) AS listed", inner.params)  # noqa: S608  # compiled by the ORM


def decode_rows(listed: Any) -> list[Any]:
    """Decode the answer of :func:`rows_query`, :func:`count_query` or :func:`grouped_count_query`."""
    return (json.loads(listed) if isinstance(listed, str | bytes) else listed) or []
