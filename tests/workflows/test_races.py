"""Races between worker processes and the actions of users."""

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
from tests.workflows.runs import inconsistencies

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

#: Seconds within which two nodes end "at the same instant".
INSTANT = 0.02


def all_workflows_have_ended():
    return not WorkflowRow.objects.exclude(status__in=WORKFLOW_TERMINAL_STATES).exists()


def stop_and_check_output(process):
    """Stop a worker, and fail if its output has an error."""
    output = process.stop()
    for text in ("deadlock", "40P01", "Traceback", "database is locked"):
        assert text not in output, output[max(0, output.find(text) - 2_000) :][:5_000]


# Diamonds.


def count_simultaneous_ends(keys):
    """Return how many of these diamonds had their two sides end at the same instant on two workers."""
    nodes = WorkflowTask.objects.filter(node_id__in=[f"{key}-{side}" for key in keys for side in ("left", "right")])
    rows = nodes.values_list("node_id", "result", "task_id")
    ends = {node_id: (result["ok"], task_id) for node_id, result, task_id in rows}
    workers = dict(TaskAttempt.objects.values_list("task_id", "worker_id"))
    count = 0
    for key in keys:
        (left, left_task), (right, right_task) = ends[f"{key}-left"], ends[f"{key}-right"]
        count += abs(left - right) < INSTANT and workers[left_task] != workers[right_task]
    return count


NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(("count", "trees"), [(30, 3), pytest.param(500, 500, marks=NIGHTLY), (500, 5)])
def test_a_diamond_completes_once_when_two_workers_end_its_sides_at_once(worker, tmp_path, count, trees):
    """Each diamond is a workflow of its own, or several share one."""
    keys = [f"d{number}" for number in range(count)]
    workers = [
        worker("--queues", f"{side},default", "--processes", "1", "--threads", "8") for side in ("left", "right")
    ]

    handles = []
    for tree in range(trees):
        nodes = [node for key in keys[tree::trees] for node in race_jobs.diamond(str(tmp_path), key)]
        handles.append(Workflow("diamonds", nodes).start())
    wait_until(all_workflows_have_ended, 300)

    for process in workers:
        stop_and_check_output(process)
    assert Counter(str(handle.status()) for handle in handles) == {"COMPLETED": trees}
    runs = Counter(Entry.objects.values_list("key", flat=True))
    assert runs == dict.fromkeys(keys, 1)
    assert [found for handle in handles for found in inconsistencies(handle)] == []
    assert count_simultaneous_ends(keys) >= count / 4  # most do; a worker that stalls misses all its claimed tasks


# User actions.


def body_runs(run):
    """Yield each node of a run and its subworkflows whose body counts its runs, and that count."""
    nodes = WorkflowTask.objects.filter(workflow__root_id=run.id, task_name__contains="racing.work").exclude(kind="map")
    keys = {node: node.kwargs["key"] + ("" if node.map_index is None else f"[{node.kwargs['item']}]") for node in nodes}
    counts = Counter(Entry.objects.filter(key__in=keys.values()).values_list("key", flat=True))
    for node, key in keys.items():
        yield node, counts[key]


