"""Retries of workflows that are paused, running, cancelled or expired, and of subworkflows."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from horsies_django import OnError, SuccessCase, SuccessPolicy, Workflow, wait_for_event
from horsies_django.models import Task, WorkflowTask
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.workflows.engine import repair
from tests.workflows import bodies
from tests.workflows.runs import (
    all_inconsistencies,
    children,
    codes,
    inconsistencies,
    start_and_drain,
    states,
    step,
    times,
    value,
)

pytestmark = pytest.mark.once

SOON = timedelta(hours=1)


def fragile(key, fails=1, **options):
    """Return a workflow that pauses when its second node fails."""
    first = bodies.flaky.node(node_id="first")(key=f"{key} first")
    second = bodies.flaky.node(node_id="second", waits_for=[first])(key=f"{key} second", fails=fails)
    third = bodies.flaky.node(node_id="third", waits_for=[second])(key=f"{key} third")
    return Workflow("fragile", [first, second, third], on_error=OnError.PAUSE, **options)


@pytest.mark.slow
def test_a_retried_workflow_no_longer_shows_how_it_ended(drain):
    handle = start_and_drain(Workflow("failed", {"one": bodies.flaky.node()(key="one", fails=1)}), drain)
    row = handle._rows().get()
    assert row.error["error_code"] == "NOT_YET"
    assert None not in (row.completed_at, row.kept_until, row.failed_index)

    assert handle.retry()

    row = handle._rows().get()
    assert (row.error, row.completed_at, row.kept_until, row.failed_index) == (None, None, None, None)


@pytest.mark.slow
def test_a_retried_node_waits_again_for_all_nodes_of_its_context(drain):
    first = bodies.flaky.node(node_id="first")(key="first", fails=1)
    second = bodies.flaky.node(node_id="second", queue_name="slow")(key="second", fails=1)
    both = [first, second]
    last = bodies.describe_context.node(node_id="last", waits_for=both, workflow_ctx_from=both)()
    handle = Workflow("context", [*both, last]).start()
    drain(queues="default")
    drain()
    assert states(handle) == {"first": "FAILED", "second": "FAILED", "last": "SKIPPED"}

    assert handle.retry()
    assert WorkflowTask.objects.get(workflow=handle.id, node_id="last").open_ctx == 2
    drain()

    assert value(handle, "last")["results"] == {"first": "ok 2", "second": "ok 2"}
    assert inconsistencies(handle) == []


# Paused workflows.


@pytest.mark.slow
@pytest.mark.parametrize("which", [None, "second"])
def test_a_retry_of_a_paused_workflow_reruns_the_failed_node(drain, which):
    handle = start_and_drain(fragile("paused"), drain)
    assert (str(handle.status()), states(handle)["third"]) == ("PAUSED", "PENDING")

    assert handle.retry(which)
    assert inconsistencies(handle) == []
    drain()

    assert str(handle.status()) == "COMPLETED"
    assert [times(f"paused {name}") for name in ("first", "second", "third")] == [1, 2, 1]
    assert handle._rows().get().paused_at is None


@pytest.mark.slow
def test_a_paused_workflow_can_fail_and_be_retried_repeatedly(drain):
    handle = start_and_drain(fragile("paused", fails=3), drain)

    for _ in range(3):
        assert str(handle.status()) == "PAUSED"
        assert handle.retry()
        drain()

    assert str(handle.status()) == "COMPLETED"
    assert times("paused second") == 4


@pytest.mark.slow
def test_a_paused_workflow_without_failures_cannot_be_retried(drain):
    assert str(start_and_drain(fragile("other"), drain).status()) == "PAUSED"  # it has a failure
    handle = fragile("paused").start()
    handle.pause()

    assert not handle.retry()
    assert not handle.retry("first")
    assert str(handle.status()) == "PAUSED"


@pytest.mark.slow
def test_a_retry_of_a_paused_workflow_reruns_failures_in_its_subworkflows(drain):
    nodes = {"leaf": bodies.Leaf.node()(key="leaf", fails=1), "bad": bodies.flaky.node()(key="bad", fails=1)}
    handle = start_and_drain(Workflow("top", nodes, on_error=OnError.PAUSE), drain)
    assert str(handle.status()) == "PAUSED"

    while handle.retry():
        drain()

    assert str(handle.status()) == "COMPLETED"
    assert (times("leaf"), times("bad")) == (2, 2)
    assert all_inconsistencies(handle) == []


@pytest.mark.slow
def test_a_paused_subworkflow_can_be_retried_alone(drain):
    handle = start_and_drain(Workflow("top", {"fragile": bodies.Fragile.node()(key="fragile")}), drain)
    (below,) = children(handle)
    assert (str(handle.status()), str(below.status())) == ("RUNNING", "PAUSED")

    assert below.retry()
    drain()

    assert value(handle, "fragile") == 2
    assert str(handle.status()) == "COMPLETED"


@pytest.mark.slow
def test_a_retry_of_a_paused_workflow_reruns_failed_map_items(drain):
    items = bodies.echo.node(node_id="items")(value=[1, 2, 4])
    each = bodies.flaky_item.map(over=items, param="item", kwargs={"key": "each", "fails": 1}, node_id="each")
    handle = Workflow("map", [items, each]).start()
    while "FAILED" not in states(handle).values():
        step()
    handle.pause()
    assert states(handle)["each"] == "RUNNING"

    assert handle.retry()
    assert inconsistencies(handle) == []
    drain()

    assert value(handle, "each") == [10, 20, 40]
    assert times("each-1") == 2


# Running workflows.


def running(*after, fails=1):
    """Return a workflow with a failed node, an event to wait for, and a node that waits for both."""
    bad = bodies.flaky.node(node_id="bad")(key="bad", fails=fails)
    approval = wait_for_event("approval", node_id="approval")
    lost = bodies.echo.node(node_id="lost", waits_for=[bad])()
    both = bodies.echo.node(node_id="both", waits_for=[bad, approval])()
    return Workflow("runs", [bad, approval, lost, both, *(make(bad) for make in after)])


@pytest.mark.slow
def test_a_failed_node_of_a_running_workflow_can_be_retried(drain):
    handle = start_and_drain(running(), drain)
    assert states(handle) == {"bad": "FAILED", "approval": "RUNNING", "lost": "SKIPPED", "both": "PENDING"}

    assert not handle.retry()
    assert not handle.retry("approval")
    assert handle.retry("bad")
    assert inconsistencies(handle) == []
    drain()
    assert states(handle) == {"bad": "COMPLETED", "approval": "RUNNING", "lost": "COMPLETED", "both": "PENDING"}
    handle.send_event("approval")
    drain()

    assert str(handle.status()) == "COMPLETED"
    assert times("bad") == 2


@pytest.mark.slow
def test_a_failed_node_whose_error_a_dependent_has_used_cannot_be_retried(drain):
    def rescue(bad):
        return bodies.describe_outcome.node(node_id="rescue", allow_failed_deps=True)(outcome=bad.result)

    handle = start_and_drain(running(rescue), drain)
    before = states(handle)

    assert not handle.retry("bad")
    drain()

    assert states(handle) == before
    assert times("bad") == 1


@pytest.mark.slow
def test_a_failed_item_of_a_running_map_can_be_retried(drain):
    items = bodies.echo.node(node_id="items")(value=[1, 0])
    each = bodies.flaky_item.map(over=items, param="item", kwargs={"key": "each", "fails": 1}, node_id="each")
    handle = Workflow("map", [items, each]).start()
    while states(handle).get("each[0]") != "FAILED":
        step()
    assert (states(handle)["each"], states(handle)["each[1]"]) == ("RUNNING", "ENQUEUED")

    assert not handle.retry("each[1]")
    assert handle.retry("each[0]")
    assert inconsistencies(handle) == []
    drain()

    assert value(handle, "each") == [10, 0]
    assert (times("each-1"), times("each-0")) == (2, 1)


@pytest.mark.slow
def test_the_failed_task_of_a_node_can_be_retried_while_the_workflow_runs(drain):
    handle = start_and_drain(running(), drain)

    assert Task.objects.filter(workflow_id=handle.id, status="FAILED").retry() == 1
    drain()

    assert states(handle)["lost"] == "COMPLETED"


# Cancelled workflows.


@pytest.mark.slow
def test_a_retry_of_one_node_leaves_other_nodes_that_a_cancel_skipped(drain):
    bad = bodies.fail.node(node_id="bad")()
    lost = bodies.echo.node(node_id="lost", waits_for=[bad])()
    slow = bodies.flaky.node(node_id="slow", queue_name="slow")(key="slow")
    items = bodies.echo.node(node_id="items", queue_name="slow")(value=[0, 2])
    each = bodies.flaky_item.map(over=items, param="item", kwargs={"key": "each"}, node_id="each")
    sub = bodies.Waiting.node(node_id="sub")()
    handle = Workflow("cancel", [bad, lost, slow, items, each, sub]).start()
    drain(queues="default")
    handle.cancel()

    before = list(WorkflowTask.objects.exclude(node_id="slow").order_by("pk").values())

    assert handle.retry("slow")
    assert all_inconsistencies(handle) == []
    drain()

    assert list(WorkflowTask.objects.exclude(node_id="slow").order_by("pk").values()) == before
    assert (states(handle)["slow"], str(handle.status())) == ("COMPLETED", "FAILED")
    assert handle.retry()
    drain()
    children(handle)[0].send_event("approval", 1)
    drain()
    assert {states(handle)[name] for name in ("slow", "items", "each", "sub")} == {"COMPLETED"}
    assert all_inconsistencies(handle) == []


@pytest.mark.slow
def test_a_workflow_whose_cancelled_nodes_did_not_all_run_again_fails(drain):
    slow = [bodies.flaky.node(node_id=name, queue_name="slow")(key=name) for name in ("one", "two")]
    handle = Workflow("cancel", slow).start()
    handle.cancel()

    assert handle.retry("two")
    drain()

    assert (str(handle.status()), states(handle)) == ("FAILED", {"one": "SKIPPED", "two": "COMPLETED"})
    error = handle.get(timeout=0).err
    assert (error.error_code, handle._rows().get().error["node_id"]) == ("WORKFLOW_CANCELLED", "one")
    assert handle.retry("one")
    drain()
    assert str(handle.status()) == "COMPLETED"


@pytest.mark.slow
def test_a_completed_node_of_a_cancelled_workflow_cannot_be_retried(drain):
    first = bodies.echo.node(node_id="first")()
    handle = Workflow("cancel", [first, bodies.echo.node(node_id="slow", queue_name="slow")()]).start()
    drain(queues="default")
    handle.cancel()

    assert not handle.retry("first")
    assert str(handle.status()) == "CANCELLED"


@pytest.mark.slow
def test_a_retry_completes_a_map_whose_items_have_ended_after_the_cancel(drain):
    items = bodies.echo.node(node_id="items")(value=["cancel"])
    each = bodies.stop.map(over=items, param="action", node_id="each")
    handle = start_and_drain(Workflow("cancel", [items, each]), drain)
    assert states(handle) == {"items": "COMPLETED", "each": "SKIPPED", "each[0]": "COMPLETED"}

    assert handle.retry()

    assert value(handle, "each") == ["True"]
    assert str(handle.status()) == "COMPLETED"
    assert inconsistencies(handle) == []


@pytest.mark.slow
def test_a_retry_works_while_a_cancelled_subworkflow_still_runs(drain):
    """The child's body cancels and retries the root, and keeps running although its child was cancelled with it."""
    sub = bodies.Restarting.node(node_id="sub")()
    handle = start_and_drain(Workflow("cancel", [sub, bodies.echo.node(node_id="after")(value=sub)]), drain)

    assert str(handle.status()) == "COMPLETED"
    assert value(handle, "after") == "True True"
    assert all_inconsistencies(handle) == []


