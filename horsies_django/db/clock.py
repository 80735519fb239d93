"""The clock of the database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db.models.sql import Query

from ..core.clock import aware
from .now import Now

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def select_values(alias: str, **expressions: Any) -> Sequence[Any]:
    """Return the values of expressions that need no table, in one statement."""
    query = Query(None)  # as Django's constraints do
    for name, expression in expressions.items():
        query.add_annotation(expression, name)
    found: Sequence[Any] = next(iter(query.get_compiler(using=alias).results_iter()))
    return found


def of_microseconds(microseconds: int) -> datetime:
    """Return a time that is given in microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=microseconds)


def database_now(alias: str) -> datetime:
    """Return the clock of the database, in one statement."""
    now: datetime = select_values(alias, now=Now())[0]
    return aware(now)
