"""Recovery of nodes whose tasks have ended while the nodes stayed open."""

from __future__ import annotations

import logging
from datetime import timedelta

import psycopg
import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import JSONField, Value
from django.utils import timezone

import horsies_django
from horsies_django import OnError, Workflow, WorkflowHandle
from horsies_django.core.compat import task_backends
from horsies_django.models import Task, WorkflowTask
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.reaper.duties import run_pass
from horsies_django.reaper.recovery import recover_stuck_workflows
from horsies_django.workflows.engine.repair import expire, repair
from tests.conftest import database_url, wait_until
from tests.database import is_postgres
from tests.workflows import bodies
from tests.workflows.runs import codes, end_without_notifying, inconsistencies, start_and_drain, states, times, value

ERROR = {"error_code": "NO", "message": "no", "data": None}

#: How a task has ended, and the error code of its node.
ENDS = [
    ({"status": "COMPLETED", "result": {"ok": 5}}, None),
    ({"status": "FAILED", "result": {"err": ERROR}, "error_code": "NO"}, "NO"),
    ({"status": "FAILED", "result": None, "error_code": None}, "WORKER_CRASHED"),
    ({"status": "CANCELLED", "result": None, "error_code": None}, "TASK_CANCELLED"),
    ({"status": "COMPLETED", "result": None}, "RESULT_NOT_AVAILABLE"),
    ({"status": "EXPIRED", "result": None, "error_code": None}, "TASK_EXPIRED"),
    # The stored result decides, not the columns status and error_code.
    ({"status": "COMPLETED", "result": {"err": ERROR}}, "NO"),
    ({"status": "FAILED", "result": {"ok": 5}, "error_code": "NO"}, None),
    *(
        pytest.param({"status": "COMPLETED", "result": garbage}, "RESULT_DESERIALIZATION_ERROR", marks=marks)
        for garbage, marks in (
            *((value, ()) for value in ({}, Value(None, JSONField()))),
            *((value, pytest.mark.slow) for value in ("ok", ["ok"], 7, {"err": "NO"}, {"ok": 5, "err": {}})),
        )
    ),
]


def chain(**options):
    first = bodies.echo.node(node_id="first")()
    second = bodies.flaky.node(node_id="second", waits_for=[first])(key="second")
    return Workflow("chain", [first, second], **options)


@pytest.mark.slow
@pytest.mark.parametrize(("end", "code"), ENDS)
def test_recovery_ends_a_node_as_its_task_ended(drain, end, code):
    handle = chain().start()
    end_without_notifying("first", **end)
    assert states(handle) == {"first": "ENQUEUED", "second": "PENDING"}

    (report,) = recover_stuck_workflows()

    assert (report.root_id, report.ended_nodes, report.error) == (handle.id, 1, "")
    result = handle.result_for("first")
    assert (result.ok if result.is_ok() else result.err.error_code) == (code or 5)
    assert codes(handle)["first"] == code
    assert states(handle)["first"] == ("FAILED" if code else "COMPLETED")
    drain()
    assert times("second") == (0 if code else 1)
    assert str(handle.status()) == ("FAILED" if code else "COMPLETED")
    assert inconsistencies(handle) == []


def test_recovery_counts_the_nodes_that_can_no_longer_start(transactional_db):
    handle = chain().start()
    ended = {"status": "FAILED", "result": {"err": ERROR}, "error_code": "NO"}
    end_without_notifying("first", **ended)
    WorkflowTask.objects.filter(node_id="first").update(completed_at=timezone.now(), **ended)

    (report,) = recover_stuck_workflows()

    assert (report.ended_nodes, report.decided_nodes) == (0, 1)
    assert states(handle) == {"first": "FAILED", "second": "SKIPPED"}


