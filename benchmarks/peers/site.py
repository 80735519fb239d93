"""What the peers that are Django apps share."""

from __future__ import annotations

import sys
from typing import Any

import django

# The one who measures names its settings in the environment.
django.setup()


def migrate() -> None:
    """Create every table of the site."""
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
    """Return the one number that a query selects."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(sql)
        row: Any = cursor.fetchone()
    return int(row[0])
