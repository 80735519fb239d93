"""Subworkflows."""

from __future__ import annotations

from functools import reduce
from operator import rshift
from uuid import uuid4

import pytest
from django.db import transaction

from horsies_django import OnError, RetryPolicy, Workflow, wait_for_event
from horsies_django.models import Task, WorkflowTask
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.reaper.crashed import recover_all
from horsies_django.reaper.recovery import recover_stuck_workflows
from tests.workflows import bodies
from tests.workflows.runs import (
    all_inconsistencies,
    children,
    codes,
    end_without_notifying,
    inconsistencies,
    make_due,
    start_and_drain,
    states,
    step,
    times,
    value,
)

pytestmark = pytest.mark.once


def rows():
    return WorkflowRow.objects.order_by("depth")


@pytest.mark.slow
def test_a_subworkflow_can_contain_a_subworkflow(drain):
    middle = bodies.Middle.node(node_id="middle")(key="deep")
    after = bodies.echo.node(node_id="after")(value=middle)

    handle = start_and_drain(Workflow("top", [middle, after], output=after), drain)

    assert handle.get(timeout=0).ok == ["deep", None]
    assert [(row.name, row.depth, row.root_id, str(row.status)) for row in rows()] == [
        ("top", 0, handle.id, "COMPLETED"),
        ("middle", 1, handle.id, "COMPLETED"),
        ("leaf", 2, handle.id, "COMPLETED"),
    ]
    (below,) = children(handle)
    assert below.get(timeout=0).ok == ["deep", None]
    assert not any(inconsistencies(one) for one in (handle, below, *children(below)))


@pytest.mark.slow
def test_a_child_is_built_when_its_node_is_ready(drain):
    first = bodies.echo.node(node_id="first", queue_name="slow")()
    leaf = bodies.Leaf.node(node_id="leaf", waits_for=[first])(key="late")
    handle = Workflow("top", [first, leaf]).start()

    drain(queues="default")
    before = rows().count()
    drain()

    assert (before, rows().count()) == (1, 2)
    assert states(handle) == {"first": "COMPLETED", "leaf": "COMPLETED"}


@pytest.mark.slow
def test_a_subworkflow_takes_values_and_returns_its_output(drain):
    first = bodies.echo.node(node_id="first")(value={"a": 1})
    leaf = bodies.Leaf.node(node_id="leaf")(key="fed", value=first)

    handle = start_and_drain(Workflow("top", [first, leaf]), drain)

    assert value(handle, "leaf") == ["fed", {"a": 1}]


@pytest.mark.slow
def test_a_subworkflow_without_an_output_returns_none(drain):
    silent = bodies.Silent.node(node_id="silent")()
    after = bodies.echo.node(node_id="after")(value=silent)

    handle = start_and_drain(Workflow("top", [silent, after]), drain)

    assert value(handle, "silent") is None
    assert value(handle, "after") is None


@pytest.mark.slow
def test_a_failed_child_fails_its_node_with_a_summary(drain):
    middle = bodies.Middle.node(node_id="middle")(key="bad", fails=9)
    after = bodies.echo.node(node_id="after", waits_for=[middle])()
    outcome = bodies.describe_outcome.node(node_id="outcome", allow_failed_deps=True)(outcome=middle.result)

    handle = start_and_drain(Workflow("top", [middle, after, outcome]), drain)

    assert codes(handle) == {"middle": "SUBWORKFLOW_FAILED", "after": "UPSTREAM_SKIPPED", "outcome": None}
    assert value(handle, "outcome") == "err SUBWORKFLOW_FAILED"
    data = handle.result_for("middle").err.data
    assert (data["status"], data["total"], data["completed"], data["failed"], data["skipped"]) == ("FAILED", 2, 0, 1, 1)
    assert handle.get(timeout=0).err.error_code == "SUBWORKFLOW_FAILED"
    (below,) = children(handle)
    assert codes(below) == {"leaf": "SUBWORKFLOW_FAILED", "after": "UPSTREAM_SKIPPED"}


def test_a_subworkflow_that_cannot_be_built_fails_its_node(drain):
    handle = start_and_drain(Workflow("top", {"broken": bodies.Broken.node()(why="no reason")}), drain)

    assert states(handle) == {"broken": "FAILED"}
    assert str(handle.status()) == "FAILED"
    assert rows().count() == 1


