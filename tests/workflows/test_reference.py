"""Random graphs with random pauses, resumes, cancels, retries and crashes: each ends as the reference predicts."""

from __future__ import annotations

import os
from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from horsies_django import Join, OnError, RetryPolicy, Workflow
from horsies_django.core.workflow_status import WORKFLOW_TASK_TERMINAL_STATES
from horsies_django.models import WorkflowTask
from tests.jobs.models import Entry
from tests.workflows import bodies
from tests.workflows.reference import SKIPPED, SKIPPED_BY_CONDITION, Reference, Spec
from tests.workflows.runs import (
    all_inconsistencies,
    claim_as_dead_worker,
    make_due,
    reap,
    step,
)

pytestmark = pytest.mark.django_db(transaction=True)

ACTIONS = ("step", "step", "steps", "crash", "pause", "resume", "cancel", "retry", "drain_all")
KINDS = ("task", "task", "task", "map", "subworkflow")
EXAMPLES = settings(
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)


@st.composite
def specs(draw, most):
    """Return nodes, each of which may wait for earlier ones."""
    size = draw(st.integers(1, most))
    found = []
    for index in range(size):
        sources = draw(st.sets(st.integers(0, index - 1), max_size=min(index, 4))) if index else set()
        spec = Spec(
            waits_for=tuple(sorted(sources)),
            allows=draw(st.integers(0, 3)) == 0,
            fails=draw(st.sampled_from([0, 0, 0, 1, 2, 99])),
            condition=draw(st.sampled_from([None, None, None, None, True, False])),
        )
        kind = draw(st.sampled_from(KINDS))
        join = draw(st.sampled_from(["all", "all", "any", "quorum"])) if sources and kind != "map" else "all"
        least = draw(st.integers(1, len(sources))) if join == "quorum" else None
        found.append(replace(spec, kind=kind, join=join, min_success=least))
    return found


def build_workflow(nodes, key, on_error):
    """Return the workflow that these specs describe."""
    built = []
    policy = RetryPolicy.fixed([1] * 20, auto_retry_for=["WORKER_CRASHED"])
    items = bodies.echo.node(node_id="items", retry_policy=policy)(value=[0, 1])  # not part of the reference
    for index, spec in enumerate(nodes):
        condition = {None: {}, True: {"run_when": bodies.yes}, False: {"skip_when": bodies.yes}}[spec.condition]
        options = {
            "node_id": f"n{index}",
            "waits_for": [built[source] for source in spec.waits_for],
            "join": Join(spec.join),
            "min_success": spec.min_success,
            "allow_failed_deps": spec.allows,
            **condition,
        }
        params = {"key": f"{key} {index}", "fails": spec.fails}
        if spec.kind == "map":  # only the odd one of its items can fail
            built.append(bodies.flaky_item.map(over=items, param="item", kwargs=params, **options))
        elif spec.kind == "subworkflow":
            built.append(bodies.Leaf.node(**options)(**params))
        else:
            built.append(bodies.flaky.node(**options)(**params))
    is_mapped = any(spec.kind == "map" for spec in nodes)
    return Workflow("random", [*built, *([items] if is_mapped else [])], on_error=on_error)


def ended_states(handle):
    """Return the states of the nodes that have ended, as the reference names them."""
    rows = WorkflowTask.objects.filter(
        workflow=handle.id, status__in=WORKFLOW_TASK_TERMINAL_STATES, map_index=None, node_id__startswith="n"
    )
    names = {"CONDITION_NOT_MET": SKIPPED_BY_CONDITION, "WORKFLOW_CANCELLED": SKIPPED}
    return {
        index: names.get(code, status) for index, status, code in rows.values_list("task_index", "status", "error_code")
    }


def open_outcomes(handle):
    """Return the outcomes that open maps and subworkflows will have, and whether the bodies inside have run.

    Of their other nodes, only those of a dead worker can have failed.
    """
    nodes = WorkflowTask.objects.filter(status__in=["COMPLETED", "FAILED"])
    below = nodes.filter(workflow__parent__workflow=handle.id)
    found = list(below.values_list("workflow__parent__task_index", "node_id", "status"))
    items = nodes.filter(workflow=handle.id, map_index__isnull=False)
    found += items.values_list("map_index", "node_id", "status")
    finished = ended_states(handle)
    coming = {}
    for index in {index for index, *_ in found} - set(finished):
        ends = {node_id: status for found_index, node_id, status in found if found_index == index}
        body = next((status for node_id, status in ends.items() if node_id == "one" or node_id.endswith("[1]")), None)
        if "FAILED" in ends.values() or body:
            coming[index] = ("FAILED" if "FAILED" in ends.values() else body, body is not None)
    return coming


