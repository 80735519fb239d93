"""Fill a table with INSERT … SELECT; columns that are not given get their defaults."""

from __future__ import annotations

from django.db import connections, models
from django.db.models import NOT_PROVIDED


def fill(database: str, model: type[models.Model], source: str, **columns: str) -> int:
    """Insert one row for each row of ``source``, and return their number. ``columns`` are SQL expressions over it."""
    connection = connections[database]
    values: dict[str, str] = {}
    params = []
    for field in model._meta.local_concrete_fields:
        if field.column in columns:
            values[field.column] = columns.pop(field.column).replace("%", "%%")
        elif not (field.null or field.primary_key or getattr(field, "db_default", NOT_PROVIDED) is not NOT_PROVIDED):
            values[field.column] = "%s"
            params.append(field.get_db_prep_save(field.get_default(), connection))
    assert not columns, f"{model.__name__} has no {', '.join(columns)}"
    names, expressions = ", ".join(f'"{name}"' for name in values), ", ".join(values.values())
    with connection.cursor() as cursor:
        source = source.replace("%", "%%")
        cursor.execute(f"INSERT INTO {model._meta.db_table} ({names}) SELECT {expressions} FROM {source}", params)
        return cursor.rowcount
