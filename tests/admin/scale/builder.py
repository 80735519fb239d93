"""Build the large database on PostgreSQL, in about a minute."""

from __future__ import annotations

from pathlib import Path

from django.db import connections, transaction

from . import queues_workers, tasks, workflows

#: The order matters: tasks read their nodes; attempts and heartbeats read their tasks, error groups their attempts.
STEPS = (
    queues_workers.queues_and_workers,
    workflows.workflows,
    tasks.tasks,
    tasks.attempts,
    tasks.error_groups,
    tasks.heartbeats,
    tasks.rollups,
)


def build(database: str = "default") -> None:
    """Fill the empty tables of ``database``, and update the planner's statistics."""
    connection = connections[database]
    with transaction.atomic(database), connection.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit = off")
        cursor.execute("SET LOCAL work_mem = '128MB'")
        cursor.execute(Path(__file__).with_name("clock.sql").read_text())
        for step in STEPS:
            step(database)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE)")
