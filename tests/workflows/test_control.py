"""Pause, resume, cancel and retry of workflows."""

from __future__ import annotations

import sqlite3

import pytest
from django.db import connection, transaction

from horsies_django import Join, RetryPolicy, Workflow, wait_for_event
from horsies_django.models import Task, WorkflowTask
from tests.workflows import bodies
from tests.workflows.runs import (
    children,
    claim_as_dead_worker,
    codes,
    end_without_notifying,
    inconsistencies,
    open_tasks,
    reap,
    start_and_drain,
    states,
    step,
    times,
    value,
)

pytestmark = pytest.mark.once


def chain(key="chain", fails=0):
    first = bodies.flaky.node(node_id="first")(key=f"{key} first")
    second = bodies.flaky.node(node_id="second", waits_for=[first])(key=f"{key} second", fails=fails)
    third = bodies.flaky.node(node_id="third", waits_for=[second])(key=f"{key} third")
    return [first, second, third]


@pytest.fixture
def low_parameter_limit(transactional_db):
    """Limit a statement of SQLite to 1,000 parameters, so that a small workflow exceeds the limit."""
    if connection.vendor != "sqlite":
        pytest.skip("only SQLite has a limit that the ORM can exceed")
    connection.ensure_connection()
    limit = sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER
    before = connection.connection.setlimit(limit, 1_000)
    yield
    connection.connection.setlimit(limit, before)


def test_a_workflow_can_have_more_nodes_than_sqlite_allows_parameters(low_parameter_limit):
    handle = Workflow("large", [bodies.echo.node()() for _ in range(1_100)]).start()

    assert handle.pause()
    assert handle.resume()
    assert handle.cancel()
    assert handle.retry()

    assert set(states(handle).values()) == {"ENQUEUED"}
    assert inconsistencies(handle) == []


# Pause and resume.


def test_a_pause_withdraws_tasks_that_have_not_started(drain):
    handle = Workflow("pause", chain()).start()

    assert handle.pause()
    assert not handle.pause()

    assert (str(handle.status()), states(handle)["first"]) == ("PAUSED", "READY")
    assert open_tasks() == 0
    assert WorkflowTask.objects.get(workflow=handle.id, node_id="first").task_id is None
    drain()
    assert times("chain first") == 0
    assert inconsistencies(handle) == []


def test_a_resume_enqueues_new_tasks(drain):
    handle = Workflow("pause", chain()).start()
    handle.pause()

    assert handle.resume()
    assert not handle.resume()
    drain()

    assert str(handle.status()) == "COMPLETED"
    assert [times(f"chain {name}") for name in ("first", "second", "third")] == [1, 1, 1]


@pytest.mark.slow
def test_a_running_node_completes_in_a_paused_workflow(drain):
    stop = bodies.stop.node(node_id="stop")(action="pause")
    after = bodies.echo.node(node_id="after", waits_for=[stop])()

    handle = start_and_drain(Workflow("pause", [stop, after]), drain)

    assert states(handle) == {"stop": "COMPLETED", "after": "PENDING"}
    assert str(handle.status()) == "PAUSED"
    assert inconsistencies(handle) == []
    handle.resume()
    drain()
    assert str(handle.status()) == "COMPLETED"


def test_a_resume_completes_a_workflow_whose_last_node_has_ended(drain):
    handle = start_and_drain(Workflow("pause", [bodies.stop.node()(action="pause")]), drain)

    assert str(handle.status()) == "PAUSED"
    assert handle.resume()
    assert str(handle.status()) == "COMPLETED"


@pytest.mark.slow
def test_a_pause_withdraws_a_task_that_waits_for_its_retry(drain):
    policy = RetryPolicy.fixed([60], auto_retry_for=["NOT_YET"])
    handle = start_and_drain(
        Workflow("pause", {"one": bodies.flaky.node(retry_policy=policy)(key="again", fails=1)}), drain
    )

    handle.pause()
    assert states(handle) == {"one": "READY"}
    handle.resume()
    drain()

    assert str(handle.status()) == "COMPLETED"
    assert times("again") == 2