@pytest.mark.slow
def test_pause_and_resume_reach_the_children(drain):
    approval = bodies.Waiting.node(node_id="approval")()
    handle = start_and_drain(
        Workflow("top", {"approval": approval, "slow": bodies.echo.node(queue_name="slow")()}), drain
    )
    (below,) = children(handle)

    assert handle.pause()
    paused = [str(row.status) for row in rows()]
    assert handle.resume()

    assert paused == ["PAUSED", "PAUSED"]
    assert [str(row.status) for row in rows()] == ["RUNNING", "RUNNING"]
    below.send_event("approval", 4)
    drain()
    assert value(handle, "approval") == 4
    assert str(handle.status()) == "COMPLETED"


@pytest.mark.slow
def test_cancel_reaches_the_children(drain):
    handle = start_and_drain(Workflow("top", {"approval": bodies.Waiting.node()()}), drain)
    (below,) = children(handle)

    assert handle.cancel()

    assert [str(row.status) for row in rows()] == ["CANCELLED", "CANCELLED"]
    assert states(below) == {"approval": "SKIPPED", "after": "SKIPPED"}
    assert not {"RUNNING", "ENQUEUED", "READY", "PENDING"} & set(states(handle).values())
    assert not inconsistencies(handle) + inconsistencies(below)


@pytest.mark.slow
def test_a_cancelled_child_fails_its_node(drain):
    sub = bodies.Waiting.node(node_id="sub")()
    after = bodies.echo.node(node_id="after", waits_for=[sub])()
    handle = start_and_drain(Workflow("top", [sub, after]), drain)
    (below,) = children(handle)

    assert below.cancel()
    drain()

    assert codes(handle) == {"sub": "WORKFLOW_CANCELLED", "after": "UPSTREAM_SKIPPED"}
    assert str(handle.status()) == "FAILED"


@pytest.mark.slow
@pytest.mark.parametrize("which", ["child", "root"])
def test_a_paused_child_without_open_nodes_can_be_cancelled(drain, which):
    handle = start_and_drain(Workflow("top", {"fragile": bodies.Fragile.node()(key=f"fragile {which}")}), drain)
    (below,) = children(handle)
    assert [str(row.status) for row in rows()] == ["RUNNING", "PAUSED"]

    assert (below if which == "child" else handle).cancel()
    drain()

    assert str(below.status()) == "CANCELLED"
    assert str(handle.status()) == ("FAILED" if which == "child" else "CANCELLED")
    assert codes(handle) == {"fragile": "WORKFLOW_CANCELLED"}
    assert inconsistencies(handle) == []


@pytest.mark.slow
def test_a_paused_child_can_be_resumed_alone(drain):
    handle = start_and_drain(Workflow("top", {"fragile": bodies.Fragile.node()(key="fragile")}), drain)
    (below,) = children(handle)

    assert below.resume()
    drain()

    assert codes(handle) == {"fragile": "SUBWORKFLOW_FAILED"}
    assert [str(row.status) for row in rows()] == ["FAILED", "FAILED"]


@pytest.mark.slow
def test_a_failure_pauses_the_children_of_its_workflow(drain):
    nodes = {"approval": bodies.Waiting.node()(), "bad": bodies.fail.node(queue_name="slow")()}
    handle = ran_on_default(Workflow("top", nodes, on_error=OnError.PAUSE), drain)

    drain()

    assert [str(row.status) for row in rows()] == ["PAUSED", "PAUSED"]
    (below,) = children(handle)
    assert not below.resume()  # the workflow above is paused
    below.send_event("approval", 1)
    handle.resume()
    drain()
    assert states(handle) == {"approval": "COMPLETED", "bad": "FAILED"}
    assert str(handle.status()) == "FAILED"


def ran_on_default(workflow, drain):
    handle = workflow.start()
    drain(queues="default")
    return handle


@pytest.mark.slow
def test_a_child_built_during_a_pause_runs_only_after_the_resume(drain):
    handle = start_stopping("pause")
    drain()

    assert "RUNNING" not in [str(row.status) for row in WorkflowRow.objects.filter(root_id=handle.id)]
    assert all_inconsistencies(handle) == []
    assert times("stopping pause") == 0
    assert handle.resume()
    drain()
    assert str(handle.status()) == "COMPLETED"
    assert times("stopping pause") == 1


@pytest.mark.slow
def test_a_child_built_during_a_cancel_never_runs(drain):
    handle = start_stopping("cancel")
    drain()

    assert {str(row.status) for row in WorkflowRow.objects.filter(root_id=handle.id)} == {"CANCELLED"}
    assert times("stopping cancel") == 0
    assert not {"RUNNING", "ENQUEUED", "READY", "PENDING"} & set(states(handle).values())
    assert inconsistencies(handle) == []


