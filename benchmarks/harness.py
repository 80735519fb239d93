"""Runs one peer on an empty store for a measure."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from . import probe
from .drivers import Driver, PeerError, start_driver
from .processes import WorkerGroup, last_error_line, run_workers
from .registry import CHECKOUT, NODE, POSTGRES, REDIS, Peer
from .servers import Counters, Postgres

#: Seconds without progress after which a measure fails.
STALL_TIMEOUT: Final = 30.0

#: Seconds until the first progress. Some peers start a process for each slot.
START_TIMEOUT: Final = 60.0

#: The driver of peers that run on Node.
NODE_DRIVER: Final = CHECKOUT / "benchmarks" / "node" / "driver.mjs"

#: The prefix of all benchmark databases, so that no other database is ever dropped.
_PREFIX: Final = "horsies_django_benchmark_"


@dataclass(frozen=True, slots=True)
class Stores:
    """The available stores; None for one that is missing."""

    postgres: Postgres | None
    redis: str | None


@dataclass(frozen=True, slots=True)
class HarnessConfig:
    """The most tasks of a measure, the threads of our worker, and the directories for logs of failures and of ours."""

    max_tasks: int
    threads: int
    logs: Path
    package: Path = CHECKOUT


class Harness:
    """One peer with its store, its tables and its driver process."""

    def __init__(self, peer: Peer, program: Path, stores: Stores, config: HarnessConfig, stack: ExitStack) -> None:
        self.peer = peer
        self.postgres = stores.postgres if peer.store == POSTGRES or peer.only == "orm" else None
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmarks-")))
        self.database = _PREFIX + re.sub(r"\W", "_", peer.name)
        self.log = self.folder / "log"
        self._program = program
        self.logs = config.logs
        probe.create(self.folder / "probe", config.max_tasks)
        self.probe = probe.ProbeReader(self.folder / "probe")
        self.url = stack.enter_context(self.postgres.database(self.database)) if self.postgres else ""
        self._env = self._environment(stores, config)
        stack.push(self._keep_log)
        self._drivers = stack.enter_context(ExitStack())
        self._start_driver()
        self.call("setup")

    def _environment(self, stores: Stores, config: HarnessConfig) -> dict[str, str]:
        # Keep this process's settings and packages out of the peer's processes.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "HORSIES_", "PG"))}
        site = {"DJANGO_SETTINGS_MODULE": f"benchmarks.sites.{self.peer.site}"} if self.peer.site else {}
        return (
            kept
            | site
            | {
                "PYTHONPATH": os.pathsep.join(map(str, dict.fromkeys([config.package, CHECKOUT]))),
                "PYTHONWARNINGS": "ignore",
                "PATH": f"{self._program.parent}{os.pathsep}{os.environ.get('PATH', '')}",
                "BENCHMARK_DATABASE": self.url,
                "BENCHMARK_REDIS": (stores.redis or "") if self.peer.store == REDIS else "",
                "BENCHMARK_PACKAGES": str(self._program.parent.parent),
                "BENCHMARK_FOLDER": str(self.folder),
                "BENCHMARK_VARIANT": self.peer.variant,
                "BENCHMARK_THREADS": str(config.threads),
                probe.VARIABLE: str(self.folder / "probe"),
            }
        )

    def _keep_log(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        """Copy the log of a peer that failed."""
        if kind is not None and issubclass(kind, Exception):
            self.logs.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.log, self.logs / f"{self.peer.name}.log")

    def _start_driver(self) -> None:
        self._driver = self._drivers.enter_context(self._run_driver())
        self._driver.finish()

    def _run_driver(self) -> AbstractContextManager[Driver]:
        script = [str(NODE_DRIVER)] if self.peer.runtime == NODE else ["-m", "benchmarks.driver"]
        command = [str(self._program), *script, self.peer.module]
        return start_driver(command, self._env, self.folder, self.log)

    @contextmanager
    def senders(self, count: int) -> Iterator[list[Driver]]:
        """Run further driver processes during the block, each with its own connections to the store."""
        with ExitStack() as stack:
            drivers = [stack.enter_context(self._run_driver()) for _ in range(count)]
            for driver in drivers:
                driver.finish()
            yield drivers

    def timed(self, do: str, **arguments: Any) -> tuple[Any, float]:
        """Call a function of the peer's module; return its value and its seconds inside the driver."""
        return self._driver.timed(do, **arguments)

    def call(self, do: str, **arguments: Any) -> Any:
        """Call a function of the peer's module and return its value."""
        return self._driver.call(do, **arguments)

    def run_module(self, name: str, *arguments: str) -> str:
        """Run a Python module with the peer's packages and settings; return what it prints."""
        command = [str(self._program), "-m", name, *arguments]
        with self.log.open("a") as log:
            done = subprocess.run(command, env=self._env, stdout=subprocess.PIPE, stderr=log, text=True)  # noqa: S603  # the peer's interpreter
        if done.returncode:
            raise PeerError(f"{name} exited with status {done.returncode}: {last_error_line(self.log)}")
        return done.stdout

    def enqueue(self, count: int, body: str = "noop", first: int = 0) -> None:
        """Enqueue tasks and let the store settle."""
        self.call("send_many", first=first, count=count, body=body)
        self.settle()

    def start_from_snapshot(self, key: str, fill: Callable[[], None]) -> None:
        """Start with the database that ``fill`` makes. The first call saves a snapshot; later calls restore it."""
        assert self.postgres is not None
        if not self.postgres.has_snapshot(self.database, key):
            self.call("clear_tasks")
            fill()
            self.settle()
            self._drivers.close()
            self.postgres.save_snapshot(self.database, key)
        self._drivers.close()
        self.postgres.restore_snapshot(self.database, key)
        self._start_driver()
        self.probe.clear()

    def settle(self) -> None:
        """Let a PostgreSQL store finish its pending maintenance."""
        if self.postgres:
            self.postgres.settle(self.url)

    def counters(self) -> Counters | None:
        """Return the counters of the peer's database; None if it is not on PostgreSQL."""
        return self.postgres.counters(self.database) if self.postgres else None

    @contextmanager
    def workers(
        self, processes: int, slots: int | None = None, commands: str = "worker_commands", **env: str
    ) -> Iterator[tuple[WorkerGroup, int]]:
        """Run the peer's workers during the block, with these variables; yield them and their total number of slots."""
        lines, total_slots = self.call(commands, processes=self.peer.processes or processes, slots=slots)
        with run_workers(lines, self._env | env, self.folder, self.log) as group:
            yield group, total_slots

    def wait_until_started(self, group: WorkerGroup, first: int, count: int, within: float = math.inf) -> None:
        """Wait until all ``count`` tasks have started, or ``within`` seconds after the first has."""
        self._wait(group, self._unstarted_counter(first, count, within), "tasks were not started", 0.002, count)

    def _unstarted_counter(self, first: int, count: int, within: float) -> Callable[[], int]:
        """Return a function that counts tasks not yet started.

        Counting takes CPU time from the workers, so it recounts only four times a second or when the last has started.
        """
        known, when, until = count, 0.0, math.inf

        def left() -> int:
            nonlocal known, when, until
            if known < count:
                until = min(until, time.monotonic() + within)
            if time.monotonic() > until:
                return 0
            if self.probe.started_at(first + count - 1) or time.monotonic() > when + 0.25:
                known, when = count - self.probe.count_started(first, count), time.monotonic()
            return known

        return left

    def wait_until_finished(self, group: WorkerGroup) -> None:
        """Wait until the peer's own store has every task as finished."""
        self._wait(group, lambda: int(self.call("count_unfinished")), "tasks were not stored as finished", 0.002)

    def wait_until_workflows_ended(self, group: WorkerGroup) -> None:
        """Wait until the peer's own store has every workflow as ended."""
        self._wait(
            group, lambda: int(self.call("count_running_workflows")), "workflows were not stored as ended", 0.002
        )

    def _wait(self, group: WorkerGroup, left: Callable[[], int], what: str, pause: float, total: int = 0) -> None:
        """Wait until ``left()`` is 0. Raises PeerError if it stops falling, and RuntimeError if a worker exits."""
        least, since = left(), time.monotonic()
        while least > 0:
            group.raise_if_exited()
            time.sleep(pause)
            now_left = left()
            if now_left < least:
                least, since = now_left, time.monotonic()
            elif time.monotonic() - since > (timeout := START_TIMEOUT if least == total else STALL_TIMEOUT):
                raise PeerError(f"{least} {what} for {timeout:.0f} s: {last_error_line(self.log)}")


@contextmanager
def open_harness(peer: Peer, program: Path, stores: Stores, config: HarnessConfig) -> Iterator[Harness]:
    """Set a peer up, and clean up after the block."""
    with ExitStack() as stack:
        yield Harness(peer, program, stores, config, stack)
