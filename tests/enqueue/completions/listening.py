"""Seeing who is told of ends, and who tells, on PostgreSQL."""

from __future__ import annotations

from django.db import connection

from horsies_django.db import postgres


def backends(condition: str) -> list[int]:
    """Return the server's processes for this database of which that holds."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND ({condition})")
        return [pid for (pid,) in cursor.fetchall()]


def ears() -> list[int]:
    """Return the connections over which processes are told."""
    return backends("application_name = 'horsies completion listener'")


def all_tell(line: postgres.NotifyConnection, runners: int) -> bool:
    """Say that somebody waits, and return whether so many runners have heard it: each opens a line to tell over.

    One that has just registered may not listen yet, and who waited before says so again in four seconds only. The
    workers must have a short ``--name``, for that of a connection has no room for a long one.
    """
    line.notify(postgres.CHANNEL, [postgres.SUBSCRIBE])
    return len(backends("application_name LIKE 'horsies % notify'")) >= runners