@dataclass
class DisturbedRun:
    """A workflow, and the actions that several users took on it at once."""

    handle: WorkflowHandle[Any]
    #: The actions that reported success, each with its start and end.
    done: list[tuple[str, float, float]] = field(default_factory=list)
    #: By the start of each cancel: how often the bodies of the nodes that it skipped had run.
    skipped: dict[float, dict[int, int]] = field(default_factory=dict)

    def do(self, action: str) -> float:
        """Take an action, record it, and return how long it took."""
        began = time.monotonic()
        is_done = self.handle.send_event("approval") if action == "send_event" else getattr(self.handle, action)()
        ended = time.monotonic()
        if is_done:
            self.done.append((action, began, ended))
        if is_done and action == "cancel":
            self.skipped[began] = {node.pk: runs for node, runs in body_runs(self.handle) if node.status == "SKIPPED"}
        return ended - began

    def problems(self):
        """Yield a message for each thing that is wrong with the run after its end."""
        found = dict(body_runs(self.handle))
        for node, runs in found.items():
            fails = 0 if node.map_index is not None and node.kwargs["item"] != 1 else node.kwargs.get("fails", 0)
            allowed = {"COMPLETED": range(fails + 1, fails + 2), "FAILED": range(1, fails + 1)}
            if runs not in allowed.get(node.status, range(fails + 1)):
                yield f"{node.node_id} is {node.status} and has run {runs} times; it fails {fails} times"
        cancelled = max(self.skipped, default=0.0)
        if cancelled > max((ended for action, _, ended in self.done if action == "retry"), default=0.0):
            if self.handle.status() != "CANCELLED":
                yield f"the last cancel ended the workflow, but it is {self.handle.status()}"
            for node, runs in found.items():
                if self.skipped[cancelled].get(node.pk, runs) != runs:
                    yield f"the last cancel skipped {node.node_id}, but it has run"
        for row in WorkflowRow.objects.filter(root_id=self.handle.id):
            yield from inconsistencies(WorkflowHandle(row.pk))


ACTIONS = ["pause"] * 4 + ["resume"] * 6 + ["cancel"] * 2 + ["retry"] * 3 + ["send_event"] * 3


def disturb(runs, number, seed, times):
    """Start workflows, and take random actions on them and on those of the other users."""
    random = Random(seed)
    try:
        for one in range(number):
            runs.append(DisturbedRun(race_jobs.random_workflow(f"{seed}-{one}", random).start()))
            for _ in range(6):
                times.append(random.choice(runs[-12:]).do(random.choice(ACTIONS)))
                time.sleep(random.choice([0, 0, 0.01, 0.03]))
    except BaseException:
        times.append(float("inf"))
        raise
    finally:
        connection.close()


def count_deadlocks():
    """Return how many deadlocks PostgreSQL has counted in this database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return cursor.fetchone()[0]


def let_all_end(runs):
    """Send the events and resume the workflows until all have ended."""
    by_id = {run.handle.id: run for run in runs}
    for run in runs:
        run.do("send_event")

    def is_done():
        for key in WorkflowRow.objects.filter(status="PAUSED", depth=0).values_list("pk", flat=True):
            by_id[key].do("resume")
        return (
            all_workflows_have_ended()
            and not WorkflowTask.objects.exclude(status__in=WORKFLOW_TASK_TERMINAL_STATES).exists()
        )

    wait_until(is_done, 120, "all have ended")


@pytest.mark.parametrize("count", [8, pytest.param(60, marks=NIGHTLY)])
def test_user_actions_that_race_with_workers_neither_deadlock_nor_lose_nodes(worker, count):
    """Four threads pause, resume, cancel, retry and send events to workflows while workers run them."""
    before = count_deadlocks() if connection.vendor == "postgresql" else 0
    flags = ("--processes", "1", "--threads", "4", "--no-reaper")  # which would repair lost nodes
    workers = [worker(*flags, TEST_IMPORT="tests.workflows.race_jobs") for _ in range(2)]
    runs, times = list[DisturbedRun](), list[float]()
    users = [threading.Thread(target=disturb, args=(runs, count // 4, seed, times)) for seed in range(4)]

    for user in users:
        user.start()
    for user in users:
        user.join(240)
    let_all_end(runs)

    for process in workers:
        stop_and_check_output(process)
    assert len(runs) == count
    assert max(times) < 60  # seconds: no action waits for a timeout
    assert (count_deadlocks() if connection.vendor == "postgresql" else 0) == before
    assert [(run.handle, problem) for run in runs for problem in run.problems()] == []
    done = Counter(action for run in runs for action, *_ in run.done)
    assert min(done[action] for action in set(ACTIONS)) >= (count - 20) / 20, done  # with few runs it depends on chance
