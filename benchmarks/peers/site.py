"""Helpers for the peers that are Django apps. Importing this module sets up Django."""

from __future__ import annotations

import sys
from typing import Any

import django

# The harness sets DJANGO_SETTINGS_MODULE.
django.setup()


def migrate() -> None:
    """Create all tables, and the rows of the measure ``orm``."""
    from django.core.management import call_command
    from django.db import connection

    from benchmarks.jobs.rows import ROWS, Row

    call_command("migrate", verbosity=0, interactive=False)
    with connection.schema_editor() as editor:
        editor.create_model(Row)
    Row.objects.bulk_create(Row() for _ in range(ROWS))


def count_saves() -> int:
    """Return how many bodies have saved a row."""
    return fetch_number("SELECT sum(value) FROM benchmarks_row")


def manage(*arguments: str) -> list[str]:
    """Return the command line of a management command."""
    return [sys.executable, "-m", "django", *arguments]


def execute(sql: str) -> None:
    """Run a statement."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(sql)


def fetch_number(sql: str) -> int:
    """Run a query and return its only value as a number."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(sql)
        row: Any = cursor.fetchone()
    return int(row[0])
