"""DBOS for Python, with a process for each worker that runs the workflows of one queue."""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

import psycopg
from dbos import DBOS, DBOSClient

from benchmarks import probe

from .base import DATABASE, WorkerCommands

#: Workflows at once in a process, and seconds between polls: the fastest of those that were tried.
CONCURRENCY = 100
POLL = 0.1

_VERSION = "1"


def _config(executor: str) -> dict[str, Any]:
    return {
        "name": "benchmark",
        "system_database_url": DATABASE,
        "application_version": _VERSION,
        "executor_id": executor,
        "log_level": "WARNING",
    }


@DBOS.step()
def noop(number: int) -> int:
    return number


@DBOS.workflow(name="steps")
def steps(number: int) -> int:
    probe.mark(number)
    for step in range(5):
        noop(step)
    return number


@functools.cache
def _client() -> DBOSClient:
    return DBOSClient(system_database_url=DATABASE)


@functools.cache
def _connection() -> psycopg.Connection:
    return psycopg.connect(DATABASE, autocommit=True)


def setup() -> None:
    DBOS(config=_config("setup"))
    DBOS.launch()
    DBOS.register_queue("steps", worker_concurrency=CONCURRENCY, polling_interval_sec=POLL)
    DBOS.destroy()


def send_many(first: int, count: int, body: str) -> None:
    for number in range(first, first + count):
        _client().enqueue({"workflow_name": body, "queue_name": "steps", "app_version": _VERSION}, number)


def count_unfinished() -> int:
    row = (
        _connection()
        .execute("SELECT count(*) FROM dbos.workflow_status WHERE status NOT IN ('SUCCESS', 'ERROR', 'CANCELLED')")
        .fetchone()
    )
    assert row is not None
    return int(row[0])


def worker_commands(processes: int, slots: int | None) -> WorkerCommands:
    command = [sys.executable, "-m", "benchmarks.peers.dbos"]
    return WorkerCommands([[*command, str(number)] for number in range(processes)], processes * CONCURRENCY)


if __name__ == "__main__":
    DBOS(config=_config(sys.argv[1]))
    DBOS.listen_queues(["steps"])
    DBOS.launch()
    threading.Event().wait()
