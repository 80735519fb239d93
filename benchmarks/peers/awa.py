"""awa with its Python SDK: coroutine bodies, and the defaults of its worker."""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
from dataclasses import dataclass
from typing import Any

import awa
import psycopg

from benchmarks import probe

from .base import DATABASE, WorkerCommands, chunks

#: Its default number of jobs at once.
MAX_WORKERS = 50

# Its own counts take seconds after a few thousand jobs. A slot of the queue's ring has jobs and completions together.
_UNFINISHED = """
    SELECT (SELECT count(*) FROM awa.ready_entries) + (SELECT count(*) FROM awa.deferred_jobs)
        - (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)
        - (SELECT count(*) FROM awa.done_entries)
"""


@dataclass
class Noop:
    number: int


@dataclass
class Sleep:
    number: int


_JOBS: dict[str, Any] = {"noop": Noop, "sleep": Sleep}


@functools.cache
def _client() -> awa.Client:
    return awa.Client(DATABASE)


@functools.cache
def _connection() -> psycopg.Connection:
    return psycopg.connect(DATABASE, autocommit=True)


def setup() -> None:
    _client().migrate()
    # The first worker of an empty database turns its queue storage on.
    asyncio.run(_work(MAX_WORKERS, asyncio.Event.set))


def send(number: int) -> None:
    _client().insert(Noop(number))


def send_many(first: int, count: int, body: str) -> None:
    for numbers in chunks(first, count, 1_000):
        _client().enqueue_many_copy([_JOBS[body](number) for number in numbers])


def count_unfinished() -> int:
    row = _connection().execute(_UNFINISHED).fetchone()
    assert row is not None
    return int(row[0])


def worker_commands(processes: int, slots: int | None) -> WorkerCommands:
    limit = slots or MAX_WORKERS
    command = [sys.executable, "-m", "benchmarks.peers.awa", str(limit)]
    return WorkerCommands([command] * processes, limit * processes)


async def _work(limit: int, prepare: Any) -> None:
    """Run a worker until the event that ``prepare`` gets is set."""
    client, stop = awa.AsyncClient(DATABASE), asyncio.Event()

    @client.task(Noop, queue="default")
    async def noop(job: awa.Job[Noop]) -> None:
        probe.mark(job.args.number)

    @client.task(Sleep, queue="default")
    async def sleep(job: awa.Job[Sleep]) -> None:
        probe.mark(job.args.number)
        await asyncio.sleep(probe.SLEEP_SECONDS)

    prepare(stop)
    await client.start([("default", limit)])
    await stop.wait()
    await client.shutdown()


def _stop_on_sigterm(stop: asyncio.Event) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)


if __name__ == "__main__":
    asyncio.run(_work(int(sys.argv[1]), _stop_on_sigterm))
