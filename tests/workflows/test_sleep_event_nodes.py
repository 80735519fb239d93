"""Sleeps and events."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.utils import timezone

from horsies_django import Workflow, sleep, wait_for_event
from horsies_django.models import Task, WorkflowEvent, WorkflowTask
from tests.workflows import bodies
from tests.workflows.runs import codes, inconsistencies, open_tasks, start_and_drain, states, value, wait_and_drain

pytestmark = pytest.mark.once


@pytest.mark.slow
def test_a_sleep_lasts_as_long_as_it_says(drain):
    first = bodies.echo.node(node_id="first")()
    nap = sleep(timedelta(seconds=0.4), node_id="nap")
    after = bodies.echo.node(node_id="after")(value=5)

    handle = start_and_drain(Workflow("nap", first >> nap >> after), drain)
    wait_and_drain(handle, drain)

    assert (value(handle, "after"), value(handle, "nap")) == (5, None)
    row = WorkflowTask.objects.get(workflow=handle.id, node_id="nap")
    assert (row.completed_at - row.started_at).total_seconds() >= 0.4
    assert WorkflowTask.objects.get(workflow=handle.id, node_id="after").started_at >= row.completed_at


@pytest.mark.parametrize("until", [0, timedelta(0), timezone.now() - timedelta(days=1)], ids=["0", "none", "yesterday"])
def test_a_sleep_that_is_already_over_ends_at_once(drain, until):
    handle = start_and_drain(Workflow("nap", {"nap": sleep(until), "one": bodies.echo.node()()}), drain)

    assert str(handle.status()) == "COMPLETED"


def test_a_sleep_until_a_time_is_scheduled_for_that_time(drain):
    until = timezone.now() + timedelta(hours=1)
    first, nap = bodies.echo.node(node_id="first")(), sleep(until, node_id="nap")
    handle = start_and_drain(Workflow("nap", first >> nap >> bodies.echo.node(node_id="after")()), drain)

    assert states(handle) == {"first": "COMPLETED", "nap": "ENQUEUED", "after": "PENDING"}
    assert Task.objects.get(workflow_id=handle.id, status="PENDING").run_after == until


@pytest.mark.parametrize(
    "payload", [None, {"a": ["é", None]}, *(pytest.param(value, marks=pytest.mark.slow) for value in (7, [], "null"))]
)
def test_an_event_completes_the_node_that_waits_for_it(drain, payload):
    approval = wait_for_event("approval", node_id="approval")
    after = bodies.echo.node(node_id="after")(value=approval)
    handle = start_and_drain(Workflow("event", [approval, after]), drain)
    before = states(handle)

    assert handle.send_event("other")
    assert handle.send_event("approval", payload)
    drain()

    assert before == {"approval": "RUNNING", "after": "PENDING"}
    assert value(handle, "approval") == value(handle, "after") == payload
    assert inconsistencies(handle) == []


def test_an_early_event_is_kept_and_a_later_one_replaces_it(drain):
    first, approval = bodies.echo.node(node_id="first")(), wait_for_event("approval", node_id="approval")
    handle = Workflow("event", first >> approval).start()

    handle.send_event("approval", 1)
    handle.send_event("approval", 2)
    drain()

    assert value(handle, "approval") == 2
    assert str(handle.status()) == "COMPLETED"
    assert WorkflowEvent.objects.filter(workflow=handle.id).count() == 1


def test_an_event_reaches_all_nodes_that_wait_for_it(drain):
    nodes = {
        "one": wait_for_event("approval"),
        "two": wait_for_event("approval", timeout=60),
        "other": wait_for_event("else"),
    }
    handle = start_and_drain(Workflow("event", nodes), drain)

    handle.send_event("approval", "x")

    assert states(handle) == {"one": "COMPLETED", "two": "COMPLETED", "other": "RUNNING"}
    assert open_tasks() == 0


@pytest.mark.slow
def test_an_event_timeout_fails_the_node(drain):
    approval = wait_for_event("approval", timeout=0.3, node_id="approval")
    after = bodies.describe_outcome.node(node_id="after", allow_failed_deps=True)(outcome=approval.result)
    handle = start_and_drain(Workflow("event", [approval, after]), drain)

    wait_and_drain(handle, drain)

    assert codes(handle) == {"approval": "EVENT_TIMEOUT", "after": None}
    assert value(handle, "after") == "err EVENT_TIMEOUT"


@pytest.mark.slow
def test_an_event_after_its_timeout_changes_nothing(drain):
    approval = wait_for_event("approval", timeout=0.2, node_id="approval")
    handle = start_and_drain(Workflow("event", {"approval": approval, "other": wait_for_event("other")}), drain)
    while states(handle)["approval"] == "RUNNING":
        drain()

    handle.send_event("approval", 1)
    drain()

    assert codes(handle)["approval"] == "EVENT_TIMEOUT"
    assert inconsistencies(handle) == []


@pytest.mark.slow
@pytest.mark.parametrize("timeout", [None, 60])
def test_an_event_sent_to_a_paused_workflow_is_kept(drain, timeout):
    approval = wait_for_event("approval", timeout=timeout, node_id="approval")
    after = bodies.echo.node(node_id="after")(value=approval)
    handle = start_and_drain(Workflow("event", [approval, after]), drain)

    assert handle.pause()
    assert handle.send_event("approval", 3)
    drain()
    assert states(handle)["after"] == "PENDING"
    assert handle.resume()
    drain()

    assert value(handle, "after") == 3
    assert str(handle.status()) == "COMPLETED"
    assert open_tasks() == 0


def test_an_event_sent_to_an_ended_workflow_is_refused(drain):
    handle = start_and_drain(Workflow("event", {"one": bodies.echo.node()()}), drain)

    assert not handle.send_event("approval")
    assert not WorkflowEvent.objects.exists()


@pytest.mark.parametrize("timeout", [None, 60])
def test_a_cancel_ends_sleeps_and_event_waits(drain, timeout):
    nodes = {"approval": wait_for_event("approval", timeout=timeout), "nap": sleep(60)}
    handle = start_and_drain(Workflow("event", nodes), drain)

    assert handle.cancel()

    assert codes(handle) == {"approval": "WORKFLOW_CANCELLED", "nap": "WORKFLOW_CANCELLED"}
    assert open_tasks() == 0
    assert inconsistencies(handle) == []


def test_a_pause_does_not_delay_the_end_of_a_sleep(drain):
    handle = start_and_drain(Workflow("nap", {"nap": sleep(3_600)}), drain)
    due = Task.objects.get(workflow_id=handle.id).run_after

    handle.pause()
    handle.resume()

    row = WorkflowTask.objects.get(workflow=handle.id)
    assert row.task.run_after == row.until == due


@pytest.mark.slow
@pytest.mark.parametrize("wait", [sleep(3_600), wait_for_event("approval", timeout=3_600)], ids=["sleep", "event"])
def test_a_sleep_or_event_that_runs_out_during_a_pause_ends_on_resume(drain, wait):
    handle = start_and_drain(Workflow("nap", {"wait": wait}), drain)

    handle.pause()
    WorkflowTask.objects.update(until=Now())
    drain()
    before = states(handle)
    handle.resume()
    drain()

    assert before == {"wait": "READY"}
    assert codes(handle) == {"wait": None if wait.kind == "sleep" else "EVENT_TIMEOUT"}
    assert open_tasks() == 0
    assert inconsistencies(handle) == []


@pytest.mark.slow
@pytest.mark.parametrize("wait", [sleep(3_600), wait_for_event("approval", timeout=3_600)], ids=["sleep", "event"])
def test_a_retried_sleep_or_event_waits_its_full_time_again(drain, wait):
    handle = start_and_drain(Workflow("nap", {"wait": wait}), drain)
    handle.cancel()
    WorkflowTask.objects.update(until=Now())

    handle.retry()
    drain()

    row = WorkflowTask.objects.get(workflow=handle.id)
    assert row.until - row.started_at >= timedelta(minutes=59)
    assert row.task.run_after == row.until


@pytest.mark.slow
def test_a_retried_sleep_keeps_its_given_end_time(drain):
    until = timezone.now() + timedelta(hours=1)
    handle = start_and_drain(Workflow("nap", {"nap": sleep(until)}), drain)
    handle.cancel()

    handle.retry()

    assert WorkflowTask.objects.get(workflow=handle.id).task.run_after == until


@pytest.mark.slow
def test_a_retry_keeps_received_events_and_waits_for_the_others(drain):
    handle = start_and_drain(
        Workflow("event", {"approval": wait_for_event("approval"), "late": wait_for_event("late", timeout=60)}), drain
    )
    handle.send_event("approval", 1)
    handle.cancel()

    assert handle.retry()
    drain()

    assert states(handle) == {"approval": "COMPLETED", "late": "RUNNING"}
    handle.send_event("late", 2)
    assert str(handle.status()) == "COMPLETED"