# Expired workflows.


def expire(handle):
    rows = WorkflowRow.objects.filter(root_id=handle.id)
    rows.update(good_until=timezone.now() - SOON)
    WorkflowTask.objects.filter(workflow__root_id=handle.id).update(good_until=timezone.now() - SOON)
    Task.objects.filter(workflow_id=handle.id).update(good_until=timezone.now() - SOON)
    repair.expire("default")


@pytest.mark.slow
def test_a_retry_removes_a_deadline_that_has_passed(drain):
    nodes = {"sub": bodies.Waiting.node()(), "one": bodies.flaky.node(queue_name="slow")(key="one")}
    handle = Workflow("late", nodes, good_until=timezone.now() + SOON).start()
    drain(queues="default")
    expire(handle)
    assert str(handle.status()) == "EXPIRED"

    assert handle.retry()
    assert repair.expire("default") == 0
    drain()
    children(handle)[0].send_event("approval", 5)
    drain()

    assert value(handle, "sub") == 5
    assert times("one") == 1
    assert str(handle.status()) == "COMPLETED"
    assert set(WorkflowRow.objects.values_list("good_until", flat=True)) == {None}


@pytest.mark.slow
def test_a_retry_keeps_a_deadline_that_has_not_passed(drain):
    until = timezone.now() + SOON
    handle = Workflow("soon", {"one": bodies.flaky.node()(key="one", fails=1)}, good_until=until).start()
    drain()

    handle.retry()

    assert handle._rows().get().good_until == until
    assert WorkflowTask.objects.get(workflow=handle.id).good_until == until


