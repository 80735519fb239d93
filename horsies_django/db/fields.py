"""Columns that can be read whatever the database keeps in them: times, durations and JSON.

PostgreSQL keeps years before 1 and after 9999, infinite times, durations of a million years and numbers of 100,000
digits. The driver, or Python, raises on each of them, and so on every row that is read with it. A migration has the
fields of Django: the columns are the same.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql.compiler import SQLCompiler

from ..core.bounds import RETENTION, Range, bounds_of_dates

__all__ = ["DateTimeField", "DurationField", "JSONField", "strings_in"]


class _DjangoNamed(models.Field):  # type: ignore[type-arg]  # generic in the stubs only
    """A field that a migration has as Django's."""

    def deconstruct(self) -> Any:
        """As the field of Django that it is."""
        name, _, args, kwargs = super().deconstruct()
        return name, f"django.db.models.{self.get_internal_type()}", args, kwargs


class _Bounded(_DjangoNamed):
    """A column that is read as NULL where it is out of its bounds, or as the nearest bound if it is never NULL.

    Only what leaves the database is: conditions, subqueries and what is written know nothing of that.
    """

    @property
    def bounds(self) -> Range:
        """The least and the greatest value that is read as it is."""
        raise NotImplementedError

    def select_format(self, compiler: SQLCompiler, sql: str, params: Any) -> tuple[str, tuple[Any, ...]]:
        """Let no value out that is out of bounds."""
        if compiler.query.subquery:
            return sql, params
        low, high = (self.get_db_prep_value(bound, compiler.connection) for bound in self.bounds)
        if self.null:
            return f"CASE WHEN {sql} BETWEEN %s AND %s THEN {sql} END", (*params, low, high, *params)
        either = f"CASE WHEN {sql} < %s THEN %s WHEN {sql} > %s THEN %s ELSE {sql} END"
        return either, (*params, low, low, *params, high, high, *params)


class _Time(_Bounded, models.DateTimeField):  # type: ignore[type-arg]  # generic in the stubs only
    """A time, as any time zone can show it."""

    @property
    def bounds(self) -> Range:
        """As the check constraints have them."""
        first, end = (moment if settings.USE_TZ else moment.replace(tzinfo=None) for moment in bounds_of_dates())
        return first, end - timedelta(microseconds=1)


class _Duration(_Bounded, models.DurationField):  # type: ignore[type-arg]  # generic in the stubs only
    """A duration that can be added to the time of day."""

    @property
    def bounds(self) -> Range:
        """As the check constraints have them."""
        return RETENTION


class _Json(_DjangoNamed, models.JSONField):
    """A JSON value; one that Python can't take apart is read as the text that it is."""

    def from_db_value(self, value: Any, expression: Any, connection: BaseDatabaseWrapper) -> Any:
        """A number of more digits, or a nesting of more levels, than Python takes is valid JSON all the same."""
        try:
            return super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError):
            return value


if TYPE_CHECKING:  # to the stubs' plugin they are what they stand for
    from django.db.models import DateTimeField, DurationField, JSONField
else:
    DateTimeField, DurationField, JSONField = _Time, _Duration, _Json


def strings_in(stored: Any) -> list[str]:
    """Return the texts of a stored list; nothing where the row was damaged."""
    return [text for text in stored if isinstance(text, str)] if isinstance(stored, list) else []
