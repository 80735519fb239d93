"""Disruptions of the workers and their database; a seed chooses the times and the victims."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from heapq import heappop, heappush
from itertools import count

import psycopg

from tests.chaos.cluster import Cluster
from tests.chaos.fleet import Fleet, Member, send_signal
from tests.chaos.lossy_proxy import LossyProxy
from tests.faults.server import frozen

#: How often each kind of disruption comes, relative to the others.
WEIGHTS = {
    "runner killed": 20,
    "supervisor killed": 9,
    "group sent SIGTERM": 8,
    "connection terminated": 25,
    "listeners terminated": 10,
    "answers to commits lost": 10,
    "database crashed": 7,
    "runner frozen": 12,
    "supervisor frozen": 6,
    "supervisor sent SIGTERM": 6,
    "supervisor sent SIGTERM twice": 3,
    "database frozen": 5,
    "network silent": 5,
    "tasks locked": 4,
    "heartbeats locked": 4,
    "workers locked": 2,
}

#: Seconds between two events, on average.
PAUSE = 1.2


#: Seconds to wait for a table lock.
LOCK_TIMEOUT = 2


@dataclass(frozen=True)
class Event:
    """A disruption, and the process that it hit."""

    at: float
    name: str
    details: str = ""

    def __str__(self) -> str:
        return f"{clock(self.at)} {self.name} {self.details}"


def clock(at: float) -> str:
    """Return the time of day, in UTC and to the millisecond."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S.%f")[:-3]


