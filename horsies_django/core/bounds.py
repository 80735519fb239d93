"""The bounds of columns, so that Python, the database and the admin can read every value.

PostgreSQL stores times from 4713 BC to 294276 and infinite times; Python's times end at the years 1 and 9999, in UTC
and in every time zone that a page shows. Rows outside the bounds can't be sent or stored. An existing one (written
before the constraint existed, or after it was dropped) ends FAILED: see ``models/unreadable.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import and_, or_
from typing import Any, Final, cast

from django.db.models import Case, DateTimeField, Expression, F, Field, Model, Q, QuerySet, Value, When

from .option_parsers import LONGEST_DURATION

logger = logging.getLogger("horsies_django")

#: The first and the last time that a call, a workflow or a schedule may use.
EARLIEST: Final = datetime(1900, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(9998, 1, 1, tzinfo=UTC)
DATES_ALLOWED: Final = "a time from 1900 to 9997 (UTC)"

Range = tuple[Any, Any]

#: The bounded columns of a table: its dates, and its numbers with their ranges.
Bounds = tuple[Collection[str], Mapping[str, Range]]

#: The maximum of a time limit, in seconds.
LONGEST_TIMEOUT: Final = LONGEST_DURATION

#: The ranges of columns for time limits (seconds) and retention.
TIMEOUT: Final[Range] = (0.0, float(LONGEST_TIMEOUT))
RETENTION: Final[Range] = (timedelta(), timedelta(seconds=LONGEST_DURATION))

#: The years that rows may have in any time zone: one wider on each side than EARLIEST and LATEST.
_FIRST_YEAR: Final = 1899
_LAST_YEAR: Final = 9998


def is_in_range(moment: datetime) -> bool:
    """Whether a row may hold an aware time."""
    try:
        return EARLIEST <= moment.astimezone(UTC) < LATEST
    except OverflowError:
        return False


def bounds_of_dates() -> tuple[datetime, datetime]:
    """Return the first time that a row may hold, and the first after the last one."""
    return datetime(_FIRST_YEAR, 1, 1, tzinfo=UTC), datetime(_LAST_YEAR + 1, 1, 1, tzinfo=UTC)


def in_range(dates: Collection[str], numbers: Mapping[str, Range] | None = None) -> Q:
    """Return the condition of a check constraint: these columns are in range or NULL.

    In a query, NULL does not satisfy it; see :func:`out_of_range`.
    """
    parts = [Q(**{f"{name}__year__gte": _FIRST_YEAR, f"{name}__year__lte": _LAST_YEAR}) for name in dates]
    parts += [Q(**{f"{name}__gte": low, f"{name}__lte": high}) for name, (low, high) in (numbers or {}).items()]
    return reduce(and_, parts)


def out_of_range(dates: Collection[str], numbers: Mapping[str, Range] | None = None) -> Q:
    """Return the condition that one of these columns is out of range. NaN and texts compare above any number."""
    parts = [Q(**{f"{name}__year__lt": _FIRST_YEAR}) | Q(**{f"{name}__year__gt": _LAST_YEAR}) for name in dates]
    parts += [Q(**{f"{name}__lt": low}) | Q(**{f"{name}__gt": high}) for name, (low, high) in (numbers or {}).items()]
    return reduce(or_, parts)


def date_if_within(name: str) -> Case:
    """Return a column's time, or NULL if Python can't read it."""
    return Case(When(in_range([name]), then=F(name)), output_field=DateTimeField())


def clamp(field: Field[Any, Any], numbers: Mapping[str, Range] | None = None) -> Expression | None:
    """Return the expression that clamps a column to its range; None if the column has no range."""
    if isinstance(field, DateTimeField):
        low, high = EARLIEST, LATEST
        below, above = Q(**{f"{field.name}__year__lt": _FIRST_YEAR}), Q(**{f"{field.name}__year__gt": _LAST_YEAR})
    elif numbers and field.name in numbers:
        low, high = numbers[field.name]
        below, above = Q(**{f"{field.name}__lt": low}), Q(**{f"{field.name}__gt": high})
    else:
        return None
    cases = [When(below, then=Value(low, field)), When(above, then=Value(high, field))]
    return Case(*cases, default=F(field.name), output_field=field)


def readable_values(model: type[Model], bounds: Bounds) -> dict[str, Expression]:
    """Return readable values by column. A value out of range becomes NULL, or the nearest bound if NOT NULL."""
    dates, numbers = bounds
    values: dict[str, Expression] = {}
    for name in (*dates, *numbers):
        field = cast("Field[Any, Any]", model._meta.get_field(name))
        is_within = in_range([name]) if name in dates else in_range((), {name: numbers[name]})
        nearest = None if field.null else clamp(field, numbers)
        values[name] = nearest or Case(When(is_within, then=F(name)), output_field=field)
    return values


def bring_into_range(rows: QuerySet[Any], bounds: Bounds) -> list[Any]:
    """Store the readable values of rows that are out of range; return the keys of these rows.

    Otherwise any UPDATE of them would fail: a check constraint also applies to changes of older rows.
    """
    keys = list(rows.filter(out_of_range(*bounds)).values_list("pk", flat=True))
    if keys:
        rows.filter(pk__in=keys).update(**readable_values(rows.model, bounds))
        logger.warning("values out of range clamped model=%s ids=%s", rows.model._meta.label, keys)
    return keys
