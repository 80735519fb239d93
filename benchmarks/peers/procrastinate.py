"""Procrastinate with its psycopg connector. The no-op is a coroutine; the sleeping task is a function in a thread."""

from __future__ import annotations

import functools
import time

import procrastinate

from benchmarks import probe

from .base import DATABASE, WorkerCommands, chunks, script

#: The fastest of 1, 4, 10 and 20; its default is 1.
CONCURRENCY = 4

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=DATABASE))


@app.task(name="noop")
async def noop(number: int) -> None:
    probe.mark(number)


@app.task(name="sleep")
def sleep(number: int) -> None:
    probe.mark(number)
    time.sleep(probe.SLEEP_SECONDS)


@functools.cache
def _sender() -> procrastinate.App:
    return app.open()


def setup() -> None:
    _sender().schema_manager.apply_schema()


def send(number: int) -> None:
    _sender().tasks["noop"].defer(number=number)


def send_many(first: int, count: int, body: str) -> None:
    for numbers in chunks(first, count, 1_000):
        _sender().tasks[body].batch_defer(*({"number": number} for number in numbers))


def count_unfinished() -> int:
    row = (
        _sender()
        .connector.get_sync_connector()
        .execute_query_one("SELECT count(*) AS left FROM procrastinate_jobs WHERE status IN ('todo', 'doing')")
    )
    return int(row["left"])


def worker_commands(processes: int, slots: int | None) -> WorkerCommands:
    concurrency = slots or CONCURRENCY
    command = [script("procrastinate"), "--app", "benchmarks.peers.procrastinate.app"]
    command += ["worker", "--concurrency", str(concurrency)]
    return WorkerCommands([command] * processes, concurrency * processes)
