"""How a workflow ends: its status, result and error."""

from __future__ import annotations

import logging

import pytest
from django.db import connection

from horsies_django import OnError, SuccessCase, SuccessPolicy, Workflow
from horsies_django.models import Task, WorkflowTask
from horsies_django.models import Workflow as WorkflowRow
from tests.workflows import bodies
from tests.workflows.runs import inconsistencies, start_and_drain, states, times

pytestmark = pytest.mark.once


def nodes():
    bad = bodies.fail.node()(message="first")
    return {
        "ok": bodies.echo.node()(value=1),
        "fine": bodies.echo.node()(value=2),
        "bad": bad,
        "worse": bodies.fail.node()(message="second"),
        "skipped": bodies.echo.node(waits_for=[bad])(),
    }


CASES = [
    ([["ok"]], None),
    ([["ok", "fine"]], None),
    ([["bad"], ["ok"]], None),
    ([["ok", "bad"], ["skipped"], ["fine"]], None),
    ([["bad"]], ("NO", "bad")),
    ([["ok", "worse"], ["bad", "fine"]], ("NO", "bad")),
    ([["worse"], ["skipped"]], ("NO", "worse")),
    ([["skipped"]], ("WORKFLOW_SUCCESS_CASE_NOT_MET", None)),
    ([["skipped", "ok"], ["skipped"]], ("WORKFLOW_SUCCESS_CASE_NOT_MET", None)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("cases", "error"), CASES)
def test_a_success_policy_decides_the_status_and_error_of_a_workflow(drain, cases, error):
    policy = SuccessPolicy(
        [SuccessCase(required, optional=["worse"] if "worse" not in required else []) for required in cases]
    )

    handle = start_and_drain(Workflow("policy", nodes(), success_policy=policy, output="ok"), drain)

    result = handle.get(timeout=0)
    if error is None:
        assert (str(handle.status()), result.ok) == ("COMPLETED", 1)
    else:
        assert (str(handle.status()), result.err.error_code) == ("FAILED", error[0])
        assert WorkflowRow.objects.get(pk=handle.id).error.get("node_id") == error[1]


@pytest.mark.slow
def test_the_first_failed_node_by_index_gives_the_workflow_error(drain):
    wait = bodies.echo.node(node_id="wait", queue_name="slow")()
    early = bodies.fail.node(node_id="early", waits_for=[wait])(message="later in time")
    late = bodies.fail.node(node_id="late")(message="earlier in time")
    handle = Workflow("errors", [wait, early, late]).start()

    drain(queues="default")
    still = str(handle.status())
    drain()

    assert still == "RUNNING"
    assert handle.get(timeout=0).err.message == "later in time"
    row = WorkflowRow.objects.get(pk=handle.id)
    assert (row.result, row.error["node_id"], row.failed_index) == (None, "early", 1)
    assert row.completed_at is not None


def test_a_workflow_fails_although_its_recovery_branch_runs(drain):
    bad = bodies.fail.node()()
    handle = start_and_drain(
        Workflow("recovery", [bad, bodies.flaky.node(waits_for=[bad], allow_failed_deps=True)(key="r")]), drain
    )

    assert str(handle.status()) == "FAILED"
    assert times("r") == 1


def test_a_workflow_without_output_returns_the_results_of_its_last_nodes(drain):
    first, unwanted = bodies.echo.node()(value=1), bodies.echo.node(run_when=bodies.no)()
    last = {"a": bodies.echo.node()(value=first), "b": bodies.echo.node(waits_for=[first])(value=[1, {"c": None}])}

    handle = start_and_drain(Workflow("results", {"first": first, **last, "unwanted": unwanted}), drain)

    results = handle.get(timeout=0).ok
    assert list(results) == ["a", "b", "unwanted"]
    assert (results["a"].ok, results["b"].ok) == (1, [1, {"c": None}])
    assert results["unwanted"].err.error_code == "CONDITION_NOT_MET"
    assert handle.results()["first"].ok == 1


def test_any_node_can_be_the_output(drain):
    first = bodies.echo.node(node_id="first")(value=None)
    handle = start_and_drain(
        Workflow("output", [first, bodies.echo.node(waits_for=[first])(value=3)], output="first"), drain
    )

    assert handle.get(timeout=0).is_ok()
    assert handle.get(timeout=0).ok is None


def test_a_workflow_returns_none_if_a_condition_skips_its_output(drain):
    handle = start_and_drain(Workflow("output", {"one": bodies.echo.node(run_when=bodies.no)()}, output="one"), drain)

    assert str(handle.status()) == "COMPLETED"
    assert handle.get(timeout=0).ok is None


@pytest.mark.slow
def test_a_failure_pauses_the_workflow_at_once(drain):
    bad = bodies.fail.node(node_id="bad")()
    after = bodies.flaky.node(node_id="after", waits_for=[bad], allow_failed_deps=True)(key="after")
    other = bodies.echo.node(node_id="other", queue_name="slow")()
    last = bodies.flaky.node(node_id="last", waits_for=[other])(key="last")
    handle = Workflow("pause", [bad, after, other, last], on_error=OnError.PAUSE).start()

    drain(queues="default")
    paused = states(handle)
    drain()
    still = states(handle)

    assert paused == {"bad": "FAILED", "after": "PENDING", "other": "READY", "last": "PENDING"}
    assert still == paused
    assert handle.get(timeout=0).err.error_code == "WORKFLOW_PAUSED"
    assert inconsistencies(handle) == []
    assert handle.resume()
    drain()
    assert states(handle) == {"bad": "FAILED", "after": "COMPLETED", "other": "COMPLETED", "last": "COMPLETED"}
    assert str(handle.status()) == "FAILED"
    assert (times("after"), times("last")) == (1, 1)


@pytest.mark.slow
def test_a_failure_of_the_last_node_pauses_the_workflow(drain):
    handle = start_and_drain(Workflow("pause", {"bad": bodies.fail.node()()}, on_error=OnError.PAUSE), drain)

    assert str(handle.status()) == "PAUSED"
    assert handle.resume()
    assert str(handle.status()) == "FAILED"
    assert not handle.resume()


@pytest.mark.slow
def test_each_failure_pauses_the_workflow_again(drain):
    first = bodies.fail.node(node_id="first")()
    second = bodies.fail.node(node_id="second", waits_for=[first], allow_failed_deps=True)()
    third = bodies.echo.node(node_id="third", waits_for=[second], allow_failed_deps=True)()
    handle = start_and_drain(Workflow("pause", [first, second, third], on_error=OnError.PAUSE), drain)

    handle.resume()
    drain()

    assert str(handle.status()) == "PAUSED"
    assert states(handle) == {"first": "FAILED", "second": "FAILED", "third": "PENDING"}
    handle.resume()
    drain()
    assert str(handle.status()) == "FAILED"


def test_a_skip_does_not_pause_the_workflow(drain):
    one = bodies.echo.node(run_when=bodies.no)()
    handle = start_and_drain(
        Workflow("pause", [one, bodies.echo.node(waits_for=[one])()], on_error=OnError.PAUSE), drain
    )

    assert str(handle.status()) == "COMPLETED"


@pytest.mark.slow
def test_the_end_of_a_workflow_is_logged(drain, caplog):
    with caplog.at_level(logging.INFO, "horsies_django.workflows"):
        well = start_and_drain(Workflow("well", {"fine": bodies.echo.node()()}), drain)
        badly = start_and_drain(Workflow("badly", {"bad": bodies.fail.node()()}), drain)

    assert [line for line in caplog.messages if line.startswith("workflow ")] == [
        f"workflow completed id={well.id} name=well",
        f"workflow failed id={badly.id} name=badly node=bad error=NO",
    ]


@pytest.mark.parametrize("body", [bodies.echo, bodies.fail])
def test_one_transaction_ends_a_task_its_node_and_the_workflow(drain, body):
    start_and_drain(Workflow("one", [body.node()()]), drain)

    if connection.vendor == "sqlite":
        return  # SQLite does not record which transaction wrote a row
    writers = set()
    with connection.cursor() as cursor:
        for model in (Task, WorkflowTask, WorkflowRow):
            cursor.execute(f"SELECT xmin::text FROM {model._meta.db_table}")
            writers |= {row[0] for row in cursor.fetchall()}
    assert len(writers) == 1
