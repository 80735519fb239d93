"""Conditions of nodes: evaluated once, when the dependencies have ended."""

from __future__ import annotations

import pytest

from horsies_django import InvalidWorkflow, Join, Workflow
from tests.workflows import bodies, jobs
from tests.workflows.runs import codes, contradictions, ran, states, times

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("conditions", "runs"),
    [
        ({"run_when": bodies.yes}, True),
        ({"run_when": bodies.no}, False),
        ({"skip_when": bodies.yes}, False),
        ({"skip_when": bodies.no}, True),
        ({"run_when": bodies.yes, "skip_when": bodies.no}, True),
        ({"run_when": bodies.yes, "skip_when": bodies.yes}, False),
        ({"run_when": bodies.no, "skip_when": bodies.no}, False),
    ],
)
def test_a_node_runs_as_its_conditions_say(drain, conditions, runs):
    one = bodies.give.node(node_id="one", **conditions)(value=1)
    after = bodies.give.node(node_id="after", waits_for=[one])()

    handle = ran(Workflow("conditions", [one, after]), drain)

    assert codes(handle) == {"one": None if runs else "CONDITION_NOT_MET", "after": None}
    assert states(handle) == {"one": "COMPLETED" if runs else "SKIPPED", "after": "COMPLETED"}
    assert str(handle.status()) == "COMPLETED"
    assert contradictions(handle) == []


@pytest.mark.parametrize("number", [5, 50])
def test_conditions_choose_one_of_two_branches(drain, number):
    first = bodies.give.node(node_id="first")(value=number)
    large = bodies.give.node(node_id="large", waits_for=[first], run_when=bodies.first_is_large)(value="large")
    small = bodies.give.node(node_id="small", waits_for=[first], skip_when=bodies.first_is_large)(value="small")
    join = bodies.give.node(node_id="join", waits_for=[large, small], join=Join.ANY)(value=[large, small])

    handle = ran(Workflow("branch", [first, large, small, join], output=join), drain)

    assert handle.get(timeout=0).ok == (["large"] if number > 10 else ["small"])


def test_a_condition_is_evaluated_once_and_not_for_a_skipped_node(drain):
    bad = bodies.fail.node(node_id="bad")()
    never = bodies.give.node(node_id="never", waits_for=[bad], run_when=bodies.noted)()
    once = bodies.try_.node(node_id="once", run_when=bodies.noted)(key="once", fails=1)

    handle = ran(Workflow("asked", [bad, never, once]), drain)
    handle.retry()
    drain()

    assert codes(handle) == {"bad": "NO", "never": "UPSTREAM_SKIPPED", "once": None}
    assert (times("asked-never"), times("asked-once")) == (0, 1)


def test_a_condition_that_raises_fails_its_node(drain):
    one = bodies.give.node(node_id="one", run_when=bodies.broken)()
    after = bodies.give.node(node_id="after", waits_for=[one])()

    handle = ran(Workflow("broken", [one, after]), drain)

    assert codes(handle) == {"one": "UNHANDLED_EXCEPTION", "after": "UPSTREAM_SKIPPED"}
    assert str(handle.status()) == "FAILED"


@pytest.mark.parametrize("kind", ["task", "map", "subworkflow"])
def test_a_node_does_not_start_if_its_condition_pauses_the_workflow(drain, kind):
    items = bodies.give.node(node_id="items")(value=[2])
    if kind == "task":
        node = bodies.try_.node(node_id="node", waits_for=[items], run_when=bodies.pausing)(key="node")
    elif kind == "map":
        node = bodies.try_item.map(
            over=items, param="item", kwargs={"key": "node"}, node_id="node", run_when=bodies.pausing
        )
    else:
        node = bodies.Leaf.node(node_id="node", waits_for=[items], run_when=bodies.pausing)(key="node")

    handle = ran(Workflow("paused", [items, node]), drain)

    assert (str(handle.status()), states(handle)["node"]) == ("PAUSED", "READY")
    assert contradictions(handle) == []
    assert handle.resume()
    drain()
    assert str(handle.status()) == "COMPLETED"
    assert times("node-2" if kind == "map" else "node") == 1


def test_a_node_does_not_start_if_its_condition_cancels_the_workflow(drain):
    one = bodies.try_.node(node_id="one", run_when=bodies.cancelling)(key="one")

    handle = ran(Workflow("cancelled", [one]), drain)

    assert codes(handle) == {"one": "WORKFLOW_CANCELLED"}
    assert states(handle) == {"one": "SKIPPED"}
    assert times("one") == 0
    assert contradictions(handle) == []


def test_a_map_is_skipped_if_a_condition_skips_its_source(drain):
    items = bodies.give.node(node_id="items", run_when=bodies.no)(value=[1])
    each = bodies.give.map(over=items, node_id="each")
    after = bodies.give.node(node_id="after", waits_for=[each])()

    handle = ran(Workflow("unwanted", [items, each, after]), drain)

    assert codes(handle) == {"items": "CONDITION_NOT_MET", "each": "CONDITION_NOT_MET", "after": None}
    assert str(handle.status()) == "COMPLETED"
    assert contradictions(handle) == []


def test_an_argument_from_a_conditional_node_needs_a_default():
    one = bodies.give.node(run_when=bodies.no)()

    with pytest.raises(InvalidWorkflow, match=r"HRS-020.*has a condition"):
        Workflow("missing", [one, jobs.unhinted.node()(value=one)])
    Workflow("there", [one, bodies.give.node()(value=one), bodies.judge.node()(outcome=one.result)])
