"""Inputs of nodes that come from earlier nodes."""

from __future__ import annotations

import pytest

from horsies_django import Join, NodeKey, RetryPolicy, Workflow
from tests.workflows import bodies
from tests.workflows.runs import codes, make_due, start_and_drain, states, times, value, wait_and_drain

pytestmark = pytest.mark.once


def test_a_node_gets_values_and_results_of_other_nodes(drain):
    one, bad = bodies.echo.node()(value={"a": [1, None, "é"]}), bodies.fail.node()()
    nodes = {
        "one": one,
        "bad": bad,
        "plain": bodies.echo.node()(value=one),
        "value": bodies.echo.node(waits_for=[one], values_from={"value": one})(),
        "result": bodies.describe_outcome.node(waits_for=[one], args_from={"outcome": one})(),
        "mark": bodies.describe_outcome.node()(outcome=one.result),
        "failed": bodies.describe_outcome.node(allow_failed_deps=True)(outcome=bad.result),
        "all": bodies.describe_arguments.node(allow_failed_deps=True)(one=one, bad=bad, other=bad.result, stored=5),
    }

    handle = start_and_drain(Workflow("values", nodes), drain)

    assert value(handle, "plain") == value(handle, "value") == {"a": [1, None, "é"]}
    assert value(handle, "result") == value(handle, "mark") == "ok {'a': [1, None, 'é']}"
    assert value(handle, "failed") == "err NO"
    assert value(handle, "all") == {"one": {"a": [1, None, "é"]}, "other": "err NO", "stored": 5}


def test_lists_keep_their_order_and_omit_values_of_failed_nodes(drain):
    nodes = {f"n{number}": bodies.echo.node()(value=number) for number in range(5)}
    nodes["bad"] = bodies.fail.node()()
    completed = [nodes["n3"], nodes["n1"], nodes["n4"]]
    with_failed = [nodes["n2"], nodes["bad"], nodes["n0"]]
    nodes |= {
        "values": bodies.echo.node()(value=completed),
        "results": bodies.describe_outcomes.node()(outcomes=[node.result for node in completed]),
        "holes": bodies.echo.node(allow_failed_deps=True)(value=with_failed),
        "errors": bodies.describe_outcomes.node(allow_failed_deps=True)(outcomes=[node.result for node in with_failed]),
    }

    handle = start_and_drain(Workflow("lists", nodes), drain)

    assert value(handle, "values") == [3, 1, 4]
    assert value(handle, "results") == ["ok 3", "ok 1", "ok 4"]
    assert value(handle, "holes") == [2, 0]
    assert value(handle, "errors") == ["ok 2", "err NO", "ok 0"]


@pytest.mark.parametrize("join", [{"join": Join.ANY}, {"join": Join.QUORUM, "min_success": 1}], ids=["any", "quorum"])
def test_sources_that_have_not_ended_are_left_out(drain, join):
    quick, slow = bodies.echo.node(node_id="quick")(value=1), bodies.echo.node(node_id="slow", queue_name="slow")()
    value_of = bodies.optional.node(node_id="value", waits_for=[quick, slow], values_from={"value": slow}, **join)()
    result_of = bodies.optional.node(node_id="result", waits_for=[quick, slow], args_from={"value": slow}, **join)()
    list_of = bodies.optional.node(node_id="list", waits_for=[quick, slow], **join)(value=[slow, quick])
    handle = Workflow("early", [quick, slow, value_of, result_of, list_of]).start()

    drain(queues="default")

    assert value(handle, "value") == value(handle, "result") == "nothing"
    assert value(handle, "list") == [1]


def test_a_skipped_source_is_an_err_result(drain):
    bad = bodies.fail.node()()
    skipped = bodies.echo.node(waits_for=[bad])()
    unwanted = bodies.echo.node(run_when=bodies.no)()
    nodes = {
        "bad": bad,
        "skipped": skipped,
        "unwanted": unwanted,
        "outcome": bodies.describe_outcome.node(allow_failed_deps=True)(outcome=skipped.result),
        "value": bodies.optional.node(allow_failed_deps=True)(value=skipped),
        "not wanted": bodies.describe_outcome.node()(outcome=unwanted.result),
    }

    handle = start_and_drain(Workflow("skipped", {name.replace(" ", "-"): node for name, node in nodes.items()}), drain)

    assert value(handle, "outcome") == "err UPSTREAM_SKIPPED"
    assert value(handle, "value") == "nothing"
    assert value(handle, "not-wanted") == "err CONDITION_NOT_MET"
    assert handle.result_for("skipped").err.error_code == "UPSTREAM_SKIPPED"


