"""absurd, with its Python SDK and a process for each worker."""

from __future__ import annotations

import functools
import sys
from typing import Any

import psycopg
from absurd_sdk import Absurd

from benchmarks import probe

from .base import DATABASE, WorkerCommands

#: Tasks at once in a process, and tasks of a claim: the fastest of those that were tried.
CONCURRENCY = 20
BATCH = 20


@functools.cache
def _app() -> Absurd:
    app = Absurd(DATABASE)
    app.register_task(name="steps")(_steps)
    return app


def _steps(params: Any, context: Any) -> int:
    probe.mark(params["number"])
    for step in range(5):
        context.step("noop", functools.partial(int, step))
    return int(params["number"])


@functools.cache
def _connection() -> psycopg.Connection:
    return psycopg.connect(DATABASE, autocommit=True)


def setup() -> None:
    from absurdctl import BUNDLED_SCHEMA_SQL

    _connection().execute(BUNDLED_SCHEMA_SQL)
    _app().create_queue("default")


def send_many(first: int, count: int, body: str) -> None:
    for number in range(first, first + count):
        _app().spawn(body, {"number": number})


def count_unfinished() -> int:
    row = (
        _connection()
        .execute("SELECT count(*) FROM absurd.t_default WHERE state NOT IN ('completed', 'failed', 'cancelled')")
        .fetchone()
    )
    assert row is not None
    return int(row[0])


def worker_commands(processes: int, slots: int | None) -> WorkerCommands:
    command = [sys.executable, "-m", "benchmarks.peers.absurd"]
    return WorkerCommands([command] * processes, processes * CONCURRENCY)


if __name__ == "__main__":
    _app().start_worker(concurrency=CONCURRENCY, batch_size=BATCH)
