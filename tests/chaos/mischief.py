"""What is done to the workers and to their database, at moments and to victims that a seed has chosen."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush

import psycopg

from tests.chaos.cluster import Cluster
from tests.chaos.fleet import Fleet, hurt
from tests.chaos.wire import Wire

#: How often each kind of mischief comes, in relation to the others.
WEIGHTS = {
    "runner killed": 20,
    "supervisor killed": 9,
    "group told to stop": 8,
    "connection terminated": 25,
    "listeners terminated": 10,
    "answers to commits lost": 10,
    "database crashed": 7,
    "runner frozen": 12,
    "supervisor frozen": 6,
}

#: Seconds between two events, on average.
PAUSE = 1.2


class Mischief:
    """Does one thing after the other."""

    def __init__(self, seed: int, cluster: Cluster, wire: Wire, fleet: Fleet, stale: float) -> None:
        self._random = random.Random(seed)
        self._cluster = cluster
        self._wire = wire
        self._fleet = fleet
        self._stale = stale
        self._later: list[tuple[float, int, int]] = []
        self.events: Counter[str] = Counter()
        self._actions: dict[str, Callable[[], bool]] = {
            "runner killed": self._kill_runner,
            "supervisor killed": self._kill_supervisor,
            "group told to stop": self._terminate_group,
            "connection terminated": self._terminate_connection,
            "listeners terminated": self._terminate_listeners,
            "answers to commits lost": self._lose_answers,
            "database crashed": self._crash_database,
            "runner frozen": self._freeze_runner,
            "supervisor frozen": self._freeze_supervisor,
        }

    def run(self, seconds: float) -> None:
        """Go on for so long; afterwards nothing is frozen any more."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._wait(self._random.expovariate(1 / PAUSE))
            name = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            if self._actions[name]():
                self.events[name] += 1
        while self._later:
            self._wait(0.1)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            while self._later and self._later[0][0] <= now:
                hurt(heappop(self._later)[1], signal.SIGCONT)
            self._fleet.tend()
            time.sleep(min(0.05, end - now))

    def _kill_runner(self) -> bool:
        runners = [pid for member in self._fleet.members for pid in member.runners]
        if runners:
            hurt(self._random.choice(runners), signal.SIGKILL)
        return bool(runners)

    def _kill_supervisor(self) -> bool:
        self._fleet.kill(self._random.choice(self._fleet.members))
        return True

    def _terminate_group(self) -> bool:
        with suppress(ProcessLookupError):
            os.killpg(self._random.choice(self._fleet.members).pid, signal.SIGTERM)
        return True

    def _terminate_connection(self) -> bool:
        return self._terminate("true", one=True)

    def _terminate_listeners(self) -> bool:
        """What is notified until they are back is lost."""
        return self._terminate(
            "application_name IN (SELECT left('horsies ' || id, 63) FROM horsies_workers)", one=False
        )

    def _lose_answers(self) -> bool:
        return self._wire.lose_answers() > 0

    def _crash_database(self) -> bool:
        self._cluster.restart("immediate")
        return True

    def _freeze_runner(self) -> bool:
        runners = [pid for member in self._fleet.members for pid in member.runners]
        return self._freeze(self._random.choice(runners)) if runners else False

    def _freeze_supervisor(self) -> bool:
        return self._freeze(self._random.choice(self._fleet.members).pid)

    def _freeze(self, pid: int) -> bool:
        hurt(pid, signal.SIGSTOP)
        awake = time.monotonic() + self._stale * self._random.uniform(0.5, 4)
        heappush(self._later, (awake, pid, pid))
        return True

    def _terminate(self, condition: str, *, one: bool) -> bool:
        query = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
            f" AND application_name <> 'chaos' AND pid <> pg_backend_pid() AND {condition}"
        )
        try:
            with psycopg.connect(self._cluster.url, autocommit=True, application_name="chaos") as connection:
                victims = [pid for (pid,) in connection.execute(query)]
                if one and victims:
                    victims = [self._random.choice(victims)]
                connection.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [victims])
        except psycopg.OperationalError:
            return False
        return bool(victims)
