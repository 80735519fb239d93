"""dj-queue: a supervisor with forked workers, a dispatcher and a scheduler."""

from __future__ import annotations

from typing import Any

from . import site  # first, because it sets up Django
from .base import WorkerCommands, chunks

from benchmarks.jobs.framework import BODIES  # isort: skip

#: Its default number of threads.
THREADS = 3


def setup() -> None:
    site.migrate()


def send(number: int) -> None:
    BODIES["noop"].enqueue(number)


def send_many(first: int, count: int, body: str) -> None:
    task: Any = BODIES[body]
    for numbers in chunks(first, count, 1_000):
        task.get_backend().enqueue_all([(task, [number], {}) for number in numbers])


def count_unfinished() -> int:
    return site.fetch_number("SELECT count(*) FROM dj_queue_jobs WHERE finished_at IS NULL")


def worker_commands(processes: int, slots: int | None) -> WorkerCommands:
    threads = slots or THREADS
    # The settings read these variables, because the command line has no options for them.
    environment = ["env", f"DJ_QUEUE_PROCESSES={processes}", f"DJ_QUEUE_THREADS={threads}"]
    return WorkerCommands([[*environment, *site.manage("dj_queue")]], threads * processes)
