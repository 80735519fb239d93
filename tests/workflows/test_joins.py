"""Every join, with every combination of ends of the nodes that it waits for."""

from __future__ import annotations

from itertools import product

import pytest

from horsies_django import Join, Workflow
from tests.workflows import bodies
from tests.workflows.runs import codes, inconsistencies, start_and_drain, states

pytestmark = pytest.mark.once

#: How a node ends; its own condition skips an unwanted one.
OUTCOMES = ("ok", "failed", "skipped", "unwanted")


def expected(join: Join, least: int | None, outcomes: tuple[str, ...], allows: bool) -> str:
    """Return the status that the spec gives a node after these outcomes."""
    completed = outcomes.count("ok")
    if join == Join.ANY:
        runs = completed >= 1
    elif join == Join.QUORUM:
        runs = completed >= (least or 0)
    else:
        runs = allows or not {"failed", "skipped"} & set(outcomes)
    return "COMPLETED" if runs else "SKIPPED"


def sources():
    """Return three nodes for each outcome, and the failed node that the skipped ones wait for."""
    nodes = {"bad": bodies.fail.node()()}
    for number in range(3):
        nodes[f"ok{number}"] = bodies.echo.node()(value=number)
        nodes[f"failed{number}"] = bodies.fail.node()()
        nodes[f"skipped{number}"] = bodies.echo.node(waits_for=[nodes["bad"]])()
        nodes[f"unwanted{number}"] = bodies.echo.node(run_when=bodies.no)()
    return nodes


def cases(size):
    for outcomes, allows in product(product(OUTCOMES, repeat=size), (False, True)):
        yield Join.ALL, None, outcomes, allows
        yield Join.ANY, None, outcomes, allows
        for least in range(1, size + 1):
            yield Join.QUORUM, least, outcomes, allows


def workflow_of_cases(size):
    """Return a workflow with a node for each case, and the expected status of each."""
    nodes = sources()
    expected_states = {}
    for join, least, outcomes, allows in cases(size):
        name = f"{join}{least or ''}:{'-'.join(outcomes)}:{'allows' if allows else 'strict'}"
        waits_for = [nodes[f"{outcome}{index}"] for index, outcome in enumerate(outcomes)]
        nodes[name] = bodies.echo.node(waits_for=waits_for, join=join, min_success=least, allow_failed_deps=allows)()
        expected_states[name] = expected(join, least, outcomes, allows)
    return Workflow("joins", nodes), expected_states


def check_every_case(size, drain):
    workflow, expected_states = workflow_of_cases(size)

    handle = start_and_drain(workflow, drain)

    found = states(handle)
    assert {name: (found[name], status) for name, status in expected_states.items() if found[name] != status} == {}
    code = codes(handle)
    assert {code[name] for name, status in expected_states.items() if status == "SKIPPED"} == {"UPSTREAM_SKIPPED"}
    assert {code[f"unwanted{number}"] for number in range(3)} == {"CONDITION_NOT_MET"}
    assert {found[f"unwanted{number}"] for number in range(3)} == {"SKIPPED"}
    assert str(handle.status()) == "FAILED"
    assert inconsistencies(handle) == []


def test_every_join_follows_the_spec_for_one_dependency(drain):
    check_every_case(1, drain)


@pytest.mark.slow
def test_every_join_follows_the_spec_for_two_dependencies(drain):
    check_every_case(2, drain)


@pytest.mark.slow
def test_every_join_follows_the_spec_for_three_dependencies(drain):
    check_every_case(3, drain)


def test_skips_cascade_until_a_node_allows_failed_dependencies(drain):
    first = bodies.fail.node(node_id="first")()
    second = bodies.echo.node(node_id="second", waits_for=[first])()
    third = bodies.echo.node(node_id="third", waits_for=[second])()
    fourth = bodies.echo.node(node_id="fourth", waits_for=[third], allow_failed_deps=True)()
    fifth = bodies.echo.node(node_id="fifth", waits_for=[fourth])()

    handle = start_and_drain(Workflow("skips", [first, second, third, fourth, fifth]), drain)

    assert states(handle) == {
        "first": "FAILED",
        "second": "SKIPPED",
        "third": "SKIPPED",
        "fourth": "COMPLETED",
        "fifth": "COMPLETED",
    }
    assert str(handle.status()) == "FAILED"


