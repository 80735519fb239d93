"""django-q2 with its ORM broker: worker processes between a pusher and a monitor."""

from __future__ import annotations

from django.db import transaction

from . import site  # first, because it sets up Django
from .base import WorkerCommands

from django_q.tasks import async_task  # isort: skip

_FUNCTIONS = {"noop": "benchmarks.jobs.plain.noop", "sleep": "benchmarks.jobs.plain.sleep"}


def setup() -> None:
    site.migrate()


def send(number: int) -> None:
    async_task(_FUNCTIONS["noop"], number)


def send_many(first: int, count: int, body: str) -> None:
    with transaction.atomic():
        for number in range(first, first + count):
            async_task(_FUNCTIONS[body], number)


def count_unfinished() -> int:
    return site.fetch_number("SELECT count(*) FROM django_q_ormq")


def worker_commands(processes: int, slots: int | None) -> WorkerCommands:
    return WorkerCommands([["env", f"Q_WORKERS={processes}", *site.manage("qcluster")]], processes)
