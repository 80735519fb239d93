"""Build the large database on PostgreSQL, in about a minute."""

from __future__ import annotations

from pathlib import Path

from django.db import connections, transaction

from . import incident, queues_workers, tasks, workflows
from .sizes import TASKS


def build(database: str = "default", number: int = TASKS) -> None:
    """Fill the empty tables of ``database`` with ``number`` tasks, and update the planner's statistics."""
    connection = connections[database]
    with transaction.atomic(database), connection.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit = off")
        cursor.execute("SET LOCAL work_mem = '128MB'")
        cursor.execute(Path(__file__).with_name("clock.sql").read_text())
        queues_workers.queues_and_workers(database)
        workflows.workflows(database)
        tasks.tasks(database, number)  # reads their nodes
        tasks.attempts(database)
        incident.incident(database)
        tasks.error_groups(database)  # reads the attempts
        tasks.heartbeats(database)
        tasks.rollups(database)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE)")