@pytest.mark.slow
def test_a_resume_evaluates_joins(drain):
    stop = bodies.stop.node(node_id="stop")(action="pause")
    bad = bodies.fail.node(node_id="bad")()
    both = [stop, bad]
    nodes = [
        *both,
        bodies.echo.node(node_id="all", waits_for=both)(),
        bodies.echo.node(node_id="any", waits_for=both, join=Join.ANY)(),
        bodies.echo.node(node_id="two", waits_for=both, join=Join.QUORUM, min_success=2)(),
        bodies.echo.node(node_id="allowed", waits_for=both, allow_failed_deps=True)(),
    ]
    handle = start_and_drain(Workflow("pause", nodes), drain)
    if states(handle)["bad"] == "READY":  # the pause withdrew its task before it started
        handle.resume()
        drain()
    handle.resume()
    drain()

    assert states(handle) == {
        "stop": "COMPLETED",
        "bad": "FAILED",
        "all": "SKIPPED",
        "any": "COMPLETED",
        "two": "SKIPPED",
        "allowed": "COMPLETED",
    }


@pytest.mark.slow
def test_an_event_node_starts_once_if_more_dependencies_end_at_resume(transactional_db):
    good, bad = bodies.echo.node(node_id="good")(), bodies.fail.node(node_id="bad")()
    skipped = bodies.echo.node(node_id="skipped", waits_for=[bad])()
    event = wait_for_event("approval", node_id="event", waits_for=[good, skipped], join=Join.ANY)
    handle = Workflow("any", [good, bad, skipped, event]).start()
    handle.send_event("approval", 1)
    claim_as_dead_worker()
    handle.pause()
    end_without_notifying("good", status="COMPLETED", result={"ok": 1})
    end_without_notifying(
        "bad", status="FAILED", result={"err": {"error_code": "NO", "message": "no"}}, error_code="NO"
    )
    reap()

    assert handle.resume()
    assert inconsistencies(handle) == []
    assert str(handle.status()) == "FAILED"
    assert states(handle) == {"good": "COMPLETED", "bad": "FAILED", "skipped": "SKIPPED", "event": "COMPLETED"}


@pytest.mark.slow
def test_a_pause_withdraws_map_items_and_a_resume_runs_each_once(drain):
    items = bodies.echo.node(node_id="items")(value=[0, 2, 4, 6])
    each = bodies.flaky_item.map(over=items, param="item", kwargs={"key": "each"}, node_id="each")
    handle = Workflow("pause", [items, each]).start()
    step()
    assert states(handle)["each"] == "RUNNING"

    handle.pause()
    paused = states(handle)
    handle.resume()
    drain()

    assert {status for name, status in paused.items() if "[" in name} == {"READY"}
    assert value(handle, "each") == [0, 20, 40, 60]
    assert [times(f"each-{item}") for item in (0, 2, 4, 6)] == [1, 1, 1, 1]


@pytest.mark.parametrize("action", ["pause", "resume", "cancel", "retry"])
def test_control_of_a_deleted_workflow_returns_false(drain, action):
    handle = Workflow("gone", chain()).start()
    handle._rows().delete()

    assert getattr(handle, action)() is False
    assert handle.status() is None
    assert handle.get(timeout=0).err.error_code == "TASK_NOT_FOUND"


@pytest.mark.parametrize("action", ["pause", "resume", "cancel", "retry"])
def test_a_completed_workflow_stays_completed(drain, action):
    handle = start_and_drain(Workflow("done", chain()), drain)

    assert getattr(handle, action)() is False
    drain()
    assert str(handle.status()) == "COMPLETED"
    assert times("chain first") == 1


# Cancel.


@pytest.mark.slow
def test_a_cancel_skips_nodes_that_have_not_started(drain):
    handle = Workflow("cancel", chain()).start()
    step()

    assert handle.cancel()
    assert not handle.cancel()
    drain()

    assert states(handle) == {"first": "COMPLETED", "second": "SKIPPED", "third": "SKIPPED"}
    assert codes(handle)["third"] == "WORKFLOW_CANCELLED"
    assert str(handle.status()) == "CANCELLED"
    assert handle.get(timeout=0).err.error_code == "WORKFLOW_CANCELLED"
    row = handle._rows().get()
    assert row.completed_at is None
    assert row.cancelled_at is not None
    assert open_tasks() == 0
    assert inconsistencies(handle) == []


