"""A column of JSON that is read with lists of rows."""

from __future__ import annotations

from typing import Any

from django.db import models


class LenientJSONField(models.JSONField):
    """Reads JSON that Python can't, too deep or with a number too long, as None: one such row would stop a whole list.

    To migrations it is a plain JSONField.
    """

    def deconstruct(self) -> tuple[str, str, Any, Any]:
        """See Django's own."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """See Django's own."""
        try:
            return super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError):
            return None


def texts_in(stored: Any) -> list[str]:
    """Return the texts of a stored list; nothing where the row was damaged."""
    return [text for text in stored if isinstance(text, str)] if isinstance(stored, list) else []
