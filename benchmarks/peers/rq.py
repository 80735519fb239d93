"""rq with a worker pool. Workers fork for each job, which is its default."""

from __future__ import annotations

import redis
from rq import Queue
from rq.registry import FinishedJobRegistry

from .base import REDIS, WorkerCommands, chunks, script

_FUNCTIONS = {"noop": "benchmarks.jobs.plain.noop", "sleep": "benchmarks.jobs.plain.sleep"}

_connection = redis.Redis.from_url(REDIS)
_queue = Queue("default", connection=_connection)
_sent = 0


def setup() -> None:
    _connection.flushall()


def send(number: int) -> None:
    global _sent
    _queue.enqueue(_FUNCTIONS["noop"], number)
    _sent += 1


def send_many(first: int, count: int, body: str) -> None:
    global _sent
    for numbers in chunks(first, count, 1_000):
        _queue.enqueue_many([Queue.prepare_data(_FUNCTIONS[body], (number,)) for number in numbers])
    _sent += count


def add_sent(count: int) -> None:
    global _sent
    _sent += count


def count_unfinished() -> int:
    return _sent - FinishedJobRegistry(queue=_queue).get_job_count(cleanup=False)


def worker_commands(processes: int, slots: int | None) -> WorkerCommands:
    total_slots = slots * processes if slots else processes
    command = [script("rq"), "worker-pool", "default", "--num-workers", str(total_slots), "--url", REDIS, "--quiet"]
    return WorkerCommands([command], total_slots)