def test_a_cancel_cancels_pending_and_claimed_tasks(transactional_db):
    handle = Workflow("cancel", [bodies.echo.node()(), bodies.echo.node()()]).start()
    with transaction.atomic():
        assert Task.objects.claim("w", start=0, prefetch=1)

    assert handle.cancel()

    rows = Task.objects.values_list("status", "error_code", "attempts", "completed_at", "failed_at")
    assert list(rows) == [("CANCELLED", "TASK_CANCELLED", None, None, None)] * 2


def test_a_running_node_completes_after_a_cancel_and_no_node_follows(drain):
    stop = bodies.stop.node(node_id="stop")(action="cancel")
    bad = bodies.fail.node(node_id="bad", waits_for=[stop])()
    after = bodies.echo.node(node_id="after", waits_for=[stop], allow_failed_deps=True)()

    handle = start_and_drain(Workflow("cancel", [stop, bad, after]), drain)

    assert states(handle) == {"stop": "COMPLETED", "bad": "SKIPPED", "after": "SKIPPED"}
    assert str(handle.status()) == "CANCELLED"
    assert inconsistencies(handle) == []


@pytest.mark.slow
def test_include_running_cancels_running_tasks_of_the_whole_tree(transactional_db):
    inner = bodies.Silent.node(node_id="inner")()
    handle = Workflow("tree", [bodies.echo.node(node_id="a")(), inner]).start()
    step()  # builds the subworkflow, or runs a
    step()
    running = claim_as_dead_worker(2)
    assert running

    assert handle.cancel()
    assert not handle.cancel()
    assert Task.objects.filter(pk__in=running, status="RUNNING").count() == len(running)
    assert handle.cancel(include_running=True)
    assert not handle.cancel(include_running=True)

    assert open_tasks() == 0
    for each in (handle, *children(handle)):
        assert inconsistencies(each) == []


def test_a_paused_workflow_can_be_cancelled(drain):
    handle = Workflow("cancel", chain()).start()
    handle.pause()

    assert handle.cancel()
    assert not handle.resume()
    drain()

    assert set(states(handle).values()) == {"SKIPPED"}
    assert times("chain first") == 0


@pytest.mark.slow
def test_a_map_is_cancelled_with_its_items(drain):
    items = bodies.echo.node(node_id="items")(value=[0, 2, 4])
    each = bodies.flaky_item.map(over=items, param="item", kwargs={"key": "each"}, node_id="each")
    handle = Workflow("cancel", [items, each]).start()
    step()

    handle.cancel()
    drain()

    assert [status for name, status in states(handle).items() if name != "items"] == ["SKIPPED"] * 4
    assert inconsistencies(handle) == []
    handle.retry()
    drain()
    assert value(handle, "each") == [0, 20, 40]
    assert inconsistencies(handle) == []


# Retry.


@pytest.mark.slow
def test_a_retry_keeps_completed_nodes(drain):
    handle = start_and_drain(Workflow("retry", chain(fails=1), output="third"), drain)
    assert states(handle) == {"first": "COMPLETED", "second": "FAILED", "third": "SKIPPED"}

    assert handle.retry()
    assert (str(handle.status()), handle.get(timeout=0).err.error_code) == ("RUNNING", "WAIT_TIMEOUT")
    assert inconsistencies(handle) == []
    drain()

    assert handle.get(timeout=0).ok == 1
    assert [times(f"chain {name}") for name in ("first", "second", "third")] == [1, 2, 1]
    assert not handle.retry()


@pytest.mark.slow
def test_a_workflow_can_be_retried_until_it_completes(drain):
    handle = start_and_drain(Workflow("retry", chain(fails=3)), drain)

    for _ in range(2):
        assert handle.retry()
        drain()
        assert (str(handle.status()), codes(handle)["third"]) == ("FAILED", "UPSTREAM_SKIPPED")
    assert handle.retry()
    drain()

    assert str(handle.status()) == "COMPLETED"
    assert (times("chain second"), times("chain third")) == (4, 1)