def test_the_context_has_the_listed_nodes(drain):
    first, second = bodies.echo.node(node_id="first")(value=1), bodies.fail.node(node_id="second")()
    other = bodies.echo.node(node_id="other")()
    look = bodies.describe_context.node(
        node_id="look",
        waits_for=[first, second, other],
        workflow_ctx_from=[first, second],
        allow_failed_deps=True,
    )()
    ask = bodies.read_unlisted_result.node(node_id="ask", waits_for=[first, other], workflow_ctx_from=[first])()

    handle = start_and_drain(Workflow("context", [first, second, other, look, ask]), drain)

    assert value(handle, "look") == {
        "node": "look",
        "index": 3,
        "workflow": str(handle.id),
        "task": "tests.workflows.bodies.describe_context",
        "results": {"first": "ok 1", "second": "err NO"},
        "has": {"first": True, "second": True, "other": False},
    }
    assert states(handle)["ask"] == "FAILED"
    assert "'other'" in (handle.result_for("ask").err.message or "")


def test_a_dependency_listed_twice_counts_once(drain):
    first = bodies.echo.node(node_id="first")(value=1)
    look = bodies.describe_context.node(node_id="look", waits_for=[first, first], workflow_ctx_from=[first, first])()

    handle = start_and_drain(Workflow("context", [first, look]), drain)

    assert value(handle, "look")["results"] == {"first": "ok 1"}


def test_workflow_meta_gives_the_position_of_a_node(drain):
    nodes = [
        bodies.echo.node()(),
        bodies.describe_node.node(node_id="self")(note="here"),
        bodies.describe_node_decorated.node(node_id="decorated")(),
    ]

    handle = start_and_drain(Workflow("meta", nodes), drain)

    assert value(handle, "self") == [str(handle.id), 1, "tests.workflows.bodies.describe_node", "self"]
    assert value(handle, "decorated") == "decorated"


def test_a_body_reads_the_summary_of_a_subworkflow(drain):
    sub = bodies.Leaf.node(node_id="sub")(key="leaf", fails=9)
    good = bodies.Leaf.node(node_id="good")(key="good")
    summarize = bodies.summarize.node(
        node_id="summarize", waits_for=[sub], workflow_ctx_from=[sub], allow_failed_deps=True
    )()

    handle = start_and_drain(Workflow("summary", [sub, good, summarize]), drain)

    summary = value(handle, "summarize")
    assert (summary["status"], summary["counts"]) == ("FAILED", [2, 0, 1, 1])
    assert "NOT_YET" in summary["error"]


def test_a_handle_finds_results_by_node_by_key_and_by_id(drain):
    node = bodies.echo.node(node_id="one")(value=7)

    handle = start_and_drain(Workflow("keys", [node]), drain)

    assert value(handle, node) == value(handle, NodeKey("one")) == value(handle, "one") == 7
    with pytest.raises(KeyError, match="two"):
        handle.result_for("two")


def test_the_result_of_an_unfinished_node_is_not_ready(drain):
    handle = Workflow("early", {"one": bodies.echo.node()(value=1)}).start()

    assert handle.result_for("one").err.error_code == "RESULT_NOT_READY"
    assert handle.results() == {}
    assert handle.get(timeout=0).err.error_code == "WAIT_TIMEOUT"


def test_a_node_that_waits_for_a_retry_stays_open(drain):
    policy = RetryPolicy.fixed([60], auto_retry_for=["NOT_YET"])
    handle = start_and_drain(
        Workflow("again", {"one": bodies.flaky.node(retry_policy=policy)(key="again", fails=1)}), drain
    )

    assert states(handle)["one"] in ("RUNNING", "ENQUEUED")  # a body of less than 20 ms is not shown as running
    make_due()
    drain()
    assert value(handle, "one") == 2


@pytest.mark.slow
def test_a_node_fails_after_its_last_attempt(drain):
    nodes = {"one": bodies.flaky_with_retries.node()(key="never", fails=9)}
    nodes["two"] = bodies.echo.node(waits_for=[nodes["one"]])()
    handle = start_and_drain(Workflow("never", nodes), drain)

    wait_and_drain(handle, drain)

    assert codes(handle) == {"one": "NOT_YET", "two": "UPSTREAM_SKIPPED"}
    assert times("never") == 4


def test_an_atomic_task_runs_as_a_node(drain):
    first = bodies.write_atomically.node(node_id="first")(key="atomic")
    second = bodies.echo.node(node_id="second")(value=first)

    handle = start_and_drain(Workflow("atomic", [first, second]), drain)

    assert value(handle, "second") == "atomic"
    assert times("atomic") == 1


def test_a_coroutine_gets_values_of_other_nodes(drain):
    first = bodies.echo.node(node_id="first")(value=[1, 2])

    handle = start_and_drain(
        Workflow("coroutine", [first, bodies.adescribe_node.node(node_id="async")(value=first)]), drain
    )

    assert value(handle, "async") == ["async", [1, 2]]


def test_a_subworkflow_is_built_with_context_and_results(drain):
    first, second = bodies.echo.node(node_id="first")(value=1), bodies.fail.node(node_id="second")()
    sub = bodies.Informed.node(
        node_id="sub", waits_for=[first, second], workflow_ctx_from=[first, second], allow_failed_deps=True
    )(outcome=second.result)

    handle = start_and_drain(Workflow("informed", [first, second, sub]), drain)

    assert value(handle, "sub") == [{"first": "ok 1", "second": "err NO"}, "err NO"]