@pytest.mark.parametrize("way", ["condition", "retry"])
def test_a_node_that_ends_after_its_workflow_expired_gets_that_error_code(drain, way):
    asked = bodies.echo.node(run_when=bodies.expiring)()
    one = asked if way == "condition" else bodies.expire_and_fail.node()()
    handle = start_and_drain(Workflow("late", {"one": one}), drain)

    assert str(handle.status()) == "EXPIRED"
    assert codes(handle) == {"one": "WORKFLOW_EXPIRED"}


# Subworkflows.


@pytest.mark.slow
def test_a_retry_of_a_subworkflow_reopens_its_ancestors(drain):
    middle = bodies.Middle.node(node_id="middle")(key="deep", fails=1)
    after = bodies.echo.node(node_id="after")(value=middle)
    other = bodies.flaky.node(node_id="other")(key="other", fails=9)
    handle = start_and_drain(Workflow("top", [middle, after, other]), drain)
    (below,) = children(handle)
    (leaf,) = children(below)
    assert [str(run.status()) for run in (handle, below, leaf)] == ["FAILED"] * 3

    assert leaf.retry()
    assert [str(run.status()) for run in (handle, below, leaf)] == ["RUNNING"] * 3
    assert states(handle) == {"middle": "RUNNING", "after": "PENDING", "other": "FAILED"}
    assert all_inconsistencies(handle) == []
    drain()

    assert value(handle, "after") == ["deep", None]
    assert (times("deep"), times("other")) == (2, 1)
    assert (str(handle.status()), str(below.status())) == ("FAILED", "COMPLETED")
    assert codes(handle)["other"] == "NOT_YET"
    assert all_inconsistencies(handle) == []


