"""The query for the distinct values of an indexed column that reads one row for each value, not all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.db import connections, models

from .expressions import BoundParam, OuterColumn, Param
from .statements import JSON, Statement

#: The value at which the skip scan stands.
NAME: Final = OuterColumn("names.name", models.CharField())


def skip_scan(
    rows: models.QuerySet[Any], column: str, limit: int, after: Param | str | None = None, also: Sequence[str] = ()
) -> Statement:
    """Return ``names (name, place) AS …``: the first ``limit`` values of a column by which an index orders the rows.

    If there are fewer, the last one is NULL. ``after`` is the name after which the scan begins. With further columns,
    each name is a JSON array of the value and of those of its first row, in the order of ``rows``.
    """
    ordered = rows.order_by(column, *rows.query.order_by if also else ()).values_list(column, *also)
    begin = BoundParam(after, rows.model._meta.get_field(column)) if isinstance(after, Param) else after
    first = ordered if begin is None else ordered.filter(**{f"{column}__gt": begin})
    following = ordered.filter(**{f"{column}__gt": first_of_name(rows.db) if also else NAME})
    return Statement.compose(
        "names (name, place) AS (SELECT ({first}), 1 UNION ALL SELECT ({following}), names.place + 1 FROM names"
        " WHERE names.name IS NOT NULL AND names.place < {limit})",
        first=_first(first[:1], (column, *also) if also else ()),
        following=_first(following[:1], (column, *also) if also else ()),
        limit=limit,
    )


def first_of_name(alias: str) -> OuterColumn:
    """Return the column's part of a name that has further columns."""
    return OuterColumn(JSON[connections[alias].vendor].first.format("names.name"), models.CharField())


def _first(rows: models.QuerySet[Any], columns: Sequence[str]) -> Statement:
    if not columns:
        return Statement.part(rows)
    values = JSON[connections[rows.db].vendor].values
    return Statement.compose(
        "SELECT {values}({columns}) FROM ({rows}) AS first",
        values=values,
        columns=", ".join(columns),
        rows=Statement.part(rows),
    )


def distinct(rows: models.QuerySet[Any], column: str, limit: int, after: str | None = None) -> Statement:
    """Return the query for these values."""
    names = skip_scan(rows, column, limit, after)
    return Statement.compose("WITH RECURSIVE {names} SELECT name FROM names WHERE name IS NOT NULL", names=names)
