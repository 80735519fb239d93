"""Ended workflows past their retention are deleted with their nodes, events and subworkflows."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from horsies_django import RetryPolicy, Workflow, wait_for_event
from horsies_django.models import Task, WorkflowEvent, WorkflowTask
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.reaper.duties import run_pass
from horsies_django.reaper.prune import NODES, prune_workflows
from horsies_django.reaper.recovery import recover_stuck_workflows
from tests.reaper.retention.pruning import options, prune
from tests.workflows import bodies
from tests.workflows.runs import children, start_and_drain, states, value, wait_and_drain

pytestmark = pytest.mark.django_db(transaction=True)

DAY = timedelta(days=1)


def configure(settings, **retention):
    settings.TASKS = {
        "default": {
            "BACKEND": "horsies_django.backend.HorsiesBackend",
            "QUEUES": [],
            "OPTIONS": {"retention": retention},
        }
    }


def reap():
    """Make a pass and return how many workflows it deleted."""
    (report,) = [one for one in run_pass(options()) if one.duty == "deleted ended workflows"]
    assert report.error == ""
    return report.count


def age(*handles):
    """Let the retention of these workflows be over."""
    WorkflowRow.objects.filter(pk__in=[handle.id for handle in handles]).update(kept_until=Now())


def row(handle):
    return WorkflowRow.objects.get(pk=handle.id)


def kept(handle):
    """Return how long a workflow is kept after its end."""
    workflow = row(handle)
    return workflow.kept_until and workflow.kept_until - (workflow.completed_at or workflow.cancelled_at)


def ended(count, nodes=1, ago=10 * DAY, **columns):
    """Make workflows that ended that long ago and whose retention is over."""
    then = timezone.now() - ago
    given = {"status": "COMPLETED", "completed_at": then, "kept_until": then, "node_count": nodes, **columns}
    rows = [WorkflowRow(name="old", **given) for _ in range(count)]
    for one in rows:
        one.root_id = one.pk
    WorkflowRow.objects.bulk_create(rows, batch_size=500)
    WorkflowTask.objects.bulk_create(
        [
            WorkflowTask(workflow=one, task_index=index, node_id=f"n{index}", status="COMPLETED")
            for one in rows
            for index in range(nodes)
        ],
        batch_size=500,
    )
    return rows


# Retention.


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_workflow_has_the_retention_of_tasks_in_its_state(settings, drain):
    configure(settings, completed="2d", failed="3d", cancelled=None, expired="5d")
    done = start_and_drain(Workflow("done", {"one": bodies.echo.node()()}), drain)
    failed = start_and_drain(Workflow("failed", {"one": bodies.fail.node()()}), drain)
    cancelled, expired = (Workflow("open", {"approval": wait_for_event("approval")}).start() for _ in range(2))
    cancelled.cancel()
    WorkflowRow.objects.filter(pk=expired.id).update(good_until=Now())
    run_pass(options())

    assert [kept(handle) for handle in (done, failed, cancelled, expired)] == [2 * DAY, 3 * DAY, None, 5 * DAY]


def test_a_workflow_has_the_retention_of_its_backend(settings, drain):
    configure(settings, completed="2d")
    other = {**settings.TASKS["default"], "OPTIONS": {"retention": {"completed": "4d"}}}
    settings.TASKS = {**settings.TASKS, "other": other}
    handle = Workflow("done", {"one": bodies.echo.node()()}).start()
    WorkflowRow.objects.update(backend="other")

    drain()

    assert kept(handle) == 4 * DAY


@pytest.mark.slow
@pytest.mark.sqlite
def test_running_workflows_and_their_subworkflows_are_kept(drain):
    handle = start_and_drain(
        Workflow("top", {"leaf": bodies.Leaf.node()(key="leaf"), "approval": wait_for_event("approval")}), drain
    )
    (child,) = children(handle)

    assert str(child.status()) == "COMPLETED"
    assert (row(handle).kept_until, row(child).kept_until) == (None, None)
    assert reap() == 0


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_retried_workflow_is_not_deleted(drain):
    handle = start_and_drain(Workflow("again", {"one": bodies.flaky.node()(key="one", fails=1)}), drain)
    age(handle)

    assert handle.retry()

    assert row(handle).kept_until is None
    assert reap() == 0
    drain()
    assert kept(handle) == 7 * DAY


# Deleting.


@pytest.mark.slow
def test_a_workflow_is_deleted_with_its_nodes_events_and_subworkflows(drain):
    policy = RetryPolicy.fixed([1], auto_retry_for=["*"], jitter=False)
    nodes = {
        "middle": bodies.Middle.node()(key="gone"),
        "again": bodies.Leaf.node(retry_policy=policy)(key="again", fails=1),
        "approval": wait_for_event("approval"),
    }
    gone, stays = (start_and_drain(Workflow("top", nodes), drain) for _ in range(2))
    for handle in (gone, stays):
        handle.send_event("approval")
        wait_and_drain(handle, drain)
    counts = [WorkflowRow.objects.count(), WorkflowTask.objects.count(), WorkflowEvent.objects.count()]
    age(gone)

    assert reap() == 1

    assert gone.status() is None
    assert str(stays.status()) == "COMPLETED"
    assert set(WorkflowRow.objects.values_list("root_id", flat=True)) == {stays.id}
    left = [WorkflowRow.objects.count(), WorkflowTask.objects.count(), WorkflowEvent.objects.count()]
    # The first has one more subworkflow: that of the retried node.
    assert [before - after for before, after in zip(counts, left, strict=True)] == [5, 11, 1]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_cancelled_workflow_is_kept_while_one_of_its_bodies_runs(drain, settings):
    configure(settings, cancelled=0)
    handle = Workflow("cancel", {"sub": bodies.Waiting.node()(), "one": bodies.echo.node(queue_name="slow")()}).start()
    drain(queues="default")
    (child,) = children(handle)
    with transaction.atomic():
        Task.objects.filter(queue_name="slow").update(status="RUNNING", started_at=Now())
    handle.cancel()
    assert states(handle)["one"] == "ENQUEUED"

    assert reap() == 0
    Task.objects.filter(queue_name="slow").update(status="COMPLETED", completed_at=Now(), result={"ok": 1})
    recover_stuck_workflows()

    assert reap() == 1
    assert (handle.status(), child.status()) == (None, None)


@pytest.mark.slow
def test_one_pass_deletes_many_workflows_and_long_ones_in_parts(drain):
    ended(450)
    ended(1, nodes=2 * NODES + 5)
    with CaptureQueriesContext(connection) as statements:
        assert reap() == 451

    assert not WorkflowRow.objects.exists()
    assert not WorkflowTask.objects.exists()
    deletes = [one["sql"] for one in statements if one["sql"].startswith('DELETE FROM "horsies_workflow_tasks"')]
    assert len(deletes) == 5  # two batches of 200, then three parts of the long one, the last with the short ones


@pytest.mark.parametrize(("count", "nodes", "parts"), [(7, 1, [3, 3, 1]), (2, 7, [3, 3, 3, 3, 2])])
def test_one_statement_deletes_a_bounded_number_of_nodes_and_none_of_other_workflows(
    monkeypatch, drain, count, nodes, parts
):
    monkeypatch.setattr("horsies_django.reaper.prune.NODES", 3)
    ended(count, nodes)
    (kept,) = ended(1, nodes=8, kept_until=timezone.now() + DAY)
    deleted = []

    def count_deleted(execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        if sql.startswith('DELETE FROM "horsies_workflow_tasks"'):
            deleted.append(context["cursor"].rowcount)
        return result

    with connection.execute_wrapper(count_deleted):
        assert reap() == count

    assert deleted == parts
    assert list(WorkflowTask.objects.values_list("workflow", flat=True)) == [kept.pk] * 8


def test_short_workflows_are_deleted_together_up_to_the_limit_of_a_statement(monkeypatch, drain):
    monkeypatch.setattr("horsies_django.reaper.prune.NODES", 3)
    ended(7)

    with CaptureQueriesContext(connection) as statements:
        assert reap() == 7

    assert not WorkflowTask.objects.exists()
    deletes = [one["sql"] for one in statements if one["sql"].startswith('DELETE FROM "horsies_workflow_tasks"')]
    assert len(deletes) == 3


def test_a_locked_workflow_is_not_deleted(drain):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite locks no rows")
    locked, free = ended(2)
    other = connection.copy("other")
    try:
        with transaction.atomic(), other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT 1 FROM horsies_workflows WHERE id = %s FOR UPDATE", [locked.pk])
            assert sum(prune_workflows(options())) == 1
    finally:
        other.close()

    assert WorkflowRow.objects.get().pk == locked.pk
    assert free.pk != locked.pk


@pytest.mark.nightly
@pytest.mark.slow
def test_pruning_workflows_scans_no_table(drain):
    if connection.vendor != "postgresql":
        pytest.skip("the plans are PostgreSQL's")
    rows = ended(2_000, nodes=10)
    (long_one,) = ended(1, nodes=2 * NODES)  # a sixth of the table
    gone = [long_one, *rows[:50]]
    WorkflowRow.objects.exclude(pk__in=[one.pk for one in gone]).update(kept_until=timezone.now() + DAY)
    WorkflowEvent.objects.bulk_create([WorkflowEvent(workflow=one, name="approval") for one in rows])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        with CaptureQueriesContext(connection) as statements:
            assert sum(prune_workflows(options())) == len(gone)
        pruning_sql = [one["sql"] for one in statements if one["sql"].startswith(("SELECT", "DELETE"))]
        for table in ("horsies_workflows", "horsies_workflow_tasks", "horsies_workflow_events"):
            queries = [sql for sql in pruning_sql if table in sql]
            assert queries
            for sql in queries:
                cursor.execute(f"EXPLAIN {sql}")
                plan = "\n".join(line for (line,) in cursor.fetchall())
                assert f"Seq Scan on {table}" not in plan, f"{sql}\n{plan}"
    assert WorkflowTask.objects.count() == 10 * 1_950


# Tasks of workflows.


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_workflow_continues_after_the_tasks_of_its_nodes_are_deleted(settings, drain):
    configure(settings, completed=0, failed=0, cancelled=0, expired=0)
    first = bodies.echo.node(node_id="first", run_when=bodies.yes)(value=[2, 4])
    each = bodies.flaky_item.map(over=first, param="item", kwargs={"key": "each"}, node_id="each")
    bad = bodies.flaky.node(node_id="bad")(key="bad", fails=1)
    sub = bodies.Waiting.node(node_id="sub")()
    after = bodies.echo.node(node_id="after", waits_for=[bad])(value=[each, sub])
    handle = start_and_drain(Workflow("fleeting", [first, each, bad, sub, after], output=after), drain)
    run_pass(options())
    assert not Task.objects.exists()
    assert recover_stuck_workflows() == []

    children(handle)[0].send_event("approval", 7)
    drain()
    assert states(handle)["sub"] == "COMPLETED"
    assert (str(handle.status()), row(handle).kept_until <= timezone.now()) == ("FAILED", True)
    assert handle.retry()
    drain()

    assert handle.get(timeout=0).ok == [[20, 40], 7]
    assert reap() == 1
    assert handle.status() is None


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_task_with_a_longer_retention_outlives_its_workflow(drain):
    handle = start_and_drain(Workflow("done", {"one": bodies.echo.node()(value=1)}), drain)
    age(handle)

    assert reap() == 1

    (task,) = Task.objects.all()
    assert (task.workflow_id, str(task.status)) == (handle.id, "COMPLETED")
    assert Task.objects.filter(pk=task.pk).retry() == 0
    run_pass(options())
    assert Task.objects.filter(pk=task.pk).exists()


# The command.


def test_the_prune_command_deletes_workflows(capsys, drain):
    ended(3)
    ended(1, kept_until=timezone.now() + DAY)

    assert "workflows would be deleted: 3" in prune(capsys, "--dry-run")
    assert "workflows deleted: 3" in prune(capsys)
    assert WorkflowRow.objects.count() == WorkflowTask.objects.count() == 1


@pytest.mark.slow
@pytest.mark.sqlite
def test_older_than_counts_from_the_end_of_a_workflow(capsys, drain):
    ended(510, kept_until=None, ago=8 * DAY)
    ended(2, kept_until=None, ago=8 * DAY, status="CANCELLED", completed_at=None, cancelled_at=timezone.now() - 8 * DAY)
    (young,) = ended(1, kept_until=None, ago=6 * DAY)
    live = Workflow("live", {"approval": wait_for_event("approval"), "sub": bodies.Leaf.node()(key="leaf")}).start()
    drain()
    WorkflowRow.objects.filter(root_id=live.id).update(
        sent_at=F("sent_at") - 9 * DAY, completed_at=F("completed_at") - 9 * DAY
    )

    assert "workflows would be deleted: 512" in prune(capsys, "--dry-run", "--older-than", "7d")
    assert "workflows deleted: 2" in prune(capsys, "--older-than", "7d", "--status", "cancelled")
    assert "workflows deleted: 510" in prune(capsys, "--older-than", "7d")

    assert set(WorkflowRow.objects.values_list("root_id", flat=True)) == {young.pk, live.id}
    assert value(live, "sub") == ["leaf", None]


def test_status_and_backend_flags_limit_which_workflows_are_pruned(capsys, drain):
    ended(1)
    ended(2, status="FAILED")
    ended(3, status="FAILED", backend="another")

    assert "workflows deleted: 2" in prune(capsys, "--status", "failed", "--backend", "default")
    assert "workflows deleted: 3" in prune(capsys, "--status", "failed")
    assert "workflows deleted: 1" in prune(capsys)
