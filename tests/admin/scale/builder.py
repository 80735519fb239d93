"""Building the large database, on PostgreSQL, in about a minute."""

from __future__ import annotations

from pathlib import Path

from django.db import connections, transaction

from . import calls, flows, places

#: In this order: tasks look at the nodes that they are of, attempts and beats at their tasks.
STEPS = (
    places.queues_and_workers,
    flows.workflows,
    calls.tasks,
    calls.attempts,
    calls.heartbeats,
    calls.rollups,
)


def build(database: str = "default") -> None:
    """Fill the empty tables of ``database``, and let the planner know of it."""
    connection = connections[database]
    with transaction.atomic(database), connection.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit = off")
        cursor.execute("SET LOCAL work_mem = '128MB'")
        cursor.execute(Path(__file__).with_name("clock.sql").read_text())
        for step in STEPS:
            step(database)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE)")
