"""The clock of the database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models.sql import Query

from ..core.clock import aware
from .now import Now


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
