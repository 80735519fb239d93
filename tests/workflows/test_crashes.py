"""Workers that die, and the repair of rows that were changed outside the engine."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from horsies_django import RetryPolicy, Workflow, sleep, wait_for_event
from horsies_django.core.status import TASK_TERMINAL_STATES
from horsies_django.models import Task, WorkflowTask
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.reaper.recovery import recover_stuck_workflows
from tests.workflows import bodies
from tests.workflows.runs import (
    children,
    claim_as_dead_worker,
    codes,
    inconsistencies,
    make_due,
    reap,
    start_and_drain,
    states,
    step,
    times,
    value,
)

pytestmark = pytest.mark.once

LONG_AGO = timedelta(hours=1)


def nodes(**options):
    first = bodies.flaky.node(node_id="first", **options)(key="first")
    return [first, bodies.echo.node(node_id="after", waits_for=[first])()]


@pytest.mark.slow
def test_a_node_whose_worker_dies_fails(drain):
    handle = Workflow("crash", nodes()).start()
    assert len(claim_as_dead_worker()) == 1
    assert states(handle) == {"first": "RUNNING", "after": "PENDING"}

    reap()

    assert codes(handle) == {"first": "WORKER_CRASHED", "after": "UPSTREAM_SKIPPED"}
    assert str(handle.status()) == "FAILED"
    assert inconsistencies(handle) == []


@pytest.mark.slow
def test_a_node_whose_worker_dies_is_retried_if_its_policy_says_so(drain):
    policy = RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False)
    handle = Workflow("crash", nodes(retry_policy=policy)).start()
    claim_as_dead_worker()

    reap()
    assert states(handle)["first"] == "RUNNING"
    make_due()
    drain()

    assert str(handle.status()) == "COMPLETED"
    assert times("first") == 1


@pytest.mark.slow
@pytest.mark.parametrize("retries", [False, True])
@pytest.mark.parametrize("action", ["pause", "cancel"])
def test_a_worker_that_dies_in_a_stopped_workflow_leaves_no_open_task(drain, action, retries):
    policy = RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"]) if retries else None
    handle = Workflow("crash", nodes(retry_policy=policy)).start()
    claim_as_dead_worker()
    getattr(handle, action)()
    assert states(handle)["first"] == "RUNNING"

    reap()

    assert not {"RUNNING", "ENQUEUED"} & set(states(handle).values())
    assert not Task.objects.exclude(status__in=TASK_TERMINAL_STATES).exists()
    assert inconsistencies(handle) == []
    if action == "pause":
        handle.resume()
        drain()
        assert str(handle.status()) == ("COMPLETED" if retries else "FAILED")
    else:
        assert str(handle.status()) == "CANCELLED"
        handle.retry()
        drain()
        assert str(handle.status()) == "COMPLETED"


@pytest.mark.slow
def test_a_subworkflow_is_built_again_after_its_worker_dies(drain):
    handle = Workflow("crash", {"leaf": bodies.Leaf.node()(key="leaf")}).start()
    claim_as_dead_worker()

    reap()
    assert states(handle) == {"leaf": "RUNNING"}
    make_due()
    drain()

    assert value(handle, "leaf") == ["leaf", None]


@pytest.mark.slow
def test_a_subworkflow_fails_after_many_workers_die_building_it(drain):
    handle = Workflow("crash", {"leaf": bodies.Leaf.node()(key="leaf")}).start()
    for _ in range(11):
        assert len(claim_as_dead_worker()) == 1
        reap()
        make_due()

    assert codes(handle) == {"leaf": "WORKER_CRASHED"}
    assert handle.retry()
    drain()
    assert value(handle, "leaf") == ["leaf", None]


def test_the_retry_policy_of_a_subworkflow_decides_if_it_is_built_again(drain):
    policy = RetryPolicy.fixed([1], auto_retry_for=["NO"])
    handle = Workflow("crash", {"leaf": bodies.Leaf.node(retry_policy=policy)(key="leaf")}).start()
    claim_as_dead_worker()

    reap()

    assert codes(handle) == {"leaf": "WORKER_CRASHED"}


@pytest.mark.slow
def test_a_condition_is_evaluated_again_after_its_worker_dies(drain):
    handle = Workflow("crash", {"one": bodies.flaky.node(run_when=bodies.yes)(key="one")}).start()
    claim_as_dead_worker()

    reap()
    make_due()
    drain()

    assert value(handle, "one") == 1


def test_a_sleep_completes_after_its_worker_dies(drain):
    handle = Workflow("crash", {"nap": sleep(0.0)}).start()
    claim_as_dead_worker()

    reap()
    make_due()
    drain()

    assert str(handle.status()) == "COMPLETED"


# Rows that something other than the engine has changed.


def diamond():
    top = bodies.flaky.node(node_id="top")(key="top")
    left = bodies.flaky.node(node_id="left", waits_for=[top])(key="left")
    right = bodies.flaky.node(node_id="right", waits_for=[top])(key="right")
    return [top, left, right, bodies.flaky.node(node_id="end", waits_for=[left, right])(key="end")]


def repair_and_drain(handle, drain):
    reports = recover_stuck_workflows()
    assert recover_stuck_workflows() == []
    drain()
    assert inconsistencies(handle) == []
    return reports


def all_ran_once():
    return [times(key) for key in ("top", "left", "right", "end")] == [1, 1, 1, 1]


@pytest.mark.slow
def test_repair_starts_pending_nodes_whose_dependencies_have_ended(drain):
    handle = Workflow("stuck", diamond()).start()
    step()
    WorkflowTask.objects.filter(workflow=handle.id, node_id__in=["left", "right"]).update(
        status="PENDING", task_id=None, open_deps=7
    )
    Task.objects.exclude(status__in=TASK_TERMINAL_STATES).delete()

    (report,) = repair_and_drain(handle, drain)

    assert (report.root_id, report.decided_nodes, report.error) == (handle.id, 2, "")
    assert str(handle.status()) == "COMPLETED"
    assert all_ran_once()


@pytest.mark.slow
def test_repair_starts_a_ready_node_without_a_task(drain):
    handle = Workflow("stuck", diamond()).start()
    WorkflowTask.objects.filter(node_id="top").update(status="READY", task_id=None)
    Task.objects.all().delete()

    repair_and_drain(handle, drain)

    assert all_ran_once()


@pytest.mark.slow
def test_repair_starts_a_ready_subworkflow(drain):
    handle = Workflow("stuck", {"leaf": bodies.Leaf.node()(key="leaf")}).start()
    WorkflowTask.objects.update(status="READY", task_id=None)
    Task.objects.all().delete()

    repair_and_drain(handle, drain)

    assert value(handle, "leaf") == ["leaf", None]


@pytest.mark.slow
def test_repair_completes_a_node_whose_subworkflow_has_ended(drain):
    handle = start_and_drain(Workflow("stuck", {"leaf": bodies.Leaf.node(node_id="leaf")(key="leaf")}), drain)
    WorkflowTask.objects.filter(workflow=handle.id).update(status="RUNNING", result=None, completed_at=None)
    WorkflowRow.objects.filter(pk=handle.id).update(status="RUNNING", open_count=1, completed_at=None, result=None)

    repair_and_drain(handle, drain)

    assert value(handle, "leaf") == ["leaf", None]
    assert str(handle.status()) == "COMPLETED"


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_repair_ends_a_running_workflow_whose_nodes_have_all_ended(drain, fails):
    one = bodies.fail.node()() if fails else bodies.echo.node()(value=1)
    handle = start_and_drain(Workflow("stuck", {"one": one}), drain)
    reopened = {"status": "RUNNING", "open_count": 5, "completed_at": None, "result": None, "error": None}
    WorkflowRow.objects.update(**reopened)
    other = Workflow("healthy", {"approval": wait_for_event("approval")}).start()

    repair_and_drain(handle, drain)

    assert str(other.status()) == "RUNNING"
    assert str(handle.status()) == ("FAILED" if fails else "COMPLETED")
    assert handle.get(timeout=0).is_ok() is not fails


@pytest.mark.slow
def test_repair_finds_a_failure_that_the_workflow_row_lacks(drain):
    handle = start_and_drain(Workflow("stuck", {"one": bodies.fail.node()()}), drain)
    WorkflowRow.objects.update(
        status="RUNNING", open_count=1, failed_index=None, completed_at=None, result=None, error=None
    )

    repair_and_drain(handle, drain)

    assert str(handle.status()) == "FAILED"
    assert handle.get(timeout=0).err.error_code == "NO"


@pytest.mark.slow
def test_repair_fails_a_workflow_without_nodes(drain):
    handle = Workflow("stuck", {"one": bodies.echo.node()()}).start()
    WorkflowTask.objects.all().delete()
    Task.objects.all().delete()

    repair_and_drain(handle, drain)

    assert str(handle.status()) == "FAILED"


@pytest.mark.slow
def test_repair_ends_a_node_whose_task_has_ended(drain):
    handle = Workflow("stuck", diamond()).start()
    step()
    WorkflowTask.objects.filter(node_id__in=["left", "right", "end"]).update(status="PENDING", task_id=None)
    WorkflowTask.objects.filter(node_id__in=["left", "right"]).update(open_deps=1, ok_deps=0)
    WorkflowTask.objects.filter(node_id="top").update(status="RUNNING", completed_at=None, result=None)
    WorkflowRow.objects.update(open_count=F("open_count") + 1)
    Task.objects.exclude(status__in=TASK_TERMINAL_STATES).delete()

    repair_and_drain(handle, drain)

    assert str(handle.status()) == "COMPLETED"
    assert all_ran_once()


@pytest.mark.slow
def test_repair_fails_a_node_whose_task_was_deleted(drain):
    handle = Workflow("stuck", diamond()).start()
    Task.objects.all().delete()

    repair_and_drain(handle, drain)

    assert codes(handle)["top"] == "RESULT_NOT_AVAILABLE"
    assert str(handle.status()) == "FAILED"
    assert handle.retry()
    drain()
    assert all_ran_once()


def running_map():
    """Start a map, and leave its items open."""
    items = bodies.echo.node(node_id="items")(value=[0, 2])
    handle = Workflow("healthy", [items, bodies.echo.map(over=items, node_id="each")]).start()
    step()
    assert states(handle) == {"items": "COMPLETED", "each": "RUNNING", "each[0]": "ENQUEUED", "each[1]": "ENQUEUED"}
    return handle


@pytest.mark.slow
def test_repair_completes_a_map_whose_items_have_ended(drain):
    items = bodies.echo.node(node_id="items")(value=[0, 2])
    each = bodies.flaky_item.map(over=items, param="item", kwargs={"key": "each"}, node_id="each")
    handle = start_and_drain(Workflow("stuck", [items, each]), drain)
    other = running_map()
    WorkflowTask.objects.filter(workflow=handle.id, node_id="each").update(
        status="RUNNING", result=None, completed_at=None, open_deps=1, ok_deps=1
    )
    WorkflowRow.objects.filter(pk=handle.id).update(status="RUNNING", open_count=1, completed_at=None, result=None)

    (report,) = repair_and_drain(handle, drain)

    assert report.root_id == handle.id
    assert value(handle, "each") == [0, 20]
    assert str(handle.status()) == str(other.status()) == "COMPLETED"


@pytest.mark.parametrize("action", ["pause", "cancel"])
def test_repair_ends_a_node_of_a_stopped_workflow_whose_task_has_ended(drain, action):
    handle = Workflow("stuck", diamond()).start()
    claim_as_dead_worker()
    getattr(handle, action)()
    ended = {"status": "COMPLETED", "result": {"ok": 1}, "completed_at": timezone.now()}
    Task.objects.filter(status="RUNNING").update(**ended)

    repair_and_drain(handle, drain)

    assert states(handle)["top"] == "COMPLETED"
    assert str(handle.status()) == ("PAUSED" if action == "pause" else "CANCELLED")


@pytest.mark.slow
def test_repair_leaves_healthy_workflows_alone(drain):
    handle = Workflow("healthy", {"one": bodies.echo.node()(), "leaf": bodies.Waiting.node()()}).start()
    paused = Workflow("healthy", diamond()).start()
    paused.pause()
    assert recover_stuck_workflows() == []
    drain()

    assert recover_stuck_workflows() == []
    assert states(handle) == {"one": "COMPLETED", "leaf": "RUNNING"}
    assert len(children(handle)) == 1
    assert states(paused)["top"] == "READY"


def with_event():
    handle = Workflow("healthy", {"approval": wait_for_event("approval")}).start()
    assert states(handle) == {"approval": "RUNNING"}


def with_running_task():
    Workflow("healthy", diamond()).start()
    assert len(claim_as_dead_worker()) == 1


def with_child(node):
    """Start a workflow with a subworkflow, and run the tasks of one claim."""
    handle = Workflow("healthy", {"child": node}).start()
    step()
    return handle, *children(handle)


def with_waiting_child():
    with_child(bodies.Waiting.node()())


def with_failed_child_that_is_built_again_later():
    policy = RetryPolicy.fixed([60], auto_retry_for=["*"])
    handle, below = with_child(bodies.Leaf.node(retry_policy=policy)(key="leaf", fails=1))
    step()
    assert (states(handle), str(below.status())) == ({"child": "ENQUEUED"}, "FAILED")


def with_cancelled_child_whose_body_runs():
    handle, below = with_child(bodies.Leaf.node()(key="leaf"))
    claim_as_dead_worker()
    assert below.cancel()
    assert (states(handle)["child"], states(below)["one"]) == ("RUNNING", "RUNNING")


def with_paused_child_without_open_nodes():
    handle, below = with_child(bodies.Fragile.node()(key="fragile"))
    step()
    assert (states(handle)["child"], states(below), str(below.status())) == ("RUNNING", {"one": "FAILED"}, "PAUSED")


HEALTHY = [
    with_event,
    with_running_task,
    running_map,
    with_waiting_child,
    with_failed_child_that_is_built_again_later,
    with_cancelled_child_whose_body_runs,
    with_paused_child_without_open_nodes,
]


@pytest.mark.slow
@pytest.mark.parametrize("start", HEALTHY, ids=lambda start: start.__name__)
def test_repair_only_reads_healthy_workflows(transactional_db, start):
    start()

    with CaptureQueriesContext(connection) as captured:
        assert recover_stuck_workflows() == []

    assert {query["sql"].split()[0] for query in captured} == {"SELECT"}


@pytest.mark.slow
def test_a_damaged_row_does_not_stop_other_workflows(drain):
    """The worker stores the result, repair fails the workflow, and a retry completes it once the row is fixed."""
    one = bodies.echo.node(node_id="one")(value=1)
    workflow = Workflow("damaged", {"one": one, "two": bodies.echo.node(waits_for=[one])(value=2)})
    damaged, healthy = workflow.start(), workflow.start()
    first = WorkflowTask.objects.filter(workflow=damaged.id, node_id="one")
    first.update(dependents=5)

    drain()

    assert healthy.status() == "COMPLETED"
    assert states(damaged)["one"] in ("ENQUEUED", "RUNNING")  # RUNNING if the body took longer than 20 ms
    assert states(damaged)["two"] == "PENDING"
    assert Task.objects.get(pk=first.get().task_id).status == "COMPLETED"
    assert recover_stuck_workflows()[0].error
    assert damaged.status() == "FAILED"
    assert {*first.values_list("error_code", flat=True)} == {"WORKER_ROW_UNREADABLE"}
    assert recover_stuck_workflows() == []
    first.update(dependents=[1])
    damaged.retry()
    drain()
    assert states(damaged) == {"one": "COMPLETED", "two": "COMPLETED"}
    assert inconsistencies(damaged) == []
