"""LISTEN and NOTIFY, which the ORM can't say. The only module that speaks to psycopg."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

from django.db import connections

#: One channel for all queues; see waking.py for the payload.
CHANNEL: Final = "horsies_tasks"

#: What the payload begins with by which a worker finds out whether its listener hears anything.
PING: Final = "?"


def can_listen(alias: str) -> bool:
    """Whether the database of ``alias`` has LISTEN and NOTIFY."""
    return connections[alias].vendor == "postgresql"


def notify(alias: str, payload: str) -> None:
    """Tell every listener, once the current transaction commits, at the cost of a statement of its own."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, payload])


def ping(alias: str, worker_id: str) -> None:
    """Say a worker's name, for its own listener to hear."""
    if can_listen(alias):
        notify(alias, PING + worker_id)


def notifications(alias: str, timeout: float) -> Iterator[list[str]]:
    """Yield the payloads that have arrived, at least an empty list each ``timeout`` seconds.

    The first list comes once LISTEN holds: whatever commits later is told. Uses a connection of its own, outside
    Django's wrapper and any pool, and raises psycopg.Error when that is lost.
    """
    import psycopg

    parameters: dict[str, Any] = connections[alias].get_connection_params()
    for of_django in ("cursor_factory", "context"):
        parameters.pop(of_django, None)
    with closing(psycopg.connect(**parameters, autocommit=True)) as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        yield []
        while True:
            yield [notice.payload for notice in connection.notifies(timeout=timeout, stop_after=1)]