def test_a_node_that_ends_while_its_child_is_built_gets_no_child(drain):
    other = wait_for_event("other", node_id="other")
    handle = Workflow("top", [bodies.CancelsOwnTask.node(node_id="sub")(node_id="sub"), other]).start()

    drain()

    assert (codes(handle)["sub"], children(handle)) == ("TASK_CANCELLED", [])
    assert states(handle) == {"sub": "FAILED", "other": "RUNNING"}


@pytest.mark.slow
@pytest.mark.parametrize("retries", [None, 1])
def test_a_build_runs_again_after_its_worker_died_as_often_as_its_node_says_or_ten_times(transactional_db, retries):
    own = None if retries is None else RetryPolicy.fixed([60] * retries, auto_retry_for=["WORKER_CRASHED"])
    Workflow("top", [bodies.Leaf.node(node_id="leaf", retry_policy=own)(key="leaf")]).start()

    crashes = 0
    while Task.objects.pending().exists():
        make_due()
        with transaction.atomic():
            Task.objects.claim("dead", start=1)
        crashes += recover_all(Task.objects.held_by("dead"))

    assert crashes == 1 + (retries or 10)


@pytest.mark.slow
def test_a_node_ends_with_its_child_even_if_the_task_that_built_it_failed(drain):
    """A worker may die between the two commits, and the node's retry policy may not cover a crash."""
    handle = Workflow("top", [bodies.Waiting.node(node_id="sub")()]).start()
    drain()
    (below,) = children(handle)
    end_without_notifying("sub", status="FAILED", result=None, error_code="WORKER_CRASHED")

    recover_stuck_workflows()
    before = states(handle)
    below.send_event("approval", 4)
    drain()

    assert before == {"sub": "RUNNING"}
    assert value(handle, "sub") == 4
    assert str(handle.status()) == "COMPLETED"
    assert inconsistencies(handle) == []


def start_stopping(action):
    key = uuid4()
    return Workflow("top", {"sub": bodies.Stopping.node()(action=action, workflow_id=str(key))}).start(key)


@pytest.mark.slow
def test_retry_reaches_failed_children(drain):
    middle = bodies.Middle.node(node_id="middle")(key="again", fails=1)
    good = bodies.Leaf.node(node_id="good")(key="good")
    after = bodies.echo.node(node_id="after")(value=[middle, good])
    handle = start_and_drain(Workflow("top", [middle, good, after], output=after), drain)
    assert str(handle.status()) == "FAILED"

    assert handle.retry()
    drain()

    assert handle.get(timeout=0).ok == [["again", None], ["good", None]]
    assert (times("again"), times("good")) == (2, 1)
    assert rows().count() == 4
    for one in (handle, *children(handle)):
        assert inconsistencies(one) == []


@pytest.mark.slow
def test_retry_after_a_cancel_reaches_the_children(drain):
    sub = bodies.Waiting.node(node_id="sub")()
    handle = start_and_drain(Workflow("top", [sub, bodies.echo.node(node_id="after")(value=sub)]), drain)
    (below,) = children(handle)
    handle.cancel()
    drain()

    assert handle.retry()
    drain()
    assert below.send_event("approval", 9)
    drain()

    assert value(handle, "after") == 9
    assert str(handle.status()) == "COMPLETED"


@pytest.mark.slow
def test_retry_builds_a_failed_child_again(drain):
    handle = start_and_drain(Workflow("top", {"broken": bodies.Broken.node()(why="no reason")}), drain)

    assert handle.retry()
    drain()

    assert states(handle) == {"broken": "FAILED"}
    assert inconsistencies(handle) == []


@pytest.mark.slow
def test_a_retry_of_a_child_with_a_map_reruns_only_its_failed_items(drain):
    handle = start_and_drain(Workflow("top", {"wide": bodies.Wide.node()(key="wide", fails=1)}), drain)
    failed = states(handle)

    assert handle.retry()
    drain()

    assert failed == {"wide": "FAILED"}
    assert value(handle, "wide") == [10, 20, 30]
    assert [times(f"wide-{item}") for item in (1, 2, 3)] == [2, 1, 2]


