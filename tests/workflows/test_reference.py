"""Random graphs, started, paused, resumed, cancelled and retried at random: each ends as the reference says."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from horsies_django import Join, OnError, Workflow
from horsies_django.models import WorkflowTask
from horsies_django.workflows.states import WORKFLOW_TASK_TERMINAL_STATES
from tests.jobs.models import Entry
from tests.workflows import bodies
from tests.workflows.reference import SKIPPED, UNWANTED, Reference, Spec
from tests.workflows.running import contradictions, step

pytestmark = pytest.mark.django_db(transaction=True)

ACTIONS = ("step", "step", "steps", "pause", "resume", "cancel", "retry", "drain")
EXAMPLES = settings(
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)


@st.composite
def specs(draw, most):
    """Return nodes, each of which waits for some before it."""
    size = draw(st.integers(1, most))
    found = []
    for index in range(size):
        sources = draw(st.sets(st.integers(0, index - 1), max_size=min(index, 4))) if index else set()
        spec = Spec(
            waits_for=tuple(sorted(sources)),
            allows=draw(st.integers(0, 3)) == 0,
            fails=draw(st.sampled_from([0, 0, 0, 1, 2, 99])),
            wish=draw(st.sampled_from([None, None, None, None, True, False])),
        )
        join = draw(st.sampled_from(["all", "all", "any", "quorum"])) if sources else "all"
        least = draw(st.integers(1, len(sources))) if join == "quorum" else None
        found.append(replace(spec, join=join, min_success=least))
    return found


def built(nodes, key, on_error):
    """Return the workflow that is written so."""
    made = []
    for index, spec in enumerate(nodes):
        condition = {None: {}, True: {"run_when": bodies.yes}, False: {"skip_when": bodies.yes}}[spec.wish]
        node = bodies.try_.node(
            node_id=f"n{index}",
            waits_for=[made[source] for source in spec.waits_for],
            join=Join(spec.join),
            min_success=spec.min_success,
            allow_failed_deps=spec.allows,
            **condition,
        )
        made.append(node(key=f"{key} {index}", fails=spec.fails))
    return Workflow("random", made, on_error=on_error)


def ended(handle):
    """Return the states of the nodes that have ended, as the reference names them."""
    rows = WorkflowTask.objects.filter(workflow=handle.id, status__in=WORKFLOW_TASK_TERMINAL_STATES)
    return {
        index: UNWANTED if (status, code) == (SKIPPED, "CONDITION_NOT_MET") else status
        for index, status, code in rows.values_list("task_index", "status", "error_code")
    }


def runs(key, size):
    keys = list(Entry.objects.filter(key__startswith=f"{key} ").values_list("key", flat=True))
    return {index: keys.count(f"{key} {index}") for index in range(size)}


def play(nodes, actions, on_error, drain):
    """Do all that, and hold what has become of it against the reference, again and again."""
    key = uuid4().hex
    reference = Reference(nodes)
    handle = built(nodes, key, on_error).start()
    for action in actions:
        was = str(handle.status())
        before = handle.tasks()
        if action == "step":
            step(2)
        elif action == "steps":
            step(8)
        elif action == "drain":
            drain()
        elif action == "cancel":
            reference.see(ended(handle), runs(key, len(nodes)))
            assert handle.cancel() == (was in ("RUNNING", "PAUSED"))
            if was in ("RUNNING", "PAUSED"):
                reference.cancel()
                assert (str(handle.status()), ended(handle)) == ("CANCELLED", reference.states)
        elif action == "retry":
            reference.see(ended(handle), runs(key, len(nodes)))
            reference.status = was
            assert handle.retry() == reference.retry()
        elif action == "pause":
            assert handle.pause() == (was == "RUNNING")
        elif action == "resume":
            assert handle.resume() == (was == "PAUSED")
        if was == "PAUSED" and action not in ("resume", "cancel"):
            assert handle.tasks() == before, f"{action} has changed a paused workflow"
        assert contradictions(handle) == [], action
    finish(handle, nodes, key, drain)


def finish(handle, nodes, key, drain):
    """Let it come to its end, and then to the best end that it can have."""
    reference = Reference(nodes)
    reference.see(ended(handle), runs(key, len(nodes)))
    if str(handle.status()) == "CANCELLED":
        reference.status = "CANCELLED"
    else:
        run_to_the_end(handle, nodes, drain)
        reference.run()
    judge(handle, reference, key)
    for _ in range(3):
        assert handle.retry() == reference.retry()
        if reference.status != "RUNNING":
            break
        run_to_the_end(handle, nodes, drain)
        reference.run()
        judge(handle, reference, key)


def run_to_the_end(handle, nodes, drain):
    drain()
    for _ in nodes:  # with on_error=PAUSE each failure pauses it
        if not handle.resume():
            break
        drain()


def judge(handle, reference, key):
    assert ended(handle) == reference.states
    assert str(handle.status()) == reference.status
    assert runs(key, len(reference.specs)) == reference.runs
    assert contradictions(handle) == []


@given(specs(25), st.sampled_from(OnError))
@settings(EXAMPLES, max_examples=8)
def test_random_graphs_end_as_the_reference_says(drain, nodes, on_error):
    play(nodes, [], on_error, drain)


@given(specs(15), st.lists(st.sampled_from(ACTIONS), max_size=8), st.sampled_from(OnError))
@settings(EXAMPLES, max_examples=12)
def test_whatever_is_done_to_them_in_between(drain, nodes, actions, on_error):
    play(nodes, actions, on_error, drain)


@pytest.mark.slow
@given(specs(60), st.lists(st.sampled_from(ACTIONS), max_size=25), st.sampled_from(OnError))
@settings(EXAMPLES, max_examples=200)
def test_large_graphs_and_much_done_to_them(drain, nodes, actions, on_error):
    play(nodes, actions, on_error, drain)
