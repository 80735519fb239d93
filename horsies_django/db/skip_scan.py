"""The query for the distinct values of an indexed column that reads one row for each value, not all rows."""

from __future__ import annotations

from typing import Any, Final

from django.db import models

from .expressions import BoundParam, OuterColumn, Param
from .statements import Statement

#: The queue at which the skip scan stands.
NAME: Final = OuterColumn("names.name", models.CharField())


def skip_scan(rows: models.QuerySet[Any], column: str, limit: int, after: Param | str | None = None) -> Statement:
    """Return ``names (name, place) AS …``: the first ``limit`` values of a column by which an index orders the rows.

    If there are fewer, the last one is NULL. ``after`` is the name after which the scan begins.
    """
    ordered = rows.order_by(column).values_list(column)
    begin = BoundParam(after, rows.model._meta.get_field(column)) if isinstance(after, Param) else after
    return Statement.compose(
        "names (name, place) AS (SELECT ({first}), 1 UNION ALL SELECT ({following}), names.place + 1 FROM names"
        " WHERE names.name IS NOT NULL AND names.place < {limit})",
        first=Statement.part((ordered if begin is None else ordered.filter(**{f"{column}__gt": begin}))[:1]),
        following=Statement.part(ordered.filter(**{f"{column}__gt": NAME})[:1]),
        limit=limit,
    )


def distinct(rows: models.QuerySet[Any], column: str, limit: int, after: str | None = None) -> Statement:
    """Return the query for these values."""
    names = skip_scan(rows, column, limit, after)
    return Statement.compose("WITH RECURSIVE {names} SELECT name FROM names WHERE name IS NOT NULL", names=names)
