"""PgQueuer on asyncpg and uvloop, with its default batch size or, in the variant "batch100", with batches of 100."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer, run
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks import probe

from .base import DATABASE, VARIANT, WorkerCommands, chunks

#: Jobs in a dequeue and in a write to the log.
BATCH = 100 if VARIANT == "batch100" else 10

_INSERT_FINISHED = (
    "INSERT INTO pgqueuer_log (job_id, status, priority, entrypoint, aggregated)"
    " SELECT job, 'successful', 0, 'noop', true FROM"
)

_runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
_connections: list[asyncpg.Connection] = []


@asynccontextmanager
async def main() -> AsyncIterator[PgQueuer]:
    """The factory that ``pgq run`` takes."""
    connection = await asyncpg.connect(DATABASE)
    try:
        pgq = PgQueuer(AsyncpgDriver(connection))

        @pgq.entrypoint("noop")
        async def noop(job: Job) -> None:
            assert job.payload is not None
            probe.mark(int(job.payload))

        @pgq.entrypoint("sleep")
        async def sleep(job: Job) -> None:
            assert job.payload is not None
            probe.mark(int(job.payload))
            await asyncio.sleep(probe.SLEEP_SECONDS)

        yield pgq
    finally:
        await connection.close()


async def _queries() -> Queries:
    if not _connections:
        _connections.append(await asyncpg.connect(DATABASE))
    return Queries(AsyncpgDriver(_connections[0]))


def setup() -> None:
    async def install() -> None:
        await (await _queries()).install()

    _runner.run(install())


def send(number: int) -> None:
    async def enqueue() -> None:
        await (await _queries()).enqueue("noop", str(number).encode())

    _runner.run(enqueue())


def send_many(first: int, count: int, body: str) -> None:
    async def enqueue() -> None:
        queries = await _queries()
        for numbers in chunks(first, count, 1_000):
            size = len(numbers)
            await queries.enqueue([body] * size, [str(number).encode() for number in numbers], [0] * size)

    _runner.run(enqueue())


def clear_tasks() -> None:
    _execute("TRUNCATE pgqueuer, pgqueuer_log")


def preload(kind: str, count: int, number: int) -> None:
    if kind == "finished":
        # A finished job is a row of the log.
        _execute(f"{_INSERT_FINISHED} generate_series(1, {count}) AS job")
        return
    later = timedelta(days=1) if kind in ("scheduled", "retrying") else None
    priority = 100 if kind == "scheduled" else 0
    # A worker only dequeues jobs of entrypoints that it has registered.
    entrypoint = "other" if kind == "unserved" else "noop"

    async def enqueue() -> None:
        queries = await _queries()
        for numbers in chunks(0, count, 1_000):
            size = len(numbers)
            await queries.enqueue(
                [entrypoint] * size, [str(number).encode()] * size, [priority] * size, execute_after=[later] * size
            )

    _runner.run(enqueue())


def _execute(sql: str) -> None:
    async def execute() -> None:
        await _queries()
        await _connections[0].execute(sql)

    _runner.run(execute())


def count_unfinished() -> int:
    async def count() -> int:
        await _queries()
        return int(await _connections[0].fetchval("SELECT count(*) FROM pgqueuer"))

    return _runner.run(count())


def worker_commands(processes: int, slots: int | None) -> WorkerCommands:
    # It requires room for at least two batches.
    limit = max(slots or 0, 2 * BATCH)
    command = [sys.executable, "-m", "benchmarks.peers.pgqueuer", str(limit if slots else 0)]
    return WorkerCommands([command] * processes, limit * processes)


if __name__ == "__main__":
    # The same as ``pgq run``, whose command line fails with the typer version that its requirements install.
    limit = int(sys.argv[1]) or None
    _runner.run(run(main, batch_size=BATCH, max_concurrent_tasks=limit))