@pytest.mark.slow
def test_a_retry_continues_a_cancelled_workflow(drain):
    handle = Workflow("retry", chain()).start()
    step()
    handle.cancel()

    assert handle.retry()
    drain()

    assert str(handle.status()) == "COMPLETED"
    assert [times(f"chain {name}") for name in ("first", "second", "third")] == [1, 1, 1]
    row = handle._rows().get()
    assert row.cancelled_at is None
    assert row.completed_at is not None


def test_a_running_or_paused_workflow_is_not_retried(drain):
    handle = Workflow("retry", chain()).start()

    assert not handle.retry()
    handle.pause()
    assert not handle.retry()


@pytest.mark.slow
def test_a_retry_keeps_a_node_that_its_condition_has_skipped(drain):
    unwanted = bodies.echo.node(node_id="unwanted", run_when=bodies.no)()
    after = bodies.flaky.node(node_id="after", waits_for=[unwanted])(key="after", fails=1)
    last = bodies.echo.node(node_id="last", waits_for=[unwanted, after])()
    handle = start_and_drain(Workflow("retry", [unwanted, after, last]), drain)

    assert handle.retry()
    drain()

    assert codes(handle) == {"unwanted": "CONDITION_NOT_MET", "after": None, "last": None}
    assert str(handle.status()) == "COMPLETED"


@pytest.mark.slow
def test_a_node_whose_body_fails_with_the_code_of_a_condition_can_be_retried(drain):
    handle = start_and_drain(Workflow("retry", {"bad": bodies.fail.node()(code="CONDITION_NOT_MET")}), drain)

    assert handle.retry()

    assert (str(handle.status()), states(handle)) == ("RUNNING", {"bad": "ENQUEUED"})


@pytest.mark.slow
def test_a_retry_evaluates_joins_again(drain):
    one, two = (
        bodies.flaky.node(node_id="one")(key="one", fails=1),
        bodies.flaky.node(node_id="two")(key="two", fails=2),
    )
    nodes = [
        one,
        two,
        bodies.echo.node(node_id="any", waits_for=[one, two], join=Join.ANY)(),
        bodies.echo.node(node_id="both", waits_for=[one, two], join=Join.QUORUM, min_success=2)(),
        bodies.echo.node(node_id="all", waits_for=[one, two])(),
    ]
    handle = start_and_drain(Workflow("retry", nodes), drain)
    first = states(handle)
    handle.retry()
    drain()
    second = states(handle)
    handle.retry()
    drain()

    assert list(first.values()) == ["FAILED", "FAILED", "SKIPPED", "SKIPPED", "SKIPPED"]
    assert list(second.values()) == ["COMPLETED", "FAILED", "COMPLETED", "SKIPPED", "SKIPPED"]
    assert set(states(handle).values()) == {"COMPLETED"}


@pytest.mark.slow
def test_a_retry_runs_only_the_failed_items_of_a_map(drain):
    items = bodies.echo.node(node_id="items")(value=[0, 1, 2, 3])
    each = bodies.flaky_item.map(over=items, param="item", kwargs={"key": "each", "fails": 1}, node_id="each")
    after = bodies.echo.node(node_id="after")(value=each)
    handle = start_and_drain(Workflow("retry", [items, each, after]), drain)
    assert states(handle)["each"] == "FAILED"

    assert handle.retry()
    assert inconsistencies(handle) == []
    drain()

    assert value(handle, "after") == [0, 10, 20, 30]
    assert [times(f"each-{item}") for item in range(4)] == [1, 2, 1, 2]
    assert inconsistencies(handle) == []


@pytest.mark.slow
def test_a_retried_map_over_a_non_list_fails_again(drain):
    source = bodies.echo.node(node_id="source")(value="text")
    handle = start_and_drain(Workflow("retry", [source, bodies.echo.map(over=source, node_id="each")]), drain)

    assert handle.retry()
    drain()

    assert codes(handle) == {"source": None, "each": "MAP_NOT_A_LIST"}
    assert inconsistencies(handle) == []


