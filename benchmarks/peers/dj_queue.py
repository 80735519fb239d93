"""dj-queue: one supervisor forks the workers, a dispatcher and a scheduler."""

from __future__ import annotations

from typing import Any

from . import site  # first, for it sets Django up
from .base import Workers, chunks

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


def worker_commands(processes: int, slots: int | None) -> Workers:
    at_once = slots or THREADS
    # The settings read them, for its command line does not take them.
    given = ["env", f"DJ_QUEUE_PROCESSES={processes}", f"DJ_QUEUE_THREADS={at_once}"]
    return Workers([[*given, *site.manage("dj_queue")]], at_once * processes)
