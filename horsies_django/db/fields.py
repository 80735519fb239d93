"""Fields for times, durations and JSON that are readable whatever the database stores.

PostgreSQL stores years before 1 and after 9999, infinite times, durations of a million years and numbers of 100,000
digits. On each of them the driver or Python raises, and so fails every row of the query. Migrations contain Django's
own fields, because the columns are the same.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import DatabaseDefault
from django.db.models.sql.compiler import SQLCompiler

from ..core.bounds import RETENTION, Range, bounds_of_dates
from .now import Now, is_moved

__all__ = ["DateTimeField", "DurationField", "JSONField", "strings_in"]


class _DjangoNamed(models.Field):  # type: ignore[type-arg]  # generic in the stubs only
    """A field that deconstructs to Django's own in a migration."""

    def deconstruct(self) -> Any:
        """Deconstruct as Django's field."""
        name, _, args, kwargs = super().deconstruct()
        return name, f"django.db.models.{self.get_internal_type()}", args, kwargs


class _Bounded(_DjangoNamed):
    """A column whose values out of bounds are read as NULL, or as the nearest bound if it is never NULL.

    This affects only selected values, not conditions, subqueries and writes.
    """

    @property
    def bounds(self) -> Range:
        """The least and the greatest value that is read unchanged."""
        raise NotImplementedError

    def select_format(self, compiler: SQLCompiler, sql: str, params: Any) -> tuple[str, tuple[Any, ...]]:
        """Wrap the column in SQL that replaces values out of bounds."""
        if compiler.query.subquery:
            return sql, params
        low, high = (self.get_db_prep_value(bound, compiler.connection) for bound in self.bounds)
        if self.null:
            return f"CASE WHEN {sql} BETWEEN %s AND %s THEN {sql} END", (*params, low, high, *params)
        either = f"CASE WHEN {sql} < %s THEN %s WHEN {sql} > %s THEN %s ELSE {sql} END"
        return either, (*params, low, low, *params, high, high, *params)


class _Time(_Bounded, models.DateTimeField):  # type: ignore[type-arg]  # generic in the stubs only
    """A time that every time zone can show."""

    @property
    def bounds(self) -> Range:
        """Return the bounds of the check constraints."""
        first, end = bounds_of_dates()
        return first, end - timedelta(microseconds=1)

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        """Return the value to save; if a test has moved the clock, not the database's default."""
        value = super().pre_save(model_instance, add)
        is_default = isinstance(value, DatabaseDefault) and isinstance(self.db_default, Now)
        return Now() if is_default and is_moved() else value


class _Duration(_Bounded, models.DurationField):  # type: ignore[type-arg]  # generic in the stubs only
    """A duration that can be added to the current time."""

    @property
    def bounds(self) -> Range:
        """Return the bounds of the check constraints."""
        return RETENTION


class _Json(_DjangoNamed, models.JSONField):
    """A JSON value; one that Python can't parse is read as text."""

    def from_db_value(self, value: Any, expression: Any, connection: BaseDatabaseWrapper) -> Any:
        """Return the text if it is valid JSON with more digits or levels than Python parses."""
        try:
            return super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError):
            return value


if TYPE_CHECKING:  # the stubs' plugin knows Django's fields only
    from django.db.models import DateTimeField, DurationField, JSONField
else:
    DateTimeField, DurationField, JSONField = _Time, _Duration, _Json


def strings_in(stored: Any) -> list[str]:
    """Return the strings of a stored list; an empty list if the value is no list."""
    return [text for text in stored if isinstance(text, str)] if isinstance(stored, list) else []
