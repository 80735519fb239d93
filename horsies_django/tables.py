"""Whether the tables are there."""

from __future__ import annotations

from contextlib import suppress

from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connections


def check_tables(database: str) -> None:
    """Raise ImproperlyConfigured if the tables are not there. A database that can't be asked is left for later."""
    from .models import Task

    with suppress(OperationalError):
        if Task._meta.db_table not in connections[database].introspection.table_names():
            raise ImproperlyConfigured(
                f"The tables of horsies_django are not in database {database!r}: run `manage.py migrate` first."
            )
