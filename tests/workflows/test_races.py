"""Workers, and people, who get in each other's way: real processes, at the same time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from django.db import connection

from horsies_django import Workflow
from horsies_django.core.workflow_status import WORKFLOW_TASK_TERMINAL_STATES, WORKFLOW_TERMINAL_STATES
from horsies_django.models import TaskAttempt, WorkflowTask
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.workflows.handle import WorkflowHandle
from tests.conftest import wait_until
from tests.jobs.models import Entry
from tests.workflows import race_jobs
from tests.workflows.runs import contradictions

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

#: Seconds in which the ends of two nodes are "the same instant".
INSTANT = 0.02


def have_ended():
    return not WorkflowRow.objects.exclude(status__in=WORKFLOW_TERMINAL_STATES).exists()


def quietly(process):
    """Stop a worker, and fail if it had anything to complain of."""
    output = process.stop()
    for word in ("deadlock", "40P01", "Traceback", "database is locked"):
        assert word not in output, output[max(0, output.find(word) - 2_000) :][:5_000]


# Diamonds.


def met(keys):
    """Return how many of these diamonds had their two sides end at the same instant, in two workers."""
    nodes = WorkflowTask.objects.filter(node_id__in=[f"{key}-{side}" for key in keys for side in ("left", "right")])
    rows = nodes.values_list("node_id", "result", "task_id")
    ends = {node_id: (result["ok"], task_id) for node_id, result, task_id in rows}
    workers = dict(TaskAttempt.objects.values_list("task_id", "worker_id"))
    count = 0
    for key in keys:
        (left, left_task), (right, right_task) = ends[f"{key}-left"], ends[f"{key}-right"]
        count += abs(left - right) < INSTANT and workers[left_task] != workers[right_task]
    return count


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("count", "trees"), [(30, 3), pytest.param(500, 500, marks=SLOW), pytest.param(500, 5, marks=SLOW)]
)
def test_a_diamond_completes_once_when_two_workers_end_its_sides_at_once(worker, tmp_path, count, trees):
    """Each diamond is a workflow, or many of them are one."""
    keys = [f"d{number}" for number in range(count)]
    workers = [
        worker("--queues", f"{side},default", "--processes", "1", "--threads", "8") for side in ("left", "right")
    ]

    handles = []
    for tree in range(trees):
        nodes = [node for key in keys[tree::trees] for node in race_jobs.diamond(str(tmp_path), key)]
        handles.append(Workflow("diamonds", nodes).start())
    wait_until(have_ended, 300)

    for process in workers:
        quietly(process)
    assert Counter(str(handle.status()) for handle in handles) == {"COMPLETED": trees}
    runs = Counter(Entry.objects.values_list("key", flat=True))
    assert runs == dict.fromkeys(keys, 1)
    assert [found for handle in handles for found in contradictions(handle)] == []
    assert met(keys) >= count / 4  # most do; but whoever stands still misses all that it has in hand


# People.


def bodies(run):
    """Yield the nodes of a run and of what is below it whose bodies count how often they run, and that number."""
    nodes = WorkflowTask.objects.filter(workflow__root_id=run.id, task_name__contains="racing.work").exclude(kind="map")
    keys = {node: node.kwargs["key"] + ("" if node.map_index is None else f"[{node.kwargs['item']}]") for node in nodes}
    counts = Counter(Entry.objects.filter(key__in=keys.values()).values_list("key", flat=True))
    for node, key in keys.items():
        yield node, counts[key]


@dataclass
class Meddled:
    """A workflow, and what many have done to it at once."""

    handle: WorkflowHandle[Any]
    #: What was done, from when to when, for those that said that it was.
    done: list[tuple[str, float, float]] = field(default_factory=list)
    #: How often the bodies had run of the nodes that a cancel has skipped, by when that cancel began.
    skipped: dict[float, dict[int, int]] = field(default_factory=dict)

    def do(self, what: str) -> float:
        """Do that, note it, and return how long it took."""
        began = time.monotonic()
        is_done = self.handle.send_event("said") if what == "send_event" else getattr(self.handle, what)()
        ended = time.monotonic()
        if is_done:
            self.done.append((what, began, ended))
        if is_done and what == "cancel":
            self.skipped[began] = {node.pk: runs for node, runs in bodies(self.handle) if node.status == "SKIPPED"}
        return ended - began

    def wrong(self):
        """Yield what is not as it should be, now that all is over."""
        found = dict(bodies(self.handle))
        for node, runs in found.items():
            fails = 0 if node.map_index is not None and node.kwargs["item"] != 1 else node.kwargs.get("fails", 0)
            allowed = {"COMPLETED": range(fails + 1, fails + 2), "FAILED": range(1, fails + 1)}
            if runs not in allowed.get(node.status, range(fails + 1)):
                yield f"{node.node_id} is {node.status}, and has run {runs} times; it fails {fails} times"
        cancelled = max(self.skipped, default=0.0)
        if cancelled > max((ended for what, _, ended in self.done if what == "retry"), default=0.0):
            if self.handle.status() != "CANCELLED":
                yield f"it was cancelled for good, and is {self.handle.status()}"
            for node, runs in found.items():
                if self.skipped[cancelled].get(node.pk, runs) != runs:
                    yield f"{node.node_id} was skipped for good, and has run"
        for row in WorkflowRow.objects.filter(root_id=self.handle.id):
            yield from contradictions(WorkflowHandle(row.pk))


ACTIONS = ["pause"] * 4 + ["resume"] * 6 + ["cancel"] * 2 + ["retry"] * 3 + ["send_event"] * 3


def meddle(runs, number, seed, times):
    """Start workflows, and do to them, and to those of the others, what comes to mind."""
    random = Random(seed)
    try:
        for one in range(number):
            runs.append(Meddled(race_jobs.anything(f"{seed}-{one}", random).start()))
            for _ in range(6):
                times.append(random.choice(runs[-12:]).do(random.choice(ACTIONS)))
                time.sleep(random.choice([0, 0, 0.01, 0.03]))
    except BaseException:
        times.append(float("inf"))
        raise
    finally:
        connection.close()


def deadlocks():
    """Return how many PostgreSQL has seen in this database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return cursor.fetchone()[0]