@pytest.mark.slow
def test_an_unreadable_result_fails_its_own_node_and_not_the_dependent(drain):
    source = bodies.echo.node(node_id="source")()
    taker = bodies.describe_outcome.node(node_id="taker", allow_failed_deps=True)(outcome=source.result)
    handle = Workflow("garbage", [source, taker]).start()
    end_without_notifying("source", status="COMPLETED", result={"nothing": 1})

    recover_stuck_workflows()
    drain()

    assert codes(handle) == {"source": "RESULT_DESERIALIZATION_ERROR", "taker": None}
    assert handle.result_for("taker").ok == "err RESULT_DESERIALIZATION_ERROR"


@pytest.mark.slow
def test_repair_counts_the_workflows_that_it_ends(drain):
    ended = start_and_drain(chain(), drain)
    ending, going_on = chain().start(), chain().start()
    Task.objects.filter(workflow_id=going_on.id).update(
        status="COMPLETED", result={"ok": 5}, completed_at=timezone.now()
    )
    Task.objects.filter(workflow_id=ending.id).update(status="FAILED", error_code="NO", failed_at=timezone.now())

    reports = repair("default")

    assert {report.root_id: report.ended_workflows for report in reports} == {ending.id: 1, going_on.id: 0}
    assert [str(handle.status()) for handle in (ended, ending, going_on)] == ["COMPLETED", "FAILED", "RUNNING"]


def test_repair_reports_a_workflow_without_nodes_as_ended(drain):
    empty = chain().start()
    WorkflowTask.objects.all().delete()

    (report,) = repair("default")

    assert (report.root_id, report.ended_nodes, report.ended_workflows) == (empty.id, 0, 1)
    assert str(empty.status()) == "FAILED"
    assert empty.get(0).err.error_code == "WORKFLOW_FAILED"


@pytest.mark.slow
def test_a_subworkflow_without_nodes_fails_its_node_and_the_tree_goes_on(drain):
    leaf = bodies.Leaf.node(node_id="leaf")(key="leaf")
    after = bodies.echo.node(node_id="after", waits_for=[leaf], allow_failed_deps=True)(value=1)
    handle = Workflow("top", [leaf, after]).start()
    drain(once=True)
    child = WorkflowRow.objects.get(depth=1)
    WorkflowTask.objects.filter(workflow_id=child.pk).delete()
    Task.objects.filter(workflow_id=child.pk).delete()

    recover_stuck_workflows()
    drain()

    assert states(handle) == {"leaf": "FAILED", "after": "COMPLETED"}
    assert WorkflowHandle(child.pk).get(0).err.error_code == "WORKFLOW_FAILED"


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", [{"kind": "SUBWORKFLOW"}, {"kind": "MAP"}, {"kind": "EVENT"}, {"ctx_from": [99], "open_ctx": 1}]
)
def test_a_workflow_with_a_node_that_can_never_start_fails_and_names_it(drain, damage):
    """A node of that kind needs a definition, a list or a name; there is no node 99."""
    handle, other = chain().start(), chain().start()
    last = WorkflowTask.objects.filter(workflow=handle.id).order_by("task_index").last()
    WorkflowTask.objects.filter(pk=last.pk).update(**damage)
    drain()
    assert str(handle.status()) == "RUNNING"

    (report,) = repair("default")

    error = handle.get(timeout=0).err
    assert (error.error_code, error.message) == ("WORKER_ROW_UNREADABLE", report.error)
    assert report.error.endswith(f"nothing can start the nodes that wait: {last.node_id}.")
    assert (str(handle.status()), str(other.status())) == ("FAILED", "COMPLETED")
    assert repair("default") == []


def test_expiry_leaves_a_locked_workflow_to_the_next_pass(transactional_db):
    if not is_postgres():
        pytest.skip("SQLite locks no rows")
    handle = chain(good_until=timezone.now() - timedelta(hours=1)).start()
    other = connection.copy("other")
    try:
        with other.cursor() as locking:
            locking.execute("BEGIN")
            locking.execute("SELECT 1 FROM horsies_workflows WHERE id = %s FOR UPDATE", [handle.id])
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '1s'")
                assert expire("default") == 0
            locking.execute("ROLLBACK")  # the server may notice a closed connection only later
    finally:
        other.close()

    assert expire("default") == 1
    assert str(handle.status()) == "EXPIRED"


