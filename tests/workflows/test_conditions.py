"""Conditions of nodes: evaluated once, when the dependencies have ended."""

from __future__ import annotations

import pytest

from horsies_django import InvalidWorkflow, Join, Workflow
from tests.workflows import bodies, jobs
from tests.workflows.runs import codes, inconsistencies, start_and_drain, states, times

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
    one = bodies.echo.node(node_id="one", **conditions)(value=1)
    after = bodies.echo.node(node_id="after", waits_for=[one])()

    handle = start_and_drain(Workflow("conditions", [one, after]), drain)

    assert codes(handle) == {"one": None if runs else "CONDITION_NOT_MET", "after": None}
    assert states(handle) == {"one": "COMPLETED" if runs else "SKIPPED", "after": "COMPLETED"}
    assert str(handle.status()) == "COMPLETED"
    assert inconsistencies(handle) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [5, 50])
def test_conditions_choose_one_of_two_branches(drain, number):
    first = bodies.echo.node(node_id="first")(value=number)
    large = bodies.echo.node(node_id="large", waits_for=[first], run_when=bodies.first_is_large)(value="large")
    small = bodies.echo.node(node_id="small", waits_for=[first], skip_when=bodies.first_is_large)(value="small")
    join = bodies.echo.node(node_id="join", waits_for=[large, small], join=Join.ANY)(value=[large, small])

    handle = start_and_drain(Workflow("branch", [first, large, small, join], output=join), drain)

    assert handle.get(timeout=0).ok == (["large"] if number > 10 else ["small"])


@pytest.mark.slow
def test_a_condition_is_evaluated_once_and_not_for_a_skipped_node(drain):
    bad = bodies.fail.node(node_id="bad")()
    never = bodies.echo.node(node_id="never", waits_for=[bad], run_when=bodies.record_evaluation)()
    once = bodies.flaky.node(node_id="once", run_when=bodies.record_evaluation)(key="once", fails=1)

    handle = start_and_drain(Workflow("asked", [bad, never, once]), drain)
    handle.retry()
    drain()

    assert codes(handle) == {"bad": "NO", "never": "UPSTREAM_SKIPPED", "once": None}
    assert (times("evaluated-never"), times("evaluated-once")) == (0, 1)


def test_a_condition_that_raises_fails_its_node(drain):
    one = bodies.echo.node(node_id="one", run_when=bodies.broken)()
    after = bodies.echo.node(node_id="after", waits_for=[one])()

    handle = start_and_drain(Workflow("broken", [one, after]), drain)

    assert codes(handle) == {"one": "UNHANDLED_EXCEPTION", "after": "UPSTREAM_SKIPPED"}
    assert str(handle.status()) == "FAILED"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["task", "map", "subworkflow"])
def test_a_node_does_not_start_if_its_condition_pauses_the_workflow(drain, kind):
    items = bodies.echo.node(node_id="items")(value=[2])
    if kind == "task":
        node = bodies.flaky.node(node_id="node", waits_for=[items], run_when=bodies.pausing)(key="node")
    elif kind == "map":
        node = bodies.flaky_item.map(
            over=items, param="item", kwargs={"key": "node"}, node_id="node", run_when=bodies.pausing
        )
    else:
        node = bodies.Leaf.node(node_id="node", waits_for=[items], run_when=bodies.pausing)(key="node")

    handle = start_and_drain(Workflow("paused", [items, node]), drain)

    assert (str(handle.status()), states(handle)["node"]) == ("PAUSED", "READY")
    assert inconsistencies(handle) == []
    assert handle.resume()
    drain()
    assert str(handle.status()) == "COMPLETED"
    assert times("node-2" if kind == "map" else "node") == 1


def test_a_node_does_not_start_if_its_condition_cancels_the_workflow(drain):
    one = bodies.flaky.node(node_id="one", run_when=bodies.cancelling)(key="one")

    handle = start_and_drain(Workflow("cancelled", [one]), drain)

    assert codes(handle) == {"one": "WORKFLOW_CANCELLED"}
    assert states(handle) == {"one": "SKIPPED"}
    assert times("one") == 0
    assert inconsistencies(handle) == []


@pytest.mark.slow
def test_the_cancel_of_another_workflow_does_not_keep_a_node_with_a_condition_from_starting(drain):
    Workflow("cancelled", {"one": bodies.echo.node()()}).start().cancel()

    handle = start_and_drain(Workflow("running", {"one": bodies.echo.node(run_when=bodies.yes)()}), drain)

    assert (str(handle.status()), states(handle)) == ("COMPLETED", {"one": "COMPLETED"})


@pytest.mark.slow
def test_a_map_is_skipped_if_a_condition_skips_its_source(drain):
    items = bodies.echo.node(node_id="items", run_when=bodies.no)(value=[1])
    each = bodies.echo.map(over=items, node_id="each")
    after = bodies.echo.node(node_id="after", waits_for=[each])()

    handle = start_and_drain(Workflow("unwanted", [items, each, after]), drain)

    assert codes(handle) == {"items": "CONDITION_NOT_MET", "each": "CONDITION_NOT_MET", "after": None}
    assert str(handle.status()) == "COMPLETED"
    assert inconsistencies(handle) == []


def test_an_argument_from_a_conditional_node_needs_a_default():
    one = bodies.echo.node(run_when=bodies.no)()

    with pytest.raises(InvalidWorkflow, match=r"HRS-020.*has a condition"):
        Workflow("missing", [one, jobs.unhinted.node()(value=one)])
    Workflow("there", [one, bodies.echo.node()(value=one), bodies.describe_outcome.node()(outcome=one.result)])
