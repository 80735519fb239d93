"""Celery with Redis as broker and result backend, and the prefork pool."""

from __future__ import annotations

import functools

import celery
import celery.result
import redis

from benchmarks import probe

from .base import REDIS, WorkerCommands, script

_RESULTS = REDIS.removesuffix("/0") + "/1"

app = celery.Celery("benchmark", broker=REDIS, backend=_RESULTS)
_sent = 0


@app.task(name="noop")
def noop(number: int) -> int:
    probe.mark(number)
    return number


@app.task(name="sleep")
def sleep(number: int) -> int:
    probe.sleep(number)
    return number


@app.task(name="gather")
def gather(numbers: list[int], number: int) -> int:
    probe.mark(number)
    return len(numbers)


_chords: list[celery.result.AsyncResult] = []


@functools.cache
def _results() -> redis.Redis:
    return redis.Redis.from_url(_RESULTS)


def setup() -> None:
    _results().flushall()


def send(number: int) -> None:
    global _sent
    noop.delay(number)
    _sent += 1


def send_many(first: int, count: int, body: str) -> None:
    global _sent
    task = app.tasks[body]
    # Its documentation recommends one connection and producer for many calls.
    with app.producer_pool.acquire(block=True) as producer:
        for number in range(first, first + count):
            task.apply_async((number,), producer=producer)
    _sent += count


def add_sent(count: int) -> None:
    global _sent
    _sent += count


def count_unfinished() -> int:
    # This Redis database has only results.
    return _sent - int(_results().dbsize())


def start_workflow(shape: str, count: int) -> None:
    assert shape == "fan"
    _chords.append(celery.chord(noop.s(number) for number in range(count))(gather.s(number=count)))


def count_running_workflows() -> int:
    return sum(not chord.ready() for chord in _chords[-1:])


def worker_commands(processes: int, slots: int | None) -> WorkerCommands:
    total_slots = slots * processes if slots else processes
    command = [script("celery"), "--app", "benchmarks.peers.celery", "worker", "--concurrency", str(total_slots)]
    return WorkerCommands([[*command, "--loglevel", "WARNING"]], total_slots)
