"""Asking many small things in one statement."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from django.db import connections
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet

from ..models.statements import Statement

#: What makes an array of rows, and what one of columns, by the database's vendor.
_ARRAYS: Final = {
    "postgresql": ("json_agg", "json_build_array"),
    "sqlite": ("json_group_array", "json_array"),
    "mysql": ("JSON_ARRAYAGG", "JSON_ARRAY"),
}


def ask(database: str, parts: Mapping[str, Statement]) -> dict[str, Any]:
    """Ask for one value each, in one statement."""
    columns = ", ".join(f"({part.sql})" for part in parts.values())
    params = [param for part in parts.values() for param in part.params]
    with connections[database].cursor() as cursor:
        cursor.execute(f"SELECT {columns}", params)
        return dict(zip(parts, cursor.fetchone(), strict=True))


def counting(rows: QuerySet[Any], limit: int, condition: Q | None = None) -> Statement:
    """Count ``rows``, no more than ``limit`` of them; with a condition, those of these first that meet it."""
    if condition is None:
        inner = Statement.select(rows.values_list("pk")[:limit])
        return Statement(f"SELECT COUNT(*) FROM ({inner.sql}) AS counted", inner.params)  # noqa: S608  # the ORM's
    is_met = ExpressionWrapper(condition, BooleanField())
    inner = Statement.select(rows.annotate(is_met=is_met).values_list("is_met")[:limit])
    sql = f"SELECT COUNT(*) FROM ({inner.sql}) AS counted WHERE counted.is_met"  # noqa: S608  # the ORM's
    return Statement(sql, inner.params)


def listing(rows: QuerySet[Any], columns: Mapping[str, Any], database: str) -> Statement:
    """Make a JSON array of arrays of some columns of ``rows``, each an expression by its name."""
    array_of, each = _ARRAYS[connections[database].vendor]
    inner = Statement.select(
        rows.annotate(**{f"c_{name}": column for name, column in columns.items()}).values_list(
            *(f"c_{name}" for name in columns)
        )
    )
    names = ", ".join(f"listed.c_{name}" for name in columns)
    return Statement(f"SELECT {array_of}({each}({names})) FROM ({inner.sql}) AS listed", inner.params)  # noqa: S608


def read(listed: Any) -> list[list[Any]]:
    """Return what a :func:`listing` has listed."""
    return (json.loads(listed) if isinstance(listed, str | bytes) else listed) or []