class Disruptions:
    """Disrupts one thing after another."""

    def __init__(self, seed: int, cluster: Cluster, proxy: LossyProxy, fleet: Fleet, stale: float) -> None:
        self._random = random.Random(seed)
        self._cluster = cluster
        self._proxy = proxy
        self._fleet = fleet
        self._stale = stale
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self._is_silent = False
        self.events: Counter[str] = Counter()
        self.timeline: list[Event] = []
        self._actions: dict[str, Callable[[], bool]] = {
            "runner killed": self._kill_runner,
            "supervisor killed": self._kill_supervisor,
            "group sent SIGTERM": self._terminate_group,
            "connection terminated": self._terminate_connection,
            "listeners terminated": self._terminate_listeners,
            "answers to commits lost": self._lose_answers,
            "database crashed": self._crash_database,
            "runner frozen": self._freeze_runner,
            "supervisor frozen": self._freeze_supervisor,
            "supervisor sent SIGTERM": self._terminate_supervisor,
            "supervisor sent SIGTERM twice": partial(self._terminate_supervisor, times=2),
            "database frozen": self._freeze_database,
            "network silent": self._silence_network,
            "tasks locked": partial(self._lock, "horsies_tasks"),
            "heartbeats locked": partial(self._lock, "horsies_heartbeats"),
            "workers locked": partial(self._lock, "horsies_workers"),
        }

    def run(self, seconds: float) -> None:
        """Disrupt for ``seconds``; afterwards nothing is frozen any more."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._wait(self._random.expovariate(1 / PAUSE))
            name = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            known = len(self.timeline)
            if self._actions[name]():
                self.events[name] += 1
                if len(self.timeline) == known:
                    self._note(name)
        while self._later:
            self._wait(0.1)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            while self._later and self._later[0][0] <= now:
                heappop(self._later)[2]()
            self._fleet.replace_ended()
            time.sleep(min(0.05, end - now))

    def _kill_runner(self) -> bool:
        runners = [pid for member in self._fleet.members for pid in member.runners]
        if runners:
            pid = self._random.choice(runners)
            self._fleet.disrupted.add(pid)
            send_signal(pid, signal.SIGKILL)
            self._note("runner killed", f"pid={pid}")
        return bool(runners)

    def _kill_supervisor(self) -> bool:
        member = self._random.choice(self._fleet.members)
        self._note("supervisor killed", _describe(member))
        self._fleet.kill(member)
        return True

    def _terminate_group(self) -> bool:
        member = self._random.choice(self._fleet.members)
        self._fleet.disrupted |= set(member.runners)
        self._note("group sent SIGTERM", _describe(member))
        with suppress(ProcessLookupError):
            os.killpg(member.pid, signal.SIGTERM)
        return True

    def _terminate_supervisor(self, times: int = 1) -> bool:
        """Send SIGTERM; some bodies outlast the shutdown timeout, and some ignore it."""
        member = self._random.choice(self._fleet.members)
        self._fleet.disrupted |= set(member.runners)
        self._note("supervisor sent SIGTERM", f"{_describe(member)} times={times}")
        send_signal(member.pid, signal.SIGTERM)
        for number in range(1, times):
            self._schedule(0.5 * number, partial(send_signal, member.pid, signal.SIGTERM))
        return True

    def _terminate_connection(self) -> bool:
        return self._terminate("true", one=True)

    def _terminate_listeners(self) -> bool:
        """Terminate the connections that LISTEN; notifications are lost until they are back."""
        return self._terminate(
            "application_name IN (SELECT left('horsies ' || id, 63) FROM horsies_workers)", one=False
        )

    def _lose_answers(self) -> bool:
        return self._proxy.lose_answers() > 0

    def _crash_database(self) -> bool:
        if self._is_silent:
            return False  # pg_ctl would wait for the silent server
        self._cluster.restart("immediate")
        return True

    def _freeze_runner(self) -> bool:
        runners = [pid for member in self._fleet.members for pid in member.runners]
        if runners:
            pid = self._random.choice(runners)
            self._fleet.disrupted.add(pid)
            self._freeze("runner frozen", pid, f"pid={pid}")
        return bool(runners)

    def _freeze_supervisor(self) -> bool:
        member = self._random.choice(self._fleet.members)
        self._fleet.mark_unwatched(member)
        self._freeze("supervisor frozen", member.pid, _describe(member))
        return True

    def _freeze(self, name: str, pid: int, details: str) -> None:
        seconds = self._stale * self._random.uniform(0.5, 2.5)
        self._note(name, f"{details} seconds={seconds:.1f}")
        send_signal(pid, signal.SIGSTOP)
        self._schedule(seconds, partial(send_signal, pid, signal.SIGCONT))

    def _freeze_database(self) -> bool:
        return self._hold("database frozen", frozen(self._cluster))

    def _silence_network(self) -> bool:
        return self._hold("network silent", self._proxy.silent())

    def _lock(self, table: str) -> bool:
        return self._hold(f"{table} locked", self._locked(table))

    def _hold(self, name: str, state: AbstractContextManager[None]) -> bool:
        """Keep the database in a state for longer than every threshold, unless it is in such a state already."""
        if self._is_silent:
            return False
        try:
            state.__enter__()
        except psycopg.Error:
            return False
        self._is_silent = True
        seconds = self._stale * self._random.uniform(1, 2.5)
        self._note(name, f"seconds={seconds:.1f}")

        def end() -> None:
            state.__exit__(None, None, None)
            self._is_silent = False
            self._note(f"{name}: over")

        self._schedule(seconds, end)
        return True

    @contextmanager
    def _locked(self, table: str) -> Iterator[None]:
        with closing(psycopg.connect(self._cluster.url, application_name="chaos")) as connection:
            connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}s'")
            connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            yield

    def _schedule(self, seconds: float, action: Callable[[], object]) -> None:
        heappush(self._later, (time.monotonic() + seconds, next(self._numbers), action))

    def _note(self, name: str, details: str = "") -> None:
        self.timeline.append(Event(time.time(), name, details))

    def _terminate(self, condition: str, *, one: bool) -> bool:
        query = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
            f" AND application_name <> 'chaos' AND pid <> pg_backend_pid() AND {condition}"
        )
        if self._is_silent:
            return False  # a frozen server does not answer
        try:
            with psycopg.connect(self._cluster.url, autocommit=True, application_name="chaos") as connection:
                victims = [pid for (pid,) in connection.execute(query)]
                if one and victims:
                    victims = [self._random.choice(victims)]
                connection.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [victims])
        except psycopg.OperationalError:
            return False
        return bool(victims)


def _describe(member: Member) -> str:
    return f"pid={member.pid} runners={member.runners}"
