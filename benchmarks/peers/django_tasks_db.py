"""django-tasks-db: each worker runs one task at a time. It documents no bulk enqueue."""

from __future__ import annotations

from django.db import transaction

from . import site  # first, because it sets up Django
from .base import WorkerCommands

from benchmarks.jobs.framework import BODIES  # isort: skip
from django_tasks_db.models import DBTaskResult  # isort: skip

_TABLE = DBTaskResult._meta.db_table


def setup() -> None:
    site.migrate()


def send(number: int) -> None:
    BODIES["noop"].enqueue(number)


def send_many(first: int, count: int, body: str) -> None:
    with transaction.atomic():
        for number in range(first, first + count):
            BODIES[body].enqueue(number)


def count_unfinished() -> int:
    return site.fetch_number(f"SELECT count(*) FROM {_TABLE} WHERE status IN ('READY', 'RUNNING')")  # noqa: S608


def worker_commands(processes: int, slots: int | None) -> WorkerCommands:
    return WorkerCommands([site.manage("db_worker")] * processes, processes)