@pytest.mark.slow
def test_a_pause_takes_back_a_child_whose_build_has_not_started(drain):
    handle = Workflow("top", {"leaf": bodies.Leaf.node()(key="leaf")}).start()

    handle.pause()
    drain()
    before = states(handle)
    handle.resume()
    drain()

    assert before == {"leaf": "READY"}
    assert value(handle, "leaf") == ["leaf", None]


@pytest.mark.slow
def test_a_pause_and_resume_after_each_step_keeps_the_rows_consistent(drain):
    handle = Workflow("top", {"leaf": bodies.Leaf.node()(key="leaf"), "two": bodies.echo.node()()}).start()
    for _ in range(10):
        step()
        handle.pause()
        handle.resume()
        assert not [one for run in (handle, *children(handle)) for one in inconsistencies(run)]
    assert str(handle.status()) == "COMPLETED"
    assert times("leaf") == 1


def policy(*codes, retries=2):
    """Return a policy whose retries become due only when the test makes them due, however slow the machine is."""
    return RetryPolicy.fixed([60] * retries, auto_retry_for=codes, jitter=False)


@pytest.mark.slow
@pytest.mark.parametrize("code", ["*", "SUBWORKFLOW_FAILED", "NOT_YET"])
def test_a_failed_subworkflow_is_retried_by_its_policy(drain, code):
    leaf = bodies.Leaf.node(node_id="leaf", retry_policy=policy(code))(key="policy", fails=1)
    handle = start_and_drain(Workflow("top", [leaf], on_error=OnError.PAUSE), drain)

    assert states(handle) == {"leaf": "ENQUEUED"}
    assert inconsistencies(handle) == []
    assert recover_stuck_workflows() == []
    make_due()
    drain()

    assert value(handle, "leaf") == ["policy", None]
    assert times("policy") == 2
    below = WorkflowRow.objects.filter(parent__workflow=handle.id).order_by("sent_at")
    assert list(below.values_list("status", "is_replaced")) == [("FAILED", True), ("COMPLETED", False)]
    assert str(handle.status()) == "COMPLETED"


@pytest.mark.slow
@pytest.mark.parametrize("value", [0, bodies.echo.node(node_id="value")(value=0)], ids=["value", "node"])
def test_an_outdated_build_task_builds_no_second_child(drain, value):
    """A worker may die after it has built a child and before its task's end is stored: then the task runs again."""
    leaf = bodies.Leaf.node(node_id="leaf", retry_policy=policy("*"))(key="policy", fails=1, value=value)
    handle = start_and_drain(Workflow("top", [leaf, *([value] if value else [])]), drain)
    first = Task.objects.get(workflow_id=handle.id, task_name__endswith=".build", status="COMPLETED")
    Task.objects.filter(pk=first.pk).update(status="PENDING", result=None, completed_at=None)

    drain()

    first.refresh_from_db()
    assert (first.status, first.result) == ("COMPLETED", {"ok": None})
    assert (states(handle)["leaf"], len(children(handle))) == ("ENQUEUED", 1)
    make_due()
    drain()
    assert str(handle.status()) == "COMPLETED"
    assert inconsistencies(handle) == []


@pytest.mark.slow
def test_a_node_fails_if_the_retry_of_its_subworkflow_can_not_be_built(drain):
    node = bodies.BuiltOnce.node(node_id="node", retry_policy=policy("SUBWORKFLOW_FAILED"))(key="once")
    handle = start_and_drain(Workflow("top", [node]), drain)

    make_due()
    drain()

    assert codes(handle) == {"node": "UNHANDLED_EXCEPTION"}
    assert str(handle.status()) == "FAILED"
    assert inconsistencies(handle) == []


@pytest.mark.slow
def test_an_exhausted_policy_fails_the_node_and_a_manual_retry_restarts_it(drain):
    leaf = bodies.Leaf.node(node_id="leaf", retry_policy=policy("*", retries=1))(key="policy", fails=3)
    handle = start_and_drain(Workflow("top", [leaf]), drain)

    make_due()
    drain()

    assert (codes(handle), times("policy")) == ({"leaf": "SUBWORKFLOW_FAILED"}, 2)
    assert handle.retry()
    drain()
    make_due()
    drain()
    assert value(handle, "leaf") == ["policy", None]
    assert times("policy") == 4
    assert inconsistencies(handle) == []


