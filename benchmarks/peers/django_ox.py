"""django-ox: a supervisor with multithreaded worker processes."""

from __future__ import annotations

from . import site  # first, because it sets up Django
from .base import WorkerCommands

from benchmarks.jobs.framework import BODIES  # isort: skip
from django_ox.bulk import enqueue_many  # isort: skip

#: Its default is 1.
CONCURRENCY = 4


count_saves = site.count_saves


def setup() -> None:
    site.migrate()


def send(number: int) -> None:
    BODIES["noop"].enqueue(number)


def send_many(first: int, count: int, body: str) -> None:
    enqueue_many(BODIES[body], [((number,), {}) for number in range(first, first + count)])


def count_unfinished() -> int:
    return site.fetch_number("SELECT count(*) FROM django_ox_oxtask WHERE status IN ('READY', 'RUNNING')")


def worker_commands(processes: int, slots: int | None) -> WorkerCommands:
    concurrency = slots or CONCURRENCY
    command = site.manage("ox_worker", "--processes", str(processes), "--concurrency", str(concurrency))
    return WorkerCommands([command], concurrency * processes)