def test_a_node_whose_task_was_deleted_fails_although_other_tasks_are_kept(drain):
    handle, other = chain().start(), chain().start()
    Task.objects.filter(workflow_id=handle.id).delete()

    (report,) = repair("default")

    assert (report.root_id, report.ended_nodes) == (handle.id, 1)
    assert codes(handle) == {"first": "RESULT_NOT_AVAILABLE", "second": "UPSTREAM_SKIPPED"}
    assert states(other) == {"first": "ENQUEUED", "second": "PENDING"}


@pytest.mark.slow
def test_repair_completes_a_map_whose_items_have_all_ended_and_no_other(drain):
    items = bodies.echo.node(node_id="items")(value=[0, 2])
    done, going = (
        bodies.flaky_item.map(over=items, param="item", kwargs={"key": name}, node_id=name, queue_name=name)
        for name in ("done", "going")
    )
    handle = Workflow("maps", [items, done, going]).start()
    drain(queues="default,done")
    WorkflowTask.objects.filter(node_id="done").update(
        status="RUNNING", completed_at=None, result=None, open_deps=1, ok_deps=0, failed_deps=1
    )

    (report,) = repair("default")

    assert (report.ended_nodes + report.decided_nodes, value(handle, "done")) == (1, [0, 20])
    assert states(handle)["going"] == "RUNNING"
    assert inconsistencies(handle) == []
    drain()
    assert (str(handle.status()), value(handle, "going")) == ("COMPLETED", [0, 20])


def test_a_failure_that_recovery_finds_pauses_the_workflow(drain):
    paused = chain(on_error=OnError.PAUSE).start()
    end_without_notifying("first", status="FAILED", result={"err": ERROR}, error_code="NO")

    recover_stuck_workflows()

    assert str(paused.status()) == "PAUSED"
    assert states(paused) == {"first": "FAILED", "second": "PENDING"}
    assert inconsistencies(paused) == []


@pytest.mark.slow
def test_one_reaper_pass_also_resolves_the_dependents_of_a_repaired_node(drain):
    first = bodies.fail.node(node_id="first")()
    others = [bodies.echo.node(node_id=f"n{number}", waits_for=[first])() for number in range(3)]
    handle = Workflow("fan", [first, *others]).start()
    end_without_notifying("first", status="FAILED", result={"err": ERROR}, error_code="NO")

    run_pass(task_backends["default"].config)

    assert set(states(handle).values()) == {"FAILED", "SKIPPED"}
    assert str(handle.status()) == "FAILED"


def test_reaper_functions_for_single_tasks_are_not_public():
    assert not {"requeue_stale_claimed", "fail_stale_running", "requeue_all"} & set(horsies_django.__all__)
    assert {"recover_stuck_workflows", "reclaim"} <= set(horsies_django.__all__)


@pytest.mark.slow
def test_a_workflow_that_cannot_be_repaired_does_not_block_others(drain, caplog):
    items = bodies.echo.node(node_id="items")(value=[1])
    poison = Workflow("poison", [items, bodies.flaky_item.map(over=items, param="item", kwargs={"key": "p"})]).start()
    others = [chain().start() for _ in range(3)]
    WorkflowTask.objects.filter(workflow=poison.id, kind="map").update(over_index=99)
    ended = {"status": "COMPLETED", "result": {"ok": [1]}, "completed_at": timezone.now()}
    Task.objects.filter(workflow_id__in=[poison.id, *(other.id for other in others)]).update(**ended)

    with caplog.at_level(logging.CRITICAL, "horsies_django.reaper"):
        reports = {report.root_id: report for report in recover_stuck_workflows()}

    assert reports.keys() == {poison.id, *(other.id for other in others)}
    assert [root for root, report in reports.items() if report.error] == [poison.id]
    failed = reports[poison.id]
    assert (failed.ended_nodes, failed.decided_nodes, failed.ended_workflows) == (0, 0, 1)
    assert poison.status() == "FAILED"
    drain()
    assert {str(other.status()) for other in others} == {"COMPLETED"}