@pytest.mark.slow
def test_the_policy_sets_number_and_delay_of_subworkflow_retries(drain):
    policy = RetryPolicy.fixed([60, 3_600], auto_retry_for=["*"], jitter=False)
    leaf = bodies.Leaf.node(node_id="leaf", retry_policy=policy)(key="policy", fails=99)
    handle = start_and_drain(Workflow("top", [leaf]), drain)

    retries = []
    for _ in range(2):
        build = WorkflowTask.objects.get(node_id="leaf").task
        retries.append((build.retry_count, round((build.run_after - build.sent_at).total_seconds())))
        make_due()
        drain()

    assert retries == [(1, 60), (2, 3_600)]
    below = WorkflowRow.objects.filter(parent__workflow=handle.id).order_by("sent_at")
    assert [row.is_replaced for row in below] == [True, True, False]
    assert times("policy") == 3
    assert codes(handle) == {"leaf": "SUBWORKFLOW_FAILED"}
    assert recover_stuck_workflows() == []


@pytest.mark.slow
def test_subworkflows_that_fail_one_after_the_other_are_each_retried(drain):
    quick = bodies.Leaf.node(node_id="quick", retry_policy=policy("*"))(key="quick", fails=1)
    slow = bodies.Leaf.node(node_id="slow", retry_policy=policy("*"))(key="slow", fails=1)
    before = [bodies.echo.node(node_id=str(number))() for number in range(6)]
    handle = start_and_drain(Workflow("top", [quick, reduce(rshift, [*before, slow])]), drain)

    assert [states(handle)[key] for key in ("quick", "slow")] == ["ENQUEUED", "ENQUEUED"]
    for build in WorkflowTask.objects.filter(workflow=handle.id, status="ENQUEUED"):
        assert (build.task.retry_count, build.task.deferred) == (1, True)
    make_due()
    drain()

    assert (times("quick"), times("slow"), str(handle.status())) == (2, 2, "COMPLETED")


@pytest.mark.slow
def test_a_pause_does_not_grant_extra_retries(drain):
    leaf = bodies.Leaf.node(node_id="leaf", retry_policy=policy("*", retries=1))(key="policy", fails=99)
    handle = start_and_drain(Workflow("top", [leaf]), drain)

    handle.pause()
    handle.resume()
    drain()

    assert times("policy") == 2
    assert codes(handle) == {"leaf": "SUBWORKFLOW_FAILED"}


@pytest.mark.slow
def test_a_replaced_subworkflow_stays_as_it_is(drain):
    leaf = bodies.Leaf.node(node_id="leaf", retry_policy=policy("*"))(key="policy", fails=1)
    handle = start_and_drain(Workflow("top", [leaf]), drain)
    (old,) = children(handle)

    assert not old.retry()
    assert handle.pause()
    assert handle.cancel()
    assert handle.retry()
    drain()

    assert times("policy") == 2
    assert str(old.status()) == "FAILED"
    assert value(handle, "leaf") == ["policy", None]
    assert inconsistencies(handle) == []


@pytest.mark.slow
def test_a_subworkflow_completes_although_its_build_task_is_deleted(drain):
    nodes = {"leaf": bodies.Waiting.node()(), "asked": bodies.echo.node(run_when=bodies.yes)(value=1)}
    handle = start_and_drain(Workflow("top", nodes), drain)
    Task.objects.filter(status="COMPLETED").delete()

    assert recover_stuck_workflows() == []
    children(handle)[0].send_event("approval", 3)
    drain()

    assert value(handle, "leaf") == 3
    assert str(handle.status()) == "COMPLETED"


@pytest.mark.slow
def test_an_error_that_the_policy_does_not_cover_is_not_retried(drain):
    leaf = bodies.Leaf.node(node_id="leaf", retry_policy=policy("OTHER"))(key="policy", fails=1)

    handle = start_and_drain(Workflow("top", [leaf]), drain)

    assert (codes(handle), times("policy")) == ({"leaf": "SUBWORKFLOW_FAILED"}, 1)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["pause", "cancel"])
def test_pause_and_cancel_take_back_a_waiting_retry(drain, how):
    leaf = bodies.Leaf.node(node_id="leaf", retry_policy=policy("*"))(key="policy", fails=1)
    handle = start_and_drain(Workflow("top", [leaf]), drain)

    assert getattr(handle, how)()

    assert states(handle) == {"leaf": "READY" if how == "pause" else "SKIPPED"}
    assert inconsistencies(handle) == []
    assert (handle.resume if how == "pause" else handle.retry)()
    drain()
    assert value(handle, "leaf") == ["policy", None]
    assert times("policy") == 2
