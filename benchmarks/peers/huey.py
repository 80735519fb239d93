"""huey on Redis, SQLite or PostgreSQL. Tasks return a number, because huey stores no result that is None."""

from __future__ import annotations

from huey import Huey, PostgresHuey, RedisHuey, SqliteHuey

from benchmarks import probe

from .base import DATABASE, FOLDER, REDIS, VARIANT, WorkerCommands, script

#: Worker threads of a consumer.
THREADS = 4


def _huey() -> Huey:
    if VARIANT == "redis":
        return RedisHuey("benchmark", url=REDIS)
    if VARIANT == "sqlite":
        return SqliteHuey("benchmark", filename=str(FOLDER / "huey.sqlite3"))
    return PostgresHuey("benchmark", dsn=DATABASE)


huey = _huey()
_sent = 0


@huey.task()
def noop(number: int) -> int:
    probe.mark(number)
    return number


@huey.task()
def sleep(number: int) -> int:
    probe.sleep(number)
    return number


_TASKS = {"noop": noop, "sleep": sleep}


def setup() -> None:
    if VARIANT == "redis":
        huey.storage.conn.flushall()


def send(number: int) -> None:
    global _sent
    noop(number)
    _sent += 1


def send_many(first: int, count: int, body: str) -> None:
    global _sent
    for number in range(first, first + count):
        _TASKS[body](number)
    _sent += count


def add_sent(count: int) -> None:
    global _sent
    _sent += count


def count_unfinished() -> int:
    return _sent - int(huey.storage.result_store_size())


def worker_commands(processes: int, slots: int | None) -> WorkerCommands:
    threads = slots or THREADS
    command = [script("huey_consumer"), "benchmarks.peers.huey.huey", "--workers", str(threads), "--quiet"]
    return WorkerCommands([command] * processes, threads * processes)
