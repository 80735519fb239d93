"""horsies from PyPI: each worker process runs one task at a time. The variant "tuned" prefetches."""

from __future__ import annotations

import functools

import psycopg
from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult

from benchmarks import probe

from .base import DATABASE, VARIANT, WorkerCommands, script

#: Tasks that a worker of the variant "tuned" claims ahead.
PREFETCH = 32

_URL = DATABASE.replace("postgresql://", "postgresql+psycopg://", 1)
_tuned = {"prefetch_buffer": PREFETCH, "claim_lease_ms": 60_000} if VARIANT == "tuned" else {}
app = Horsies(AppConfig(broker=PostgresConfig(database_url=_URL), **_tuned))


@app.task("noop")
def noop(*, number: int) -> TaskResult[int, TaskError]:
    probe.mark(number)
    return TaskResult(ok=number)


@app.task("sleep")
def sleep(*, number: int) -> TaskResult[int, TaskError]:
    probe.sleep(number)
    return TaskResult(ok=number)


_TASKS = {"noop": noop, "sleep": sleep}


@functools.cache
def _connection() -> psycopg.Connection:
    return psycopg.connect(DATABASE, autocommit=True)


def setup() -> None:
    # Its broker creates the tables with the first task.
    first = noop.send(number=0)
    assert not first.is_err(), first
    _connection().execute("DELETE FROM horsies_tasks")


def send(number: int) -> None:
    noop.send(number=number)


def send_many(first: int, count: int, body: str) -> None:
    for number in range(first, first + count):
        _TASKS[body].send(number=number)


def count_unfinished() -> int:
    return _fetch_number("SELECT count(*) FROM horsies_tasks WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING')")


def start_workflow(shape: str, count: int) -> None:
    assert shape == "fan"
    nodes = [noop.node(node_id=str(number))(number=number) for number in range(count)]
    last = noop.node(waits_for=nodes, node_id="last")(number=count)
    started = app.workflow("fan", [*nodes, last], definition_key="fan", output=last).start()
    assert not started.is_err(), started


def count_running_workflows() -> int:
    return _fetch_number("SELECT count(*) FROM horsies_workflows WHERE status IN ('PENDING', 'RUNNING')")


def _fetch_number(sql: str) -> int:
    row = _connection().execute(sql).fetchone()
    assert row is not None
    return int(row[0])


def worker_commands(processes: int, slots: int | None) -> WorkerCommands:
    # Each slot is a process, and all must start within 30 s. On two cores 16 processes may take longer.
    total_slots = slots * processes // 2 if slots else processes
    command = [script("horsies"), "worker", "benchmarks.peers.horsies:app", "--processes", str(total_slots)]
    if VARIANT == "tuned":
        command += ["--max-claim-batch", str(total_slots + PREFETCH)]
    return WorkerCommands([[*command, "--loglevel", "WARNING"]], total_slots)