@pytest.mark.slow
def test_a_retry_of_one_node_includes_its_skipped_dependents(drain):
    left = bodies.flaky.node(node_id="left")(key="left", fails=1)
    right = bodies.flaky.node(node_id="right")(key="right", fails=1)
    nodes = [
        left,
        right,
        bodies.echo.node(node_id="after-left", waits_for=[left])(),
        bodies.echo.node(node_id="after-right", waits_for=[right])(),
    ]
    handle = start_and_drain(Workflow("retry", nodes), drain)

    with pytest.raises(KeyError, match="no node 'unknown'"):
        handle.retry("unknown")
    assert handle.retry("left")
    drain()

    assert states(handle) == {
        "left": "COMPLETED",
        "right": "FAILED",
        "after-left": "COMPLETED",
        "after-right": "SKIPPED",
    }
    assert str(handle.status()) == "FAILED"
    assert handle.retry(right)
    drain()
    assert str(handle.status()) == "COMPLETED"
    assert inconsistencies(handle) == []


@pytest.mark.slow
def test_a_retry_of_one_node_leaves_nodes_skipped_for_another_failure(drain):
    left = bodies.flaky.node(node_id="left")(key="left", fails=1)
    right = bodies.fail.node(node_id="right")()
    lost = bodies.echo.node(node_id="lost", waits_for=[right])()
    both = bodies.echo.node(node_id="both", waits_for=[left, lost])()
    handle = start_and_drain(Workflow("retry", [left, right, lost, both]), drain)

    assert handle.retry("left")
    drain()

    assert states(handle) == {"left": "COMPLETED", "right": "FAILED", "lost": "SKIPPED", "both": "SKIPPED"}


def test_a_completed_node_can_not_be_retried(drain):
    handle = start_and_drain(Workflow("retry", chain(fails=1)), drain)

    assert not handle.retry("first")
    assert times("chain first") == 1


@pytest.mark.slow
def test_a_workflow_completes_after_repeated_pauses_and_retries(drain):
    handle = Workflow("retry", chain(fails=1)).start()
    for _ in range(4):
        handle.pause()
        step()
        handle.resume()
        step()
        assert inconsistencies(handle) == []
    assert str(handle.status()) == "FAILED"
    handle.retry()
    handle.cancel()
    handle.retry()
    handle.pause()
    handle.resume()
    drain()
    assert str(handle.status()) == "COMPLETED"
    assert [times(f"chain {name}") for name in ("first", "second", "third")] == [1, 2, 1]


@pytest.mark.slow
@pytest.mark.parametrize(("node_id", "runs"), [("each", [1, 2, 1, 2]), ("each[1]", [1, 2, 1, 1])])
def test_a_map_or_one_of_its_items_can_be_retried_alone(drain, node_id, runs):
    items = bodies.echo.node(node_id="items")(value=[0, 1, 2, 3])
    each = bodies.flaky_item.map(over=items, param="item", kwargs={"key": "each", "fails": 1}, node_id="each")
    other = bodies.fail.node(node_id="other")()
    handle = start_and_drain(
        Workflow("retry", [items, each, bodies.echo.node(node_id="after")(value=each), other]), drain
    )

    assert handle.retry(node_id)
    assert inconsistencies(handle) == []
    drain()

    assert [times(f"each-{item}") for item in range(4)] == runs
    assert (states(handle)["each"], states(handle)["after"]) == (
        ("COMPLETED", "COMPLETED") if runs[3] == 2 else ("FAILED", "SKIPPED")
    )
    assert (str(handle.status()), codes(handle)["other"]) == ("FAILED", "NO")


@pytest.mark.slow
def test_a_subworkflow_can_be_retried_alone(drain):
    leaf = bodies.Leaf.node(node_id="leaf")(key="leaf", fails=1)
    other = bodies.Leaf.node(node_id="other")(key="other", fails=1)
    handle = start_and_drain(Workflow("retry", [leaf, other]), drain)

    assert handle.retry("leaf")
    drain()

    assert states(handle) == {"leaf": "COMPLETED", "other": "FAILED"}
    assert (times("leaf"), times("other")) == (2, 1)


