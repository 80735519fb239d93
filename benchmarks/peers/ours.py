"""horsies-django with ``horsies_worker``; all options have their defaults except the threads."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from django.utils import timezone

from . import site  # first, because it sets up Django
from .base import THREADS, VARIANT, WorkerCommands, chunks

from benchmarks.jobs.ours import BODIES, gather, list_numbers  # isort: skip
from horsies_django import Workflow  # isort: skip


count_saves = site.count_saves


def setup() -> None:
    site.migrate()


def send(number: int) -> None:
    BODIES["noop"].enqueue(number)


def send_many(first: int, count: int, body: str) -> None:
    for numbers in chunks(first, count, 20_000):
        BODIES[body].send_many({"number": number} for number in numbers)


def send_kept(first: int, count: int, seconds: float) -> None:
    """Enqueue no-ops that are deleted so many seconds after their end."""
    task = BODIES["noop"].with_options(retention=seconds)
    task.send_many({"number": number} for number in range(first, first + count))


def clear_tasks() -> None:
    site.execute("TRUNCATE horsies_tasks, horsies_task_attempts, horsies_heartbeats")


def preload(kind: str, count: int, number: int) -> None:
    task = BODIES["noop"]
    if kind in ("scheduled", "retrying"):
        priority = 100 if kind == "scheduled" else 0
        task = task.with_options(priority=priority, run_after=timezone.now() + timedelta(days=1))
    if kind == "unserved":
        task = task.with_options(queue_name="other")
    for numbers in chunks(0, count, 20_000):
        task.send_many({"number": number} for _ in numbers)
    if kind == "retrying":
        site.execute(
            "UPDATE horsies_tasks SET attempt = 1, retry_count = 1, next_retry_at = enqueued_at, run_after = NULL,"
            " error_code = 'UNHANDLED_EXCEPTION'"
        )
    if kind == "finished":
        site.execute(
            "UPDATE horsies_tasks SET status = 'COMPLETED', claim = 1, attempt = 1, claimed_at = now(),"
            " started_at = now(), completed_at = now(), kept_until = now() + interval '7 days', result = '0'"
        )


def count_unfinished() -> int:
    return site.fetch_number("SELECT count(*) FROM horsies_tasks WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING')")


def start_workflow(shape: str, count: int) -> None:
    noop = BODIES["noop"]
    nodes: list[Any]
    if shape == "chain":
        nodes = [noop.node()(number=0)]
        for number in range(1, count):
            nodes.append(noop.node(waits_for=[nodes[-1]])(number=number))
    elif shape == "fan":
        nodes = [noop.node()(number=number) for number in range(count)]
        nodes.append(noop.node(waits_for=nodes)(number=count))
    else:
        items = list_numbers.node()(count=count)
        mapped = noop.map(over=items)
        nodes = [items, mapped, gather.node()(numbers=mapped.value, number=count)]
    Workflow(shape, nodes, output=nodes[-1]).start()


def count_running_workflows() -> int:
    return site.fetch_number("SELECT count(*) FROM horsies_workflows WHERE status IN ('PENDING', 'RUNNING')")


def send_coroutines(first: int, count: int, pause: float) -> list[float]:
    """Enqueue coroutines one by one, with pauses, and return when each call began."""
    called_at = []
    for number in range(first, first + count):
        time.sleep(pause)
        called_at.append(time.monotonic())
        BODIES["anoop"].enqueue(number)
    return called_at


def coroutine_worker_commands(processes: int, slots: int) -> WorkerCommands:
    """Return the command of a worker with so many async slots in each process."""
    command = site.manage("horsies_worker", "--queues", "default")
    command += ["--processes", str(processes), "--async-slots", str(slots)]
    return WorkerCommands([command], slots * processes)


def worker_commands(processes: int, slots: int | None) -> WorkerCommands:
    threads = slots or (8 if VARIANT == "default" else THREADS)
    command = site.manage("horsies_worker", "--queues", "default")
    command += ["--processes", str(processes), "--threads", str(threads)]
    return WorkerCommands([command], threads * processes)