def let_them_end(runs):
    """Let everything go on until it has ended."""
    by_id = {run.handle.id: run for run in runs}
    for run in runs:
        run.do("send_event")

    def is_over():
        for key in WorkflowRow.objects.filter(status="PAUSED", depth=0).values_list("pk", flat=True):
            by_id[key].do("resume")
        return have_ended() and not WorkflowTask.objects.exclude(status__in=WORKFLOW_TASK_TERMINAL_STATES).exists()

    wait_until(is_over, 120, "all have ended")


@pytest.mark.parametrize("count", [8, pytest.param(60, marks=SLOW)])
def test_user_actions_that_race_with_workers_neither_deadlock_nor_lose_nodes(worker, count):
    """Workflows are paused, resumed, cancelled, retried and sent events by four threads, while workers run them."""
    before = deadlocks() if connection.vendor == "postgresql" else 0
    flags = ("--processes", "1", "--threads", "4", "--no-reaper")  # which would mend what got lost
    workers = [worker(*flags, TEST_IMPORT="tests.workflows.race_jobs") for _ in range(2)]
    runs, times = list[Meddled](), list[float]()
    people = [threading.Thread(target=meddle, args=(runs, count // 4, seed, times)) for seed in range(4)]

    for person in people:
        person.start()
    for person in people:
        person.join(240)
    let_them_end(runs)

    for process in workers:
        quietly(process)
    assert len(runs) == count
    assert max(times) < 20
    assert (deadlocks() if connection.vendor == "postgresql" else 0) == before
    assert [(run.handle, wrong) for run in runs for wrong in run.wrong()] == []
    done = Counter(what for run in runs for what, *_ in run.done)
    assert min(done[what] for what in set(ACTIONS)) >= (count - 20) / 20, done  # of few it is a matter of luck
