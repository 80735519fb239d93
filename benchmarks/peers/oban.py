"""Oban for Python, the open-source edition, with a node of ``oban start`` for each worker process."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from oban import Oban, worker
from oban.schema import install
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool

from benchmarks import probe

from .base import DATABASE, WorkerCommands, chunks, script

#: The queue limit in its documentation.
LIMIT = 10


@worker(queue="default")
class Noop:
    async def process(self, job: Any) -> None:
        probe.mark(job.args["number"])


@worker(queue="default")
class Sleep:
    async def process(self, job: Any) -> None:
        probe.mark(job.args["number"])
        await asyncio.sleep(probe.SLEEP_SECONDS)


_WORKERS: dict[str, Any] = {"noop": Noop, "sleep": Sleep}
_runner = asyncio.Runner()


@functools.cache
def _pool() -> AsyncConnectionPool:
    return _runner.run(_open_pool())


async def _open_pool() -> AsyncConnectionPool:
    pool = AsyncConnectionPool(DATABASE, min_size=1, max_size=2, open=False)
    await pool.open()
    return pool


@functools.cache
def _oban() -> Oban:
    return Oban(pool=_pool())


def setup() -> None:
    _runner.run(install(_pool()))


def send(number: int) -> None:
    _runner.run(_oban().enqueue(_WORKERS["noop"].new({"number": number})))


def send_many(first: int, count: int, body: str) -> None:
    for numbers in chunks(first, count, 1_000):
        _runner.run(_oban().enqueue_many(_WORKERS[body].new({"number": number}) for number in numbers))


def count_unfinished() -> int:
    async def count() -> int:
        async with _pool().connection() as connection, connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute("SELECT count(*) FROM oban_jobs WHERE state IN ('available', 'executing')")
            row = await cursor.fetchone()
        assert row is not None
        return int(row[0])

    return _runner.run(count())


def worker_commands(processes: int, slots: int | None) -> WorkerCommands:
    limit = slots or LIMIT
    start = [script("oban"), "start", "--dsn", DATABASE, "--queues", f"default:{limit}", "--log-level", "WARNING"]
    return WorkerCommands([[*start, "--node", f"node-{node}"] for node in range(processes)], limit * processes)