def body_runs(key, size):
    keys = list(Entry.objects.filter(key__startswith=f"{key} ").values_list("key", flat=True))
    return {index: keys.count(f"{key} {index}") + keys.count(f"{key} {index}-1") for index in range(size)}


class ComparedRun:
    """A run, and the reference that it is compared with."""

    def __init__(self, nodes, on_error, drain):
        self.nodes, self.drain = nodes, drain
        self.key = uuid4().hex
        self.reference = Reference(nodes)
        self.handle = build_workflow(nodes, self.key, on_error).start()

    def do(self, action):
        """Take an action, and check that the rows are consistent."""
        status, before = self.status, self.handle.tasks()
        getattr(self, action)(status)
        if status == "PAUSED" and action not in ("resume", "cancel", "retry"):
            assert self.handle.tasks() == before, f"{action} has changed a paused workflow"
        assert all_inconsistencies(self.handle) == [], action

    def step(self, status):
        step(2)

    def steps(self, status):
        step(8)

    def crash(self, status):
        claim_as_dead_worker(2)
        reap()
        make_due()

    def drain_all(self, status):
        self.drain()

    def pause(self, status):
        assert self.handle.pause() == (status == "RUNNING")

    def resume(self, status):
        assert self.handle.resume() == (status == "PAUSED")

    def cancel(self, status):
        self.update_reference()
        assert self.handle.cancel() == (status in ("RUNNING", "PAUSED"))
        if status in ("RUNNING", "PAUSED"):
            self.reference.cancel()
            assert (self.status, ended_states(self.handle)) == ("CANCELLED", self.reference.states)

    def retry(self, status):
        self.update_reference()
        has_failed_within = status == "PAUSED" and self.has_failures
        assert self.handle.retry() == self.reference.retry(has_failed_within=has_failed_within)

    @property
    def has_failures(self):
        """Whether a node of the paused workflows has failed, also inside an open map or subworkflow."""
        rows = WorkflowTask.objects.filter(workflow__root_id=self.handle.id, workflow__status="PAUSED")
        return rows.filter(status__in=["FAILED", "SKIPPED"]).exclude(error_code="CONDITION_NOT_MET").exists()

    def retry_if_possible(self):
        """Retry the run if possible; return whether it runs."""
        assert self.handle.retry() == self.reference.retry()
        return self.reference.status == "RUNNING"

    def compare(self):
        """Compare the end of the run with the reference."""
        if self.reference.status != "CANCELLED":
            self.reference.run()
        assert ended_states(self.handle) == self.reference.states
        assert self.status == self.reference.status
        assert body_runs(self.key, len(self.nodes)) == self.reference.runs
        assert all_inconsistencies(self.handle) == []

    def update_reference(self):
        """Copy the progress of the run to the reference."""
        self.reference.copy_from(
            ended_states(self.handle), open_outcomes(self.handle), body_runs(self.key, len(self.nodes))
        )
        self.reference.status = self.status

    @property
    def status(self):
        return str(self.handle.status())


def finish(runs, drain):
    """Run all to their ends and compare them, then retry and compare them again."""
    for run in runs:
        run.update_reference()
    for _ in range(4):
        drain()
        while sum(run.handle.resume() for run in runs):  # with on_error=PAUSE each failure pauses it
            drain()
        for run in runs:
            run.compare()
        if not sum(run.retry_if_possible() for run in runs):
            break


def run_actions(nodes, actions, on_error, drain):
    """Take these actions on a run, and compare its end with the reference."""
    run = ComparedRun(nodes, on_error, drain)
    for action in actions:
        run.do(action)
    finish([run], drain)


@pytest.mark.slow
@pytest.mark.once
@given(st.lists(st.tuples(specs(25), st.sampled_from(OnError)), min_size=1, max_size=8))
@settings(EXAMPLES, max_examples=2)
def test_random_graphs_end_as_the_reference_predicts(drain, graphs):
    finish([ComparedRun(nodes, on_error, drain) for nodes, on_error in graphs], drain)


@pytest.mark.once
@given(specs(15), st.lists(st.sampled_from(ACTIONS), max_size=8), st.sampled_from(OnError))
@settings(EXAMPLES, max_examples=4)
@pytest.mark.slow
def test_random_graphs_with_random_actions_end_as_the_reference_predicts(drain, nodes, actions, on_error):
    run_actions(nodes, actions, on_error, drain)


@pytest.mark.nightly
@pytest.mark.slow
@given(specs(60), st.lists(st.sampled_from(ACTIONS), max_size=25), st.sampled_from(OnError))
@settings(EXAMPLES, max_examples=int(os.environ.get("TEST_EXAMPLES", "20")))
def test_large_graphs_with_many_actions_end_as_the_reference_predicts(drain, nodes, actions, on_error):
    run_actions(nodes, actions, on_error, drain)