def test_a_join_on_any_runs_at_the_first_success(drain):
    quick, slow = bodies.echo.node(node_id="quick")(), bodies.echo.node(node_id="slow", queue_name="slow")()
    first = bodies.echo.node(node_id="first", waits_for=[quick, slow], join=Join.ANY)()
    handle = Workflow("any", [quick, slow, first]).start()

    drain(queues="default")
    before = states(handle)
    drain()

    assert before == {"quick": "COMPLETED", "slow": "ENQUEUED", "first": "COMPLETED"}
    assert str(handle.status()) == "COMPLETED"


def test_a_node_is_skipped_as_soon_as_its_quorum_is_out_of_reach(drain):
    good, bad = bodies.echo.node(node_id="good")(), bodies.fail.node(node_id="bad")()
    slow = bodies.echo.node(node_id="slow", queue_name="slow")()
    three = bodies.echo.node(node_id="three", waits_for=[good, bad, slow], join=Join.QUORUM, min_success=3)()
    two = bodies.echo.node(node_id="two", waits_for=[good, bad, slow], join=Join.QUORUM, min_success=2)()
    handle = Workflow("quorum", [good, bad, slow, three, two]).start()

    drain(queues="default")

    assert states(handle)["three"] == "SKIPPED"
    assert states(handle)["two"] == "PENDING"
    assert inconsistencies(handle) == []
    drain()
    assert states(handle)["two"] == "COMPLETED"


def test_a_node_waits_for_all_its_context_sources_whatever_its_join(drain):
    first, second = bodies.echo.node(node_id="first")(value=1), bodies.fail.node(node_id="second", queue_name="slow")()
    look = bodies.describe_context.node(
        node_id="look", waits_for=[first, second], join=Join.ANY, workflow_ctx_from=[first, second]
    )()
    handle = Workflow("context", [first, second, look]).start()

    drain(queues="default")
    before = states(handle)
    drain()

    assert before == {"first": "COMPLETED", "second": "ENQUEUED", "look": "PENDING"}
    assert handle.result_for("look").ok["results"] == {"first": "ok 1", "second": "err NO"}


def test_a_failure_skips_a_chain_of_300_nodes(drain):
    nodes = [bodies.fail.node()()]
    for _ in range(300):
        nodes.append(bodies.echo.node(waits_for=nodes[-1:])())

    handle = start_and_drain(Workflow("chain", nodes), drain)

    assert list(states(handle).values()) == ["FAILED"] + ["SKIPPED"] * 300
    assert inconsistencies(handle) == []


@pytest.mark.slow
def test_a_cascade_of_skips_spares_nodes_that_allow_failed_dependencies(drain):
    """Each tenth of 500 nodes has a dependent that allows failed dependencies, and that one a dependent too."""
    nodes = {"0": bodies.fail.node()()}
    for number in range(1, 500):
        nodes[str(number)] = bodies.echo.node(waits_for=[nodes[str(number - 1)]])(value=number)
        if number % 10 == 0:
            both = [nodes[str(number)], nodes[str(number - 1)]]
            nodes[f"rescue:{number}"] = bodies.echo.node(waits_for=both, allow_failed_deps=True)()
            nodes[f"after:{number}"] = bodies.echo.node(waits_for=[nodes[f"rescue:{number}"]])()
    expected_states = {name: "SKIPPED" if name.isdigit() else "COMPLETED" for name in nodes} | {"0": "FAILED"}

    handle = start_and_drain(Workflow("cascade", nodes), drain)

    assert states(handle) == expected_states
    assert handle.status() == "FAILED"
    assert inconsistencies(handle) == []
