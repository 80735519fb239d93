"""Which processes listen for completions, and which runners notify them, on PostgreSQL."""

from __future__ import annotations

from django.db import connection

from horsies_django.db import postgres
from tests.notify_connection import NotifyConnection


def connection_pids(condition: str) -> list[int]:
    """Return the pids of the connections to this database that match the condition."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND ({condition})")
        return [pid for (pid,) in cursor.fetchall()]


def listener_pids() -> list[int]:
    """Return the connections over which processes listen for completions."""
    return connection_pids("application_name = 'horsies waiter'")


def all_runners_notify(listener: NotifyConnection, runners: int) -> bool:
    """Subscribe to completions, and return whether that many runners have opened a connection to notify over.

    A runner that has just registered may not listen yet, and a process that waits renews its subscription only every
    four seconds. The workers need a short ``--name``, because the name of a connection has no room for a long one.
    """
    listener.send(postgres.CHANNEL, [postgres.SUBSCRIBE])
    return len(connection_pids("application_name LIKE 'horsies % notify'")) >= runners