@pytest.mark.slow
def test_a_workflow_whose_repair_always_deadlocks_does_not_block_others(transactional_db):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no deadlocks")
    first, *others = sorted((chain().start() for _ in range(3)), key=lambda handle: handle.id)
    ended = {"status": "COMPLETED", "result": {"ok": [1]}, "completed_at": timezone.now()}
    Task.objects.all().update(**ended)
    body = "BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE FUNCTION refuse() RETURNS trigger AS $$ {body} $$ LANGUAGE plpgsql")
        cursor.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON horsies_workflow_tasks FOR EACH ROW "
            f"WHEN (NEW.workflow_id = '{first.id}') EXECUTE FUNCTION refuse()"
        )
    try:
        reports = {report.root_id: report for report in repair("default")}
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER refuse ON horsies_workflow_tasks")
            cursor.execute("DROP FUNCTION refuse")

    assert reports.keys() == {first.id, *(other.id for other in others)}
    assert [root for root, report in reports.items() if report.error] == [first.id]


@pytest.mark.slow
def test_a_lock_timeout_while_a_workflow_fails_ends_the_repair(drain):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite locks no rows")
    items = bodies.echo.node(node_id="items")(value=[1])
    each = bodies.flaky_item.map(over=items, param="item", kwargs={"key": "p"})
    poison = Workflow("poison", [items, each, bodies.echo.node(node_id="open")()]).start()
    WorkflowTask.objects.filter(workflow=poison.id, kind="map").update(over_index=99)
    end_without_notifying("items", status="COMPLETED", result={"ok": [1]})
    with psycopg.connect(database_url()) as other, connection.cursor() as cursor:
        other.execute("SELECT 1 FROM horsies_tasks WHERE status = 'PENDING' FOR UPDATE")
        cursor.execute("SET lock_timeout = '20ms'")
        try:
            with pytest.raises(OperationalError, match="lock timeout"):
                repair("default")
        finally:
            cursor.execute("RESET lock_timeout")
    assert poison.status() == "RUNNING"

    repair("default")

    assert poison.status() == "FAILED"


@pytest.mark.slow
def test_workflows_with_running_subworkflows_do_not_use_up_the_repair_limit(drain):
    running = [Workflow("top", {"sub": bodies.Waiting.node()()}).start() for _ in range(5)]
    drain()
    stuck = chain().start()
    end_without_notifying("first", status="COMPLETED", result={"ok": 5})

    reports = repair("default", limit=1)

    assert {str(one.status()) for one in running} == {"RUNNING"}
    assert [(report.root_id, report.ended_nodes) for report in reports] == [(stuck.id, 1)]


@pytest.mark.slow
def test_a_worker_survives_a_workflow_that_cannot_advance(worker):
    """The end of the task is kept and the workflow fails; once its row is fixed, it can be retried."""
    items = bodies.echo.node(node_id="items")(value=[1])
    poison = Workflow("poison", [items, bodies.flaky_item.map(over=items, param="item", kwargs={"key": "p"})]).start()
    others = [chain().start() for _ in range(3)]
    WorkflowTask.objects.filter(workflow=poison.id, kind="map").update(over_index=99)

    process = worker("--threads", "2", TEST_CHECK_MS="300")
    wait_until(lambda: {str(other.status()) for other in others} == {"COMPLETED"})
    wait_until(lambda: "can't be repaired" in process.output)

    (task,) = Task.objects.filter(workflow_id=poison.id)
    assert task.status == "COMPLETED"
    wait_until(lambda: str(poison.status()) == "FAILED")
    assert "runner died" not in process.output
    WorkflowTask.objects.filter(workflow=poison.id, kind="map").update(over_index=0)
    poison.retry()
    wait_until(lambda: str(poison.status()) == "COMPLETED")
    assert inconsistencies(poison) == []
