"""dramatiq on Redis, without a result backend, which is its default."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks import probe

from .base import REDIS, WorkerCommands, script

#: Its default number of threads.
THREADS = 8

broker = RedisBroker(url=REDIS)
dramatiq.set_broker(broker)


@dramatiq.actor
def noop(number: int) -> None:
    probe.mark(number)


@dramatiq.actor
def sleep(number: int) -> None:
    probe.sleep(number)


_ACTORS = {"noop": noop, "sleep": sleep}


def setup() -> None:
    broker.client.flushall()


def send(number: int) -> None:
    noop.send(number)


def send_many(first: int, count: int, body: str) -> None:
    for number in range(first, first + count):
        _ACTORS[body].send(number)


def count_unfinished() -> int:
    # Acknowledging a message removes it from this hash.
    return int(broker.client.hlen("dramatiq:default.msgs"))


def worker_commands(processes: int, slots: int | None) -> WorkerCommands:
    threads = slots or THREADS
    command = [script("dramatiq"), "benchmarks.peers.dramatiq", "--processes", str(processes)]
    return WorkerCommands([[*command, "--threads", str(threads)]], threads * processes)
