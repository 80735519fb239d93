"""Fields that deconstruct to Django's own in a migration: the columns are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import DatabaseDefault

from .now import Now, is_moved

__all__ = ["DateTimeField", "JSONField", "indexes_in", "strings_in"]


class _DjangoNamed(models.Field):  # type: ignore[type-arg]  # generic in the stubs only
    """A field that deconstructs to Django's own in a migration."""

    def deconstruct(self) -> Any:
        """Deconstruct as Django's field."""
        name, _, args, kwargs = super().deconstruct()
        return name, f"django.db.models.{self.get_internal_type()}", args, kwargs


class _Time(_DjangoNamed, models.DateTimeField):  # type: ignore[type-arg]  # generic in the stubs only
    """A time whose default is the clock that a test may move."""

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        """Return the value to save; if a test has moved the clock, not the database's default."""
        value = super().pre_save(model_instance, add)
        is_default = isinstance(value, DatabaseDefault) and isinstance(self.db_default, Now)
        return Now() if is_default and is_moved() else value


class _Json(_DjangoNamed, models.JSONField):
    """A JSON value; one that Python can't parse is read as text."""

    def from_db_value(self, value: Any, expression: Any, connection: BaseDatabaseWrapper) -> Any:
        """Return the text if it is valid JSON with more digits or levels than Python parses."""
        try:
            return super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError):
            return value


if TYPE_CHECKING:  # the stubs' plugin knows Django's fields only
    from django.db.models import DateTimeField, JSONField
else:
    DateTimeField, JSONField = _Time, _Json


def strings_in(stored: Any) -> list[str]:
    """Return the strings of a stored list; an empty list if the value is no list."""
    return [text for text in stored if isinstance(text, str)] if isinstance(stored, list) else []


def indexes_in(stored: Any) -> list[int]:
    """Return the indexes in a stored list; an empty list if the value is no list."""
    return [index for index in stored if type(index) is int and 0 <= index < 2**31] if isinstance(stored, list) else []
