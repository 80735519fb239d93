"""A database that is silent and does not refuse: no living worker is taken for dead, and every dead one is found."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psycopg
import pytest

from horsies_django.models import Heartbeat, Task, TaskAttempt, Turn
from tests.chaos import jobs
from tests.chaos.cluster import Cluster
from tests.chaos.wire import Wire
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry

#: Seconds; in the environment, milliseconds.
THRESHOLD = 3.0
SHORT = {"TEST_STALE_MS": "3000", "TEST_BEAT_MS": "400", "TEST_CHECK_MS": "200"}

#: Seconds of a stall, long enough for every threshold.
STALL = 2 * THRESHOLD

#: Functions of the database's clock that a test can set.
CLOCK = """
CREATE SCHEMA skewed;
CREATE TABLE skewed.clock (seconds float);
INSERT INTO skewed.clock VALUES (0);
CREATE FUNCTION skewed.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS
    $$ SELECT pg_catalog.statement_timestamp() + pg_catalog.make_interval(secs => seconds) FROM skewed.clock $$;
ALTER DATABASE postgres SET search_path = public, skewed, pg_catalog;
"""


def pass_the_time(seconds: float) -> None:
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, limit=seconds + 20)


def lock(mode: str, table: str) -> Callable[[Cluster, Wire], AbstractContextManager[None]]:
    @contextmanager
    def stall(own: Cluster, _: Wire) -> Iterator[None]:
        with psycopg.connect(own.url) as connection:
            connection.execute(f"LOCK TABLE {table} IN {mode} MODE")
            yield

    return stall


@contextmanager
def silent_wire(_: Cluster, wire: Wire) -> Iterator[None]:
    wire.silence()
    try:
        yield
    finally:
        wire.resume()


@contextmanager
def frozen_server(own: Cluster, _: Wire) -> Iterator[None]:
    own.freeze()
    try:
        yield
    finally:
        own.thaw()


@contextmanager
def clock_ahead(own: Cluster, _: Wire) -> Iterator[None]:
    with psycopg.connect(own.url, autocommit=True) as connection:
        connection.execute("UPDATE skewed.clock SET seconds = 3600")
        yield


STALLS = {
    "a lock on the tasks": lock("ACCESS EXCLUSIVE", "horsies_tasks"),
    "an index built on the tasks": lock("SHARE", "horsies_tasks"),
    "a lock on the heartbeats": lock("ACCESS EXCLUSIVE", "horsies_heartbeats"),
    "a lock on the workers": lock("ACCESS EXCLUSIVE", "horsies_workers"),
    "a silent network": silent_wire,
    "a frozen server": frozen_server,
    "a clock that jumps one hour ahead": clock_ahead,
}


@pytest.fixture
def wire(own_cluster):
    with psycopg.connect(own_cluster.url, autocommit=True) as connection:
        connection.execute(CLOCK)
    with tempfile.TemporaryDirectory(prefix="horsies-wire-") as folder:
        wire = Wire(folder, own_cluster.socket_folder)
        wire.url = own_cluster.url.replace(own_cluster.socket_folder, folder)
        yield wire
        wire.resume()
        wire.close()


def judged_again(own: Cluster) -> Callable[[], bool]:
    """Return a look that says whether a reaper has judged since now: no grace is left, and a pass has begun."""
    with psycopg.connect(own.url) as connection:
        (now,) = connection.execute("SELECT statement_timestamp()").fetchone()

    def look() -> bool:
        turn = Turn.objects.get(name="reaper:default")
        until = (turn.outage_at or now).timestamp() + THRESHOLD
        return turn.taken_at > now and turn.taken_at.timestamp() > until

    return look


@pytest.mark.slow
@pytest.mark.parametrize("stall", STALLS.values(), ids=STALLS.keys())
def test_after_a_silence_every_worker_that_lived_keeps_its_tasks(own_cluster, start, wire, stall, tmp_path):
    flags = ("--threads", "3", "--async-slots", "3")
    workers = [start("horsies_worker", *flags, DATABASE_URL=wire.url, **SHORT) for _ in range(2)]
    start("horsies_reaper", DATABASE_URL=wire.url, **SHORT)
    gate = tmp_path / "gate"
    keys = [str(number) for number in range(6)]
    for number in keys:
        (tasks.hold if int(number) % 2 else jobs.hold_again).send(number, str(gate))
    wait_until(lambda: Entry.objects.count() == len(keys), limit=60, what="every body has begun")
    wait_until(lambda: Heartbeat.objects.values("task_id").distinct().count() == len(keys), what="all are beaten for")
    wait_until(lambda: Turn.objects.filter(name="reaper:default").exists(), what="a reaper is there")

    with stall(own_cluster, wire):
        pass_the_time(STALL)
    wait_until(judged_again(own_cluster), limit=30, what="a reaper has judged again")
    gate.touch()

    wait_until(lambda: Task.objects.completed().count() == len(keys), limit=40)
    assert Counter(TaskAttempt.objects.values_list("attempt", "outcome")) == {(1, "COMPLETED"): len(keys)}
    assert Entry.objects.count() == len(keys), "each body ran once"
    assert all(worker.process.poll() is None for worker in workers)
