"""Moments: the database's now, and times of rows as Python compares them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, overload

from django.conf import settings
from django.db.models.functions import Now
from django.db.models.sql import Query


def project_timezone() -> str:
    """Return the time zone that a schedule has unless it says otherwise: the project's."""
    return settings.TIME_ZONE or "UTC"


def asked(alias: str, **expressions: Any) -> Sequence[Any]:
    """Return what expressions come to that belong to no table, in one statement."""
    query = Query(None)  # as Django's own constraints ask
    for name, expression in expressions.items():
        query.add_annotation(expression, name)
    found: Sequence[Any] = next(iter(query.get_compiler(using=alias).results_iter()))
    return found


def database_now(alias: str) -> datetime:
    """Return the clock of the database, in one statement."""
    now: datetime = asked(alias, now=Now())[0]
    return aware(now)


@overload
def aware(moment: datetime) -> datetime: ...
@overload
def aware(moment: None) -> None: ...
def aware(moment: datetime | None) -> datetime | None:
    """Return a column's time in UTC: without USE_TZ, columns are naive and taken for that."""
    if moment is None:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


@overload
def stored(moment: datetime) -> datetime: ...
@overload
def stored(moment: None) -> None: ...
def stored(moment: datetime | None) -> datetime | None:
    """Return a moment as a column takes it."""
    if moment is None or settings.USE_TZ:
        return moment
    return moment.astimezone(UTC).replace(tzinfo=None)