@pytest.mark.slow
def test_one_node_of_a_subworkflow_can_be_retried(drain):
    handle = start_and_drain(Workflow("top", {"leaf": bodies.Leaf.node()(key="leaf", fails=1)}), drain)
    (below,) = children(handle)

    assert below.retry("one")
    drain()

    assert value(handle, "leaf") == ["leaf", None]


@pytest.mark.slow
def test_a_retry_of_one_node_of_a_subworkflow_leaves_its_other_failures(drain):
    handle = start_and_drain(Workflow("top", {"pair": bodies.Pair.node()(fails=1)}), drain)
    (below,) = children(handle)
    assert states(below) == {"one": "FAILED", "two": "FAILED"}

    assert below.retry("one")
    drain()

    assert states(below) == {"one": "COMPLETED", "two": "FAILED"}
    assert [str(run.status()) for run in (handle, below)] == ["FAILED"] * 2
    assert all_inconsistencies(handle) == []


@pytest.mark.slow
def test_a_subworkflow_of_a_running_parent_can_be_retried(drain):
    nodes = {"leaf": bodies.Leaf.node()(key="leaf", fails=1), "approval": wait_for_event("approval")}
    handle = start_and_drain(Workflow("top", nodes), drain)
    (below,) = children(handle)
    assert states(handle) == {"leaf": "FAILED", "approval": "RUNNING"}

    assert below.retry()
    drain()
    handle.send_event("approval")

    assert value(handle, "leaf") == ["leaf", None]
    assert str(handle.status()) == "COMPLETED"


