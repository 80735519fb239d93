"""A trial: some time of mischief, one healthy worker to finish what is left, and the verdict."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import Error, connection

from horsies_django import TASK_TERMINAL_STATES, HorsiesTask
from horsies_django.models import Task, TaskAttempt, Workflow, WorkflowTask
from tests.chaos import jobs
from tests.chaos.cluster import Cluster
from tests.chaos.disruptions import Event, Mischief
from tests.chaos.fleet import Fleet
from tests.chaos.invariants import Found, Violation, explain, kind, violations
from tests.chaos.lossy_proxy import Wire
from tests.chaos.producer import Producer
from tests.chaos.workflow_invariants import tree_violations

FLAGS = ["--processes", "2", "--threads", "4", "--async-slots", "8", "--prefetch", "2", "--shutdown-timeout", "2"]
FLAGS += ["--timeout-grace", "1"]

#: What is sent, and how often each in relation to the others.
KINDS: dict[HorsiesTask[..., Any], float] = {
    jobs.at_least_once: 10,
    jobs.async_at_least_once: 10,
    jobs.at_most_once: 10,
    jobs.async_at_most_once: 10,
    jobs.exactly_once: 20,
    jobs.writing_at_least_once: 10,
    jobs.untidy_at_least_once: 3,
    jobs.stubborn_at_least_once: 1,
    jobs.hogging_at_most_once: 0.4,
}

#: Violations that are printed, and those of them that are explained; they tend to come in crowds.
SHOWN = 40
EXPLAINED = 8

#: Seconds for which the healthy worker may end nothing of what the mischief has left. A slow machine may take long for
#: all of it.
LIMIT = 45.0


@dataclass(frozen=True)
class Report:
    """What was done, what became of it, and what was not as promised."""

    seed: int
    events: Counter[str]
    tasks: Counter[tuple[str, str]]
    attempts: Counter[str]
    codes: Counter[str]
    workflows: Counter[tuple[str, str]]
    nodes: Counter[tuple[str, str]]
    drained_in: float
    violations: list[Violation]
    explanations: dict[str, list[str]]
    timeline: list[Event]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}; the rest was done {self.drained_in:.1f} s after the mischief", "events:"]
        lines += [f"  {count:5} {name}" for name, count in sorted(self.events.items())]
        lines += ["tasks:", *(f"  {count:5} {name} {status}" for (name, status), count in sorted(self.tasks.items()))]
        lines += ["attempts:", *(f"  {count:5} {name}" for name, count in sorted(self.attempts.items()))]
        lines += ["errors of attempts:", *(f"  {count:5} {name}" for name, count in sorted(self.codes.items()))]
        lines += ["workflows:", *(f"  {count:5} {name} {how}" for (name, how), count in sorted(self.workflows.items()))]
        lines += ["their nodes:", *(f"  {count:5} {name} {how}" for (name, how), count in sorted(self.nodes.items()))]
        lines += ["what was done, and when:", *(f"  {event}" for event in self.timeline)]
        for key, story in self.explanations.items():
            lines += [f"what became of {key}:", *(f"  {one}" for one in story)]
        lines += [f"violations: {len(self.violations)}", *(f"  {one.text}" for one in self.violations[:SHOWN])]
        return "\n".join(lines)


class Trial:
    """Two workers of two runners each, a producer of tasks and workflows, and somebody who means them ill."""

    def __init__(self, cluster: Cluster, seed: int, log: Path, stale: float) -> None:
        self._cluster = cluster
        self._seed = seed
        self._log = log
        self._stale = stale

    def run(self, seconds: float) -> Report:
        """Do all of it."""
        producer = Producer(self._seed, KINDS)
        with self._log.open("wb", buffering=0) as log, tempfile.TemporaryDirectory(prefix="horsies-wire-") as folder:
            wire = Wire(folder, self._cluster.socket_folder)
            through_wire = self._cluster.url.replace(self._cluster.socket_folder, folder)
            environment = {"PYTHONUNBUFFERED": "1", "TEST_IMPORT": "tests.chaos.shapes"}
            fleet = Fleet(FLAGS, environment | {"DATABASE_URL": through_wire}, log)
            mischief = Mischief(self._seed, self._cluster, wire, fleet, self._stale)
            try:
                fleet.start()
                fleet.start()
                producer.start()
                mischief.run(seconds)
                producer.stop()
                fleet.end()
                drained_in = self._finish(fleet)
            finally:
                fleet.end()
                wire.close()
        found = Found.read(fleet)
        wrong = list(violations(found, producer.sent, producer.uncertain))
        wrong += map(Violation, tree_violations(producer.started, producer.perhaps_started))
        workflows = Counter(Workflow.objects.values_list("name", "status"))
        nodes = Counter(WorkflowTask.objects.values_list("kind", "status"))
        keys = list(dict.fromkeys(one.key for one in wrong if one.key))[:EXPLAINED]
        connection.close()
        attempts = [attempt for attempts in found.attempts.values() for attempt in attempts]
        return Report(
            self._seed,
            mischief.events,
            Counter((kind(row), str(row.status)) for row in found.rows),
            Counter(f"{one.outcome}{', to be retried' if one.will_retry else ''}" for one in attempts),
            Counter(one.error_code for one in attempts if one.error_code),
            workflows,
            nodes,
            drained_in,
            wrong,
            {key: explain(key, found, mischief.timeline) for key in keys},
            mischief.timeline,
        )

    def _finish(self, fleet: Fleet) -> float:
        """Let one healthy worker do the rest, and return how long that took."""
        began = moved = time.monotonic()
        fleet.start()
        known = None
        while time.monotonic() - moved < LIMIT:
            try:
                unfinished = Task.objects.exclude(status__in=TASK_TERMINAL_STATES)
                left = unfinished.count() - unfinished.suspended().count()
                if not left and not Workflow.objects.filter(status="RUNNING").exists():
                    break
                if known != (known := (left, TaskAttempt.objects.count())):
                    moved = time.monotonic()
            except Error:
                connection.close()
            time.sleep(0.2)
        return time.monotonic() - began
