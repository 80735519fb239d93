"""A database that is silent and does not refuse: no worker that lives is taken for dead."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
import pytest

from horsies_django.models import Heartbeat, Task, TaskAttempt, Turn
from tests.chaos import jobs
from tests.chaos.cluster import Cluster
from tests.conftest import Process, wait_until
from tests.faults.network import Host, Proxy
from tests.faults.server import DatabaseClock, frozen, locked
from tests.jobs import tasks
from tests.jobs.models import Entry

#: Seconds of a threshold that a worker outlasts which only stands still for a moment, and of a stall twice as long.
THRESHOLD, STALL = 3.0, 6.0

KEYS = [str(number) for number in range(6)]


@contextmanager
def _clock_jumps(own: Cluster) -> Iterator[None]:
    DatabaseClock(own.url).jump(3_600)
    yield


STALLS: dict[str, Callable[[Cluster], AbstractContextManager[None]]] = {
    "a lock on the tasks": lambda own: locked(own.url, "horsies_tasks"),
    "an index that is built on the tasks": lambda own: locked(own.url, "horsies_tasks", "SHARE"),
    "a lock on the heartbeats": lambda own: locked(own.url, "horsies_heartbeats"),
    "a lock on the workers": lambda own: locked(own.url, "horsies_workers"),
    "a frozen server": frozen,
    "a clock that jumps one hour ahead": _clock_jumps,
}


def pass_the_time(seconds: float) -> None:
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, limit=seconds + 20)


def judged_again(own: Cluster, threshold: float) -> Callable[[], bool]:
    """Return a look that says whether a reaper has judged since now: no grace is left, and a pass has begun."""
    with psycopg.connect(own.url) as connection:
        (now,) = connection.execute("SELECT statement_timestamp()").fetchone() or (None,)

    def look() -> bool:
        turn = Turn.objects.get(name="reaper:default")
        until = max(turn.outage_at or now, now).timestamp() + threshold
        return turn.taken_at.timestamp() > until

    return look


class Crew:
    """Two workers that hold six tasks, half of them with a policy, and a reaper beside them."""

    def __init__(
        self,
        own: Cluster,
        start: Callable[..., Process],
        gate: Any,
        threshold: float,
        *flags: str,
        url: str = "",
        reaper_url: str = "",
    ) -> None:
        milliseconds = {"TEST_STALE_MS": str(int(threshold * 1_000)), "TEST_BEAT_MS": "400", "TEST_CHECK_MS": "200"}
        environment = milliseconds | {"DATABASE_URL": url or own.url}
        self.own, self.gate, self.threshold = own, gate, threshold
        self.workers = [start("horsies_worker", "--threads", "3", *flags, **environment) for _ in range(2)]
        start("horsies_reaper", **environment | {"DATABASE_URL": reaper_url or url or own.url})
        for key in KEYS:
            (tasks.hold if int(key) % 2 else jobs.hold_again).send(key, str(gate))
        wait_until(lambda: Entry.objects.count() == len(KEYS), limit=60, what="every body has begun")
        beats = Heartbeat.objects.values("task_id").distinct()
        wait_until(lambda: beats.count() == len(KEYS), limit=60, what="a beat for each of them")
        wait_until(lambda: Turn.objects.filter(name="reaper:default").exists(), limit=60, what="a reaper is there")

    def check(self) -> None:
        """Wait until a reaper has judged again, end the bodies, and see that each ran once."""
        wait_until(judged_again(self.own, self.threshold), limit=60, what="a reaper has judged again")
        self.gate.touch()
        wait_until(lambda: Task.objects.completed().count() == len(KEYS), limit=60, what="all are completed")
        assert Counter(TaskAttempt.objects.values_list("attempt", "outcome")) == {(1, "COMPLETED"): len(KEYS)}
        assert Entry.objects.count() == len(KEYS), "a body ran twice"
        assert all(worker.process.poll() is None for worker in self.workers)


@pytest.mark.slow
@pytest.mark.parametrize("stall", STALLS.values(), ids=STALLS.keys())
def test_a_worker_that_lives_through_a_stall_of_the_database_keeps_its_tasks(own_cluster, start, stall, tmp_path):
    DatabaseClock(own_cluster.url).install()
    crew = Crew(own_cluster, start, tmp_path / "gate", THRESHOLD)

    with stall(own_cluster):
        pass_the_time(STALL)

    crew.check()


@pytest.mark.slow
def test_a_worker_whose_network_comes_back_after_the_reapers_keeps_its_tasks(own_cluster, start, proxy, tmp_path):
    with Proxy(own_cluster.socket_folder) as other:
        crew = Crew(
            own_cluster, start, tmp_path / "gate", THRESHOLD, "--no-reaper", url=proxy.url, reaper_url=other.url
        )

        proxy.cut()
        other.cut()
        pass_the_time(STALL)
        other.heal()
        pass_the_time(THRESHOLD / 4)
        proxy.heal()

        crew.check()


@pytest.mark.slow
def test_a_worker_that_outlives_a_server_without_a_route_keeps_its_tasks(
    own_cluster: Cluster, start: Callable[..., Process], host: Host, tmp_path: Any
) -> None:
    """The kernel sends anew after 6 s and then after 12 s, which is within this threshold from the end of the cut."""
    crew = Crew(own_cluster, start, tmp_path / "gate", 8.0, url=host.url)

    host.vanish()
    pass_the_time(9.5)
    host.come_back()

    crew.check()
