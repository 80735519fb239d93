"""The clock of the database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql import Query

from ..core.clock import aware
from .now import Now
from .statements import Statement

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def select_values(alias: str, **expressions: Any) -> Sequence[Any]:
    """Return the values of expressions that need no table, in one statement."""
    query = Query(None)  # as Django's constraints do
    for name, expression in expressions.items():
        query.add_annotation(expression, name)
    values: Sequence[Any] = next(iter(query.get_compiler(using=alias).results_iter()))
    return values


def database_now(alias: str) -> datetime:
    """Return the clock of the database, in one statement."""
    now: datetime = select_values(alias, now=Now())[0]
    return aware(now)


def as_stored(column: Statement, connection: BaseDatabaseWrapper) -> Statement:
    """Return SQL for a time, for :func:`read_stored`. On PostgreSQL it is a number, which Python reads fastest."""
    if connection.vendor != "postgresql":
        return column
    return Statement(f"CAST(extract(epoch FROM {column.sql}) * 1000000 AS bigint)")


def read_stored(value: int | datetime, connection: BaseDatabaseWrapper) -> datetime:
    """Return an aware time from microseconds since 1970, or from the naive time that SQLite stores."""
    if isinstance(value, int):
        return _EPOCH + timedelta(microseconds=value)
    return value.replace(tzinfo=connection.timezone)
