"""threadmill on Redis, with four threads in each process. It documents no bulk enqueue."""

from __future__ import annotations

from typing import Any

from . import site  # first, because it sets up Django
from .base import WorkerCommands

from benchmarks.jobs.framework import BODIES  # isort: skip
from django.tasks import default_task_backend  # isort: skip

#: Worker threads of a process, as for huey. Its default is one.
THREADS = 4

backend: Any = default_task_backend


def setup() -> None:
    backend.client.flushall()


def send(number: int) -> None:
    BODIES["noop"].enqueue(number)


def send_many(first: int, count: int, body: str) -> None:
    for number in range(first, first + count):
        BODIES[body].enqueue(number)


def count_unfinished() -> int:
    counts = backend.telemetry().queues["default"].counts
    return int(counts.ready + counts.running)


def worker_commands(processes: int, slots: int | None) -> WorkerCommands:
    threads = slots or THREADS
    command = site.manage("threadmill", "worker", "--workers", str(processes), "--threads", str(threads))
    return WorkerCommands([command], processes * threads)