@pytest.mark.slow
def test_a_subworkflow_whose_error_the_parent_has_used_cannot_be_retried(drain):
    leaf = bodies.Leaf.node(node_id="leaf")(key="leaf", fails=1)
    rescue = bodies.describe_outcome.node(node_id="rescue", allow_failed_deps=True)(outcome=leaf.result)
    handle = start_and_drain(Workflow("top", [leaf, rescue, wait_for_event("approval", node_id="approval")]), drain)
    (below,) = children(handle)

    assert not below.retry()
    assert str(below.status()) == "FAILED"


@pytest.mark.slow
def test_a_subworkflow_of_a_completed_parent_cannot_be_retried(drain):
    leaf = bodies.Leaf.node(node_id="leaf")(key="leaf", fails=1)
    good = bodies.echo.node(node_id="good")()
    handle = start_and_drain(Workflow("top", [leaf, good], success_policy=SuccessPolicy([SuccessCase([good])])), drain)
    (below,) = children(handle)
    assert str(handle.status()) == "COMPLETED"

    assert not below.retry()
    assert (str(handle.status()), str(below.status())) == ("COMPLETED", "FAILED")


@pytest.mark.slow
def test_a_failure_that_a_completed_subworkflow_allows_is_not_retried(drain):
    nodes = {"lenient": bodies.Lenient.node()(), "approval": wait_for_event("approval")}
    handle = start_and_drain(Workflow("top", nodes), drain)
    (below,) = children(handle)
    handle.pause()
    assert (str(handle.status()), str(below.status())) == ("PAUSED", "COMPLETED")
    assert states(below) == {"good": "COMPLETED", "bad": "FAILED"}

    assert not handle.retry()
    assert str(handle.status()) == "PAUSED"


@pytest.mark.slow
def test_a_retry_of_a_cancelled_subworkflow_leaves_other_cancelled_nodes_of_the_workflow_above(drain):
    nodes = {"sub": bodies.Waiting.node()(), "slow": bodies.flaky.node(queue_name="slow")(key="slow")}
    handle = Workflow("top", nodes).start()
    drain(queues="default")
    (below,) = children(handle)
    handle.cancel()

    assert below.retry()
    drain()
    below.send_event("approval", 2)
    drain()

    assert (str(handle.status()), value(handle, "sub"), times("slow")) == ("FAILED", 2, 0)
    assert all_inconsistencies(handle) == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["resume", "retry"])
def test_a_subworkflow_of_a_paused_workflow_cannot_be_resumed_or_retried(drain, how):
    nodes = {"fragile": bodies.Fragile.node()(key="fragile"), "approval": wait_for_event("approval")}
    handle = start_and_drain(Workflow("top", nodes), drain)
    (below,) = children(handle)
    handle.pause()

    assert not getattr(below, how)()
    assert (str(handle.status()), str(below.status())) == ("PAUSED", "PAUSED")
    assert handle.resume()
    assert str(below.status()) == "RUNNING" or states(handle)["fragile"] == "FAILED"


@pytest.mark.slow
def test_a_retry_keeps_a_completed_subworkflow_whose_unique_key_another_run_holds(drain):
    nodes = {"held": bodies.Held.node()(), "bad": bodies.flaky.node()(key="bad", fails=1)}
    handle = start_and_drain(Workflow("top", nodes), drain)
    (below,) = children(handle)
    below.send_event("approval", 1)
    bodies.Held.build().start()
    assert (str(handle.status()), str(below.status())) == ("FAILED", "COMPLETED")

    assert handle.retry()
    drain()

    assert (str(handle.status()), value(handle, "held"), times("bad")) == ("COMPLETED", 1, 2)


@pytest.mark.slow
def test_a_retry_is_refused_if_another_run_holds_the_unique_key_of_the_root(drain):
    def start():
        nodes = {"leaf": bodies.Leaf.node()(key="leaf", fails=1)}
        return start_and_drain(Workflow("top", nodes, unique_key="one"), drain)

    handle = start()
    (below,) = children(handle)
    Workflow("top", {"approval": wait_for_event("approval")}, unique_key="one").start()
    other = start_and_drain(fragile("other", unique_key="other"), drain)

    assert not below.retry()
    assert not handle.retry()
    assert (str(handle.status()), str(below.status())) == ("FAILED", "FAILED")
    assert other.retry()
