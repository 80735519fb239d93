"""Deadlines of workflows and of nodes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from horsies_django import OnError, Workflow, wait_for_event
from horsies_django.core.compat import task_backends
from horsies_django.core.status import TASK_TERMINAL_STATES
from horsies_django.models import Task, WorkflowTask
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.reaper.duties import run_pass
from tests.workflows import bodies
from tests.workflows.runs import children, codes, inconsistencies, reap, start_and_drain, states, times, value

pytestmark = pytest.mark.once

HOUR = timedelta(hours=1)


def pass_deadline(handle):
    WorkflowRow.objects.filter(pk=handle.id).update(good_until=timezone.now() - HOUR)


@pytest.mark.slow
def test_a_node_that_does_not_start_before_its_deadline_fails(drain):
    late = bodies.flaky.node(node_id="late", good_until=timezone.now() - HOUR)(key="late")
    after = bodies.describe_outcome.node(node_id="after", allow_failed_deps=True)(outcome=late.result)
    handle = start_and_drain(Workflow("late", [late, after]), drain)

    reap()
    drain()

    assert codes(handle) == {"late": "TASK_EXPIRED", "after": None}
    assert value(handle, "after") == "err TASK_EXPIRED"
    assert times("late") == 0
    assert str(handle.status()) == "FAILED"
    assert inconsistencies(handle) == []


@pytest.mark.slow
@pytest.mark.parametrize("action", ["pause", "cancel", "on_error"])
def test_a_stop_expires_claimed_nodes_past_their_deadline_and_no_others(drain, action):
    late = bodies.flaky.node(node_id="late", good_until=timezone.now() + HOUR)(key="late")
    other = bodies.flaky.node(node_id="other")(key="other")
    after = bodies.describe_outcome.node(node_id="after", waits_for=[other], allow_failed_deps=True)(
        outcome=late.result
    )
    failing = [bodies.fail.node(node_id="failing")()] if action == "on_error" else []
    handle = Workflow("claimed", [late, other, after, *failing], on_error=OnError.PAUSE).start()
    with transaction.atomic():
        nodes = WorkflowTask.objects.filter(node_id__in=["late", "other"]).values("task_id")
        claims = Task.objects.filter(pk__in=nodes).claim("worker", start=0, prefetch=2)
    tasks = {task.kwargs["key"]: task for task in Task.objects.filter(pk__in=[claim.task_id for claim in claims])}
    Task.objects.filter(pk=tasks["late"].pk).update(good_until=timezone.now() - HOUR)

    if action == "on_error":
        drain()
    else:
        assert getattr(handle, action)()

    for task in tasks.values():
        task.refresh_from_db()
    assert (tasks["late"].status, tasks["late"].error_code) == ("EXPIRED", "TASK_EXPIRED")
    assert tasks["late"].claimed_by_worker_id == "worker"
    assert tasks["late"].result["err"]["data"] == {"task_id": str(tasks["late"].pk), "worker_id": "worker"}
    assert codes(handle)["late"] == "TASK_EXPIRED"
    assert tasks["other"].status == ("CANCELLED" if action == "cancel" else "PENDING")
    assert inconsistencies(handle) == []
    with transaction.atomic():
        assert Task.objects.start(claims, "worker") == set()
    drain()
    reap()
    assert times("other") == 0
    if action == "cancel":
        return
    assert tasks["other"].claimed_by_worker_id is None
    assert handle.resume()
    drain()
    tasks["other"].refresh_from_db()
    assert (tasks["other"].status, times("other"), times("late")) == ("COMPLETED", 1, 0)
    assert WorkflowTask.objects.get(node_id="other").task_id == tasks["other"].pk
    assert value(handle, "after") == "err TASK_EXPIRED"
    assert str(handle.status()) == "FAILED"
    assert inconsistencies(handle) == []


@pytest.mark.slow
@pytest.mark.parametrize("action", ["pause", "cancel"])
def test_a_pause_or_cancel_leaves_an_expired_node_expired(drain, action):
    late = bodies.flaky.node(node_id="late", good_until=timezone.now() - HOUR)(key="late")
    handle = Workflow("late", [late, bodies.echo.node(node_id="other")()]).start()
    reap()
    assert states(handle)["late"] == "FAILED"

    assert getattr(handle, action)()
    reap()
    drain()

    assert codes(handle)["late"] == "TASK_EXPIRED"
    assert handle.resume() == (action == "pause")
    drain()
    assert times("late") == 0
    assert codes(handle)["late"] == "TASK_EXPIRED"
    assert str(handle.status()) == ("FAILED" if action == "pause" else "CANCELLED")


@pytest.mark.slow
def test_a_node_past_its_deadline_expires_after_a_pause(drain):
    late = bodies.flaky.node(node_id="late", good_until=timezone.now() - HOUR)(key="late")
    handle = Workflow("late", [late]).start()
    handle.pause()
    reap()

    handle.resume()
    reap()
    drain()

    assert codes(handle) == {"late": "TASK_EXPIRED"}
    assert times("late") == 0
    assert str(handle.status()) == "FAILED"


@pytest.mark.slow
@pytest.mark.parametrize("paused", [False, True])
def test_a_workflow_past_its_deadline_expires(drain, paused):
    first = bodies.echo.node(node_id="first")()
    nodes = [
        first,
        wait_for_event("approval", node_id="approval"),
        bodies.echo.node(node_id="after", waits_for=[first])(),
    ]
    nodes.append(bodies.echo.node(node_id="last", waits_for=nodes[1:])())
    handle = start_and_drain(Workflow("late", nodes, good_until=timezone.now() + HOUR), drain)
    if paused:
        handle.pause()
    reap()
    before = str(handle.status())

    pass_deadline(handle)
    reap()
    drain()

    assert before == ("PAUSED" if paused else "RUNNING")
    assert str(handle.status()) == "EXPIRED"
    assert handle.get(timeout=0).err.error_code == "WORKFLOW_EXPIRED"
    assert states(handle) == {"first": "COMPLETED", "approval": "SKIPPED", "after": "COMPLETED", "last": "SKIPPED"}
    assert codes(handle)["last"] == "WORKFLOW_EXPIRED"
    assert inconsistencies(handle) == []


def test_a_workflow_past_its_deadline_expires_while_a_node_is_enqueued(drain):
    handle = Workflow("late", {"step": bodies.echo.node()()}, good_until=timezone.now() - HOUR).start()

    reap()
    drain()

    assert handle.get(timeout=0).err.error_code == "WORKFLOW_EXPIRED"
    assert codes(handle) == {"step": "WORKFLOW_EXPIRED"}
    assert inconsistencies(handle) == []


@pytest.mark.slow
def test_subworkflows_expire_with_their_parent(drain):
    handle = start_and_drain(
        Workflow("late", {"sub": bodies.Waiting.node()()}, good_until=timezone.now() + HOUR), drain
    )
    (child,) = children(handle)

    pass_deadline(handle)
    reap()

    assert (str(handle.status()), str(child.status())) == ("EXPIRED", "EXPIRED")
    assert not {"RUNNING", "ENQUEUED", "READY", "PENDING"} & set(states(handle).values())
    assert inconsistencies(handle) == []
    assert not Task.objects.exclude(status__in=TASK_TERMINAL_STATES).exists()


@pytest.mark.slow
def test_a_subworkflow_that_its_parent_has_ended_does_not_expire_again(drain):
    top, later = (start_and_drain(Workflow(name, {"sub": bodies.Waiting.node()()}), drain) for name in ("top", "later"))
    (child,) = children(top)
    for overdue in (top, child, later):  # in the order in which they expire
        pass_deadline(overdue)

    counts = {report.duty: report.count for report in run_pass(task_backends["default"].config)}

    assert counts["expired overdue workflows"] == 2

    assert {str(handle.status()) for handle in (top, child, later)} == {"EXPIRED"}


@pytest.mark.slow
def test_an_expired_subworkflow_fails_its_node(drain):
    sub = bodies.Fragile.node(node_id="sub")(key="fragile")
    after = bodies.echo.node(node_id="after", waits_for=[sub])()
    handle = start_and_drain(Workflow("late", [sub, after]), drain)
    (child,) = children(handle)

    pass_deadline(child)
    reap()
    drain()

    assert (str(child.status()), str(handle.status())) == ("EXPIRED", "FAILED")
    assert codes(handle) == {"sub": "WORKFLOW_EXPIRED", "after": "UPSTREAM_SKIPPED"}


def test_a_completed_workflow_does_not_expire(drain):
    handle = start_and_drain(Workflow("early", {"one": bodies.echo.node()()}, good_until=timezone.now() + HOUR), drain)

    pass_deadline(handle)
    reap()

    assert str(handle.status()) == "COMPLETED"


@pytest.mark.slow
def test_an_expired_workflow_can_be_retried_with_a_new_deadline(drain):
    handle = start_and_drain(
        Workflow("late", {"approval": wait_for_event("approval")}, good_until=timezone.now() + HOUR), drain
    )
    pass_deadline(handle)
    reap()

    WorkflowRow.objects.filter(pk=handle.id).update(good_until=timezone.now() + HOUR)
    assert handle.retry()
    reap()
    handle.send_event("approval", 1)

    assert str(handle.status()) == "COMPLETED"


# Workflows that stay paused.


def limit_pauses(settings, after):
    settings.TASKS = {
        "default": {
            "BACKEND": "horsies_django.backend.HorsiesBackend",
            "QUEUES": [],
            "OPTIONS": {"recovery": {"paused_workflow_auto_cancel_after": after}},
        }
    }


def set_paused_for(handle, ago):
    rows = WorkflowRow.objects.filter(Q(pk=handle.id) | Q(root_id=handle.id), status="PAUSED")
    rows.update(paused_at=timezone.now() - ago)


@pytest.mark.slow
def test_a_workflow_paused_for_too_long_expires_and_gives_the_reason(drain, settings):
    limit_pauses(settings, "2h")
    handle = start_and_drain(Workflow("paused", {"sub": bodies.Waiting.node()(), "two": bodies.echo.node()()}), drain)
    (child,) = children(handle)
    handle.pause()
    set_paused_for(handle, timedelta(hours=1))
    reap()
    assert str(handle.status()) == "PAUSED"

    set_paused_for(handle, timedelta(hours=3))
    reap()

    assert (str(handle.status()), str(child.status())) == ("EXPIRED", "EXPIRED")
    error = handle.get(timeout=0).err
    assert error.error_code == "WORKFLOW_EXPIRED"
    assert "paused for 3:00:0" in error.message
    assert "longer than paused_workflow_auto_cancel_after, 2:00:00" in error.message
    assert (error.data["policy"], error.data["allowed_seconds"]) == ("paused_workflow_auto_cancel_after", 7_200)
    assert 10_800 <= error.data["paused_seconds"] < 10_900
    assert codes(handle) == {"sub": "WORKFLOW_EXPIRED", "two": None}
    assert inconsistencies(handle) == []
    assert inconsistencies(child) == []


@pytest.mark.slow
def test_a_subworkflow_paused_for_too_long_fails_its_node(drain, settings):
    limit_pauses(settings, 7_200)
    sub = bodies.Fragile.node(node_id="sub")(key="fragile")
    handle = start_and_drain(Workflow("top", [sub, bodies.echo.node(node_id="after", waits_for=[sub])()]), drain)
    (child,) = children(handle)
    set_paused_for(handle, timedelta(hours=3))

    reap()

    assert (str(child.status()), str(handle.status())) == ("EXPIRED", "FAILED")
    assert codes(handle) == {"sub": "WORKFLOW_EXPIRED", "after": "UPSTREAM_SKIPPED"}
    assert "paused_workflow_auto_cancel_after" in handle.get(timeout=0).err.message
    assert child.retry()
    drain()
    assert (str(handle.status()), value(handle, "sub")) == ("COMPLETED", 2)


@pytest.mark.slow
def test_a_subworkflow_of_a_paused_workflow_expires_only_with_it(drain, settings):
    limit_pauses(settings, "2h")
    nodes = {"sub": bodies.Fragile.node()(key="fragile"), "approval": wait_for_event("approval")}
    handle = start_and_drain(Workflow("top", nodes), drain)
    (child,) = children(handle)
    handle.pause()
    set_paused_for(child, timedelta(hours=3))

    reap()
    before = str(child.status())
    set_paused_for(handle, timedelta(hours=3))
    reap()

    assert before == "PAUSED"
    assert (str(handle.status()), str(child.status())) == ("EXPIRED", "EXPIRED")


def test_by_default_a_paused_workflow_never_expires(drain):
    handle = Workflow("paused", {"one": bodies.echo.node()()}).start()
    handle.pause()
    set_paused_for(handle, timedelta(days=4_000))

    reap()

    assert str(handle.status()) == "PAUSED"
