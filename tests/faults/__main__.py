"""``python -m tests.faults``: silence the database for minutes, at the default settings.

Each case has its own PostgreSQL, two workers with nine tasks each, half of them with a retry policy, and a third worker
that is killed as the silence begins. The cases run at the same time and take 50 minutes, most of it waiting.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.chaos.cluster import Cluster, cluster
from tests.faults.network import Proxy

SETTINGS = "tests.faults.recovery_settings"

#: The thresholds for quick tasks of docs/recovery.md.
QUICK = {"runner_heartbeat_interval_ms": 10_000, "running_stale_threshold_ms": 30_000, "check_interval_ms": 10_000}

#: The tasks that living workers hold, and those of the worker that dies.
SIZE, LOST = 18, 3


class Case(NamedTuple):
    """A silence of ``seconds``, repeated for ``cycles``, at these recovery settings."""

    stall: str
    seconds: float
    recovery: dict[str, int] = {}
    cycles: int = 1


CUT = "a network that is cut"

CASES = {
    "tasks": Case("a lock on the tasks", 330),
    "heartbeats": Case("a lock on the heartbeats", 330, cycles=6),
    "cut": Case(CUT, 330),
    "clock": Case("a clock that jumps one hour ahead", 60),
    "quick-heartbeats": Case("a lock on the heartbeats", 60, QUICK, cycles=6),
    "quick-cut": Case(CUT, 60, QUICK),
}


def main() -> int:
    """Run the cases, print a row of a table for each, and return 1 if a living worker lost a task."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"any of {', '.join(CASES)}; all by default")
    names = parser.parse_args().cases or list(CASES)
    if unknown := set(names) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    if len(names) == 1:
        return run(CASES[names[0]])
    processes = [subprocess.Popen([sys.executable, "-m", "tests.faults", name]) for name in names]
    return max(abs(process.wait()) for process in processes)


def run(case: Case) -> int:
    """Run a case on its own cluster; return 1 if a living worker lost a task."""
    with cluster() as own:
        os.environ |= {
            "DATABASE_URL": own.url,
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "TEST_RECOVERY": json.dumps(case.recovery),
        }
        import django

        django.setup()
        return _run(case, own)


def _run(case: Case, own: Cluster) -> int:
    from horsies_django.core.options import RecoveryOptions
    from horsies_django.models import TaskAttempt
    from tests.conftest import Process, wait_until
    from tests.faults import jobs
    from tests.faults.server import DatabaseClock
    from tests.faults.silence import STALLS, BusyWorkers, pass_time
    from tests.jobs.models import Entry

    DatabaseClock(own.url).install()
    with ExitStack() as stack:
        gate = Path(stack.enter_context(tempfile.TemporaryDirectory()), "gate")
        proxy = stack.enter_context(Proxy(own.socket_folder))

        def start(*arguments: str, **environment: str) -> Process:
            process = Process(*arguments, DJANGO_SETTINGS_MODULE=SETTINGS, **environment)
            stack.callback(process.stop)
            return process

        held = jobs.hold.with_options(queue_name="lost")
        lost = [held.send(f"lost {number}", str(gate)).id for number in range(LOST)]
        doomed = start("horsies_worker", "--queues", "lost", DATABASE_URL=proxy.url)
        wait_until(lambda: Entry.objects.count() == LOST, 60, "every body of the doomed worker has begun")
        threshold = RecoveryOptions(**case.recovery).stale_after
        busy = BusyWorkers(
            own, start, gate, threshold, "--exclude-queues", "lost", size=SIZE, seconds=7_200, url=proxy.url
        )

        found = TaskAttempt.objects.filter(task__in=lost, outcome="WORKER_FAILURE")
        os.killpg(doomed.process.pid, signal.SIGKILL)
        for cycle in range(case.cycles):
            with _cut(proxy) if case.stall == CUT else STALLS[case.stall](own):
                pass_time(case.seconds)
            if not cycle:
                ended = time.monotonic()
                wait_until(lambda: found.count() == LOST, 900, "a reaper has found the dead worker")
                found_after = time.monotonic() - ended
            busy.wait_for_reaper()
        gate.touch()
        wait_until(lambda: not busy.tasks.active().exists(), 60, "the bodies have ended")

        dead = busy.attempts.filter(outcome="WORKER_FAILURE").values("task").distinct().count()
        twice = busy.entries.count() - SIZE
        silence = f"{case.cycles} × {case.seconds:.0f} s" if case.cycles > 1 else f"{case.seconds:.0f} s"
        print(
            f"| {case.stall}, {silence} | {'quick' if case.recovery else 'default'} | {dead} of {SIZE} | {twice} "
            f"| {found_after:.0f} s after the silence |",
            flush=True,
        )
        return int(bool(dead or twice or busy.tasks.completed().count() != SIZE))


@contextmanager
def _cut(proxy: Proxy) -> Iterator[None]:
    proxy.cut()
    yield
    proxy.heal()


if __name__ == "__main__":
    sys.exit(main())
