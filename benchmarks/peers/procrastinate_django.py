"""Procrastinate in a Django project, with a worker that its management command starts."""

from __future__ import annotations

from . import site  # first, because it sets up Django
from .base import WorkerCommands, chunks

from benchmarks.jobs.procrastinate import app  # isort: skip

#: As without Django; its default is 1.
CONCURRENCY = 4


count_saves = site.count_saves


def setup() -> None:
    site.migrate()


def send_many(first: int, count: int, body: str) -> None:
    for numbers in chunks(first, count, 1_000):
        app.tasks[body].batch_defer(*({"number": number} for number in numbers))


def count_unfinished() -> int:
    return site.fetch_number("SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')")


def worker_commands(processes: int, slots: int | None) -> WorkerCommands:
    concurrency = slots or CONCURRENCY
    command = site.manage("procrastinate", "worker", "--concurrency", str(concurrency))
    return WorkerCommands([command] * processes, concurrency * processes)
