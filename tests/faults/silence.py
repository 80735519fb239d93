"""Workers with running tasks while their database is silent, and the ways to silence it."""

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


#: The ways to silence a database. The clock needs :meth:`DatabaseClock.install` before the processes start.
STALLS: dict[str, Callable[[Cluster], AbstractContextManager[None]]] = {
    "a lock on the tasks": lambda own: locked(own.url, "horsies_tasks"),
    "a lock on the heartbeats": lambda own: locked(own.url, "horsies_heartbeats"),
    "a lock on the workers": lambda own: locked(own.url, "horsies_workers"),
    "an index that is built on the tasks": lambda own: locked(own.url, "horsies_tasks", "SHARE"),
    "a frozen server": frozen,
    "a clock that jumps one hour ahead": _clock_jumps,
}


def pass_time(seconds: float) -> None:
    """Let time pass; the elapsed time is part of the test."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, limit=seconds + 20)


def reaper_ran_again(own: Cluster, threshold: float) -> Callable[[], bool]:
    """Return a condition that is true once the grace after now is over and a pass of a reaper has begun."""
    with psycopg.connect(own.url) as connection:
        (now,) = connection.execute("SELECT statement_timestamp()").fetchone() or (None,)

    def has_run() -> bool:
        lease = Lease.objects.get(name="reaper:default")
        until = max(lease.outage_at or now, now).timestamp() + threshold
        return lease.renewed_at.timestamp() > until

    return has_run


class BusyWorkers:
    """Two workers that run tasks, half of them with a retry policy, and a reaper beside them.

    ``threshold`` is the seconds after which their settings let a silent worker be declared dead; the bodies wait for
    the gate, for ``seconds`` at most.
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
        heartbeats = Heartbeat.objects.filter(task_id__in=ids).values("task_id").distinct()
        wait_until(lambda: heartbeats.count() == size, limit=60, what="a heartbeat for each task")
        wait_until(
            lambda: Lease.objects.filter(name="reaper:default").exists(), limit=60, what="a reaper has the lease"
        )

    def wait_for_reaper(self) -> None:
        """Wait until a reaper has run again after the grace."""
        wait_until(
            reaper_ran_again(self.own, self.threshold), limit=10 * self.threshold + 30, what="a reaper has run again"
        )

    def check(self) -> None:
        """Wait until a reaper has run again, end the bodies, and assert that each ran once."""
        self.wait_for_reaper()
        self.gate.touch()
        wait_until(lambda: self.tasks.completed().count() == self.size, limit=60, what="all tasks are completed")
        assert Counter(self.attempts.values_list("attempt", "outcome")) == {(1, "COMPLETED"): self.size}
        assert self.entries.count() == self.size, "a body ran twice"
        assert all(worker.process.poll() is None for worker in self.workers)