@pytest.mark.slow
def test_a_retried_workflow_can_be_cancelled_and_retried_again(drain):
    leaf = bodies.Leaf.node(node_id="leaf")(key="leaf", fails=1)
    items = bodies.echo.node(node_id="items")(value=[1, 3])
    each = bodies.flaky_item.map(over=items, param="item", kwargs={"key": "each", "fails": 1}, node_id="each")
    handle = start_and_drain(Workflow("retry", [leaf, items, each]), drain)

    for _ in range(3):
        handle.retry()
        handle.pause()
        handle.cancel()
        assert [found for run in (handle, *children(handle)) for found in inconsistencies(run)] == []
    assert str(handle.status()) == "CANCELLED"
    handle.retry()
    drain()

    assert str(handle.status()) == "COMPLETED"
    assert (times("leaf"), times("each-1"), times("each-3")) == (2, 2, 2)


@pytest.mark.slow
def test_a_map_can_be_retried_while_an_item_still_runs(drain):
    items = bodies.echo.node(node_id="items")(value=["retry", "none", "none"])
    each = bodies.cancel_and_retry.map(over=items, param="action", node_id="each")
    after = bodies.echo.node(node_id="after")(value=each)
    handle = Workflow("retry", [items, each, after]).start()

    drain()

    assert inconsistencies(handle) == []
    assert str(handle.status()) == "COMPLETED"
    assert value(handle, "after") == ["retry", "none", "none"]


@pytest.mark.slow
def test_a_failed_attempt_is_not_retried_after_a_cancel(drain):
    handle = Workflow("cancel", {"one": bodies.cancel_and_fail.node()(key="one")}).start()

    drain()

    assert codes(handle) == {"one": "WORKFLOW_CANCELLED"}
    assert open_tasks() == 0
    assert inconsistencies(handle) == []
    assert handle.retry()
    drain()
    assert times("one") == 2


@pytest.mark.slow
def test_an_item_of_a_map_can_cancel_its_workflow(drain):
    items = bodies.echo.node(node_id="items")(value=["cancel", "status", "status"])
    each = bodies.stop.map(over=items, param="action", node_id="each")
    handle = start_and_drain(Workflow("cancel", [items, each, bodies.echo.node(node_id="after")(value=each)]), drain)

    assert str(handle.status()) == "CANCELLED"
    assert inconsistencies(handle) == []
    assert not {"RUNNING", "ENQUEUED", "READY", "PENDING"} & set(states(handle).values())
    assert open_tasks() == 0


@pytest.mark.slow
def test_a_map_is_retried_together_with_its_dependencies(drain):
    items = bodies.echo.node(node_id="items")(value=[0, 1])
    bad, soon = bodies.fail.node(node_id="bad")(), bodies.flaky.node(node_id="soon")(key="soon", fails=1)
    each = bodies.flaky_item.map(
        over=items,
        param="item",
        kwargs={"key": "each", "fails": 1},
        node_id="each",
        waits_for=[bad, soon],
        allow_failed_deps=True,
        queue_name="slow",
    )
    handle = start_and_drain(Workflow("retry", [items, bad, soon, each]), drain)

    handle.retry()
    drain(queues="default")
    assert inconsistencies(handle) == []
    assert states(handle)["each"] == "RUNNING"
    drain()

    assert value(handle, "each") == [0, 10]
    assert codes(handle)["bad"] == "NO"
    assert inconsistencies(handle) == []


@pytest.mark.slow
def test_a_retry_of_one_node_does_not_complete_a_cancelled_workflow(drain):
    nodes = {"one": bodies.flaky.node()(key="one"), "two": bodies.flaky.node()(key="two")}
    handle = Workflow("retry", nodes).start()
    handle.cancel()

    handle.retry("one")
    drain()

    assert str(handle.status()) != "COMPLETED" or times("two") == 1
