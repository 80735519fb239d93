"""A trial: disruptions for a while, then one healthy worker that finishes the rest, and a report."""

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
from tests.chaos.disruptions import Disruptions, Event
from tests.chaos.fleet import Fleet
from tests.chaos.invariants import Records, Violation, explain, kind, violations
from tests.chaos.lossy_proxy import LossyProxy
from tests.chaos.producer import Producer
from tests.chaos.workflow_invariants import tree_violations

FLAGS = ["--processes", "2", "--threads", "4", "--async-slots", "8", "--prefetch", "2", "--shutdown-timeout", "2"]
FLAGS += ["--timeout-grace", "1"]

#: The tasks that are sent, and how often each is, relative to the others.
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

#: The most violations that are printed, and explained; they tend to come in large numbers.
SHOWN = 40
EXPLAINED = 8

#: The most seconds in which the healthy worker ends no task. A slow machine may take long for all of them.
LIMIT = 45.0


@dataclass(frozen=True)
class Report:
    """The disruptions, the states of tasks and workflows, and the broken guarantees."""

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
        lines = [f"seed {self.seed}; the rest was done {self.drained_in:.1f} s after the disruptions", "events:"]
        lines += [f"  {count:5} {name}" for name, count in sorted(self.events.items())]
        lines += ["tasks:", *(f"  {count:5} {name} {status}" for (name, status), count in sorted(self.tasks.items()))]
        lines += ["attempts:", *(f"  {count:5} {name}" for name, count in sorted(self.attempts.items()))]
        lines += ["errors of attempts:", *(f"  {count:5} {name}" for name, count in sorted(self.codes.items()))]
        lines += ["workflows:", *(f"  {count:5} {name} {how}" for (name, how), count in sorted(self.workflows.items()))]
        lines += ["their nodes:", *(f"  {count:5} {name} {how}" for (name, how), count in sorted(self.nodes.items()))]
        lines += ["timeline:", *(f"  {event}" for event in self.timeline)]
        for key, story in self.explanations.items():
            lines += [f"history of {key}:", *(f"  {one}" for one in story)]
        lines += [f"violations: {len(self.violations)}", *(f"  {one.text}" for one in self.violations[:SHOWN])]
        return "\n".join(lines)


class Trial:
    """Two workers of two runners each, a producer of tasks and workflows, and disruptions."""

    def __init__(self, cluster: Cluster, seed: int, log: Path, stale: float) -> None:
        self._cluster = cluster
        self._seed = seed
        self._log = log
        self._stale = stale

    def run(self, seconds: float) -> Report:
        """Run the trial."""
        producer = Producer(self._seed, KINDS)
        with self._log.open("wb", buffering=0) as log, tempfile.TemporaryDirectory(prefix="horsies-proxy-") as folder:
            proxy = LossyProxy(folder, self._cluster.socket_folder)
            proxy_url = self._cluster.url.replace(self._cluster.socket_folder, folder)
            environment = {"PYTHONUNBUFFERED": "1", "TEST_IMPORT": "tests.chaos.shapes"}
            fleet = Fleet(FLAGS, environment | {"DATABASE_URL": proxy_url}, log)
            disruptions = Disruptions(self._seed, self._cluster, proxy, fleet, self._stale)
            try:
                fleet.start()
                fleet.start()
                producer.start()
                disruptions.run(seconds)
                producer.stop()
                fleet.end()
                drained_in = self._finish(fleet)
            finally:
                fleet.end()
                proxy.close()
        records = Records.read(fleet)
        broken = list(violations(records, producer.sent, producer.uncertain))
        broken += map(Violation, tree_violations(producer.started, producer.perhaps_started))
        workflows = Counter(Workflow.objects.values_list("name", "status"))
        nodes = Counter(WorkflowTask.objects.values_list("kind", "status"))
        keys = list(dict.fromkeys(one.key for one in broken if one.key))[:EXPLAINED]
        connection.close()
        attempts = [attempt for attempts in records.attempts.values() for attempt in attempts]
        return Report(
            self._seed,
            disruptions.events,
            Counter((kind(row), str(row.status)) for row in records.rows),
            Counter(f"{one.outcome}{', to be retried' if one.will_retry else ''}" for one in attempts),
            Counter(one.error_code for one in attempts if one.error_code),
            workflows,
            nodes,
            drained_in,
            broken,
            {key: explain(key, records, disruptions.timeline) for key in keys},
            disruptions.timeline,
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
