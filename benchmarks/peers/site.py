"""Helpers for the peers that are Django apps. Importing this module sets up Django."""

from __future__ import annotations

import sys
from typing import Any

import django

# The harness sets DJANGO_SETTINGS_MODULE.
django.setup()


def migrate() -> None:
    """Create all tables."""
    from django.core.management import call_command

    call_command("migrate", verbosity=0, interactive=False)


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
