"""Workers that hold tasks while their database is silent, and the ways to silence it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg

from horsies_django.models import Heartbeat, Lease, Task, TaskAttempt
from tests.chaos.cluster import Cluster
from tests.conftest import Process, wait_until
from tests.faults import jobs
from tests.faults.server import DatabaseClock, frozen, locked
from tests.jobs.models import Entry


@contextmanager
def _clock_jumps(own: Cluster) -> Iterator[None]:
    DatabaseClock(own.url).jump(3_600)
    yield


#: A clock that jumps needs :meth:`DatabaseClock.install` before the processes start.
STALLS: dict[str, Callable[[Cluster], AbstractContextManager[None]]] = {
    "a lock on the tasks": lambda own: locked(own.url, "horsies_tasks"),
    "a lock on the heartbeats": lambda own: locked(own.url, "horsies_heartbeats"),
    "a lock on the workers": lambda own: locked(own.url, "horsies_workers"),
    "an index that is built on the tasks": lambda own: locked(own.url, "horsies_tasks", "SHARE"),
    "a frozen server": frozen,
    "a clock that jumps one hour ahead": _clock_jumps,
}


def pass_the_time(seconds: float) -> None:
    """Let time pass, where time is what is tried."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, limit=seconds + 20)


def judged_again(own: Cluster, threshold: float) -> Callable[[], bool]:
    """Return a look that says whether a reaper has judged since now: no grace is left, and a pass has begun."""
    with psycopg.connect(own.url) as connection:
        (now,) = connection.execute("SELECT statement_timestamp()").fetchone() or (None,)

    def look() -> bool:
        lease = Lease.objects.get(name="reaper:default")
        until = max(lease.outage_at or now, now).timestamp() + threshold
        return lease.renewed_at.timestamp() > until

    return look


class Crew:
    """Two workers that hold tasks, half of them with a policy, and a reaper beside them.

    ``threshold`` is the seconds after which a silent worker may be judged, as their settings have it; the bodies wait
    for the gate, for so many ``seconds`` at most.
    """

    def __init__(
        self,
        own: Cluster,
        start: Callable[..., Process],
        gate: Path,
        threshold: float,
        *flags: str,
        size: int = 6,
        seconds: float = jobs.FOREVER,
        url: str = "",
        reaper_url: str = "",
        **environment: str,
    ) -> None:
        environment |= {"DATABASE_URL": url or own.url}
        self.own, self.gate, self.threshold, self.size = own, gate, threshold, size
        threads = str(size // 2)
        self.workers = [start("horsies_worker", "--threads", threads, *flags, **environment) for _ in range(2)]
        start("horsies_reaper", **environment | {"DATABASE_URL": reaper_url or url or own.url})
        keys = [str(number) for number in range(size)]
        ids = [(jobs.hold if int(key) % 2 else jobs.hold_again).send(key, str(gate), seconds).id for key in keys]
        self.tasks, self.attempts = Task.objects.filter(pk__in=ids), TaskAttempt.objects.filter(task__in=ids)
        self.entries = Entry.objects.filter(key__in=keys)
        wait_until(lambda: self.entries.count() == size, limit=60, what="every body has begun")
        beats = Heartbeat.objects.filter(task_id__in=ids).values("task_id").distinct()
        wait_until(lambda: beats.count() == size, limit=60, what="a beat for each of them")
        wait_until(lambda: Lease.objects.filter(name="reaper:default").exists(), limit=60, what="a reaper is there")

    def wait_for_judgement(self) -> None:
        """Wait until a reaper has judged again."""
        wait_until(judged_again(self.own, self.threshold), limit=10 * self.threshold + 30, what="a reaper has judged")

    def check(self) -> None:
        """Wait until a reaper has judged again, end the bodies, and see that each ran once."""
        self.wait_for_judgement()
        self.gate.touch()
        wait_until(lambda: self.tasks.completed().count() == self.size, limit=60, what="all are completed")
        assert Counter(self.attempts.values_list("attempt", "outcome")) == {(1, "COMPLETED"): self.size}
        assert self.entries.count() == self.size, "a body ran twice"
        assert all(worker.process.poll() is None for worker in self.workers)
