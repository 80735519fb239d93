"""Tasks that wait for workflows, and tasks of workflows that wait."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django import Batch, BatchHandle, TaskStatus, Workflow, WorkflowStatus
from horsies_django.db.expressions import NowPlus
from horsies_django.db.now import Now
from horsies_django.models import Task, TaskAttempt, TaskStep
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.reaper.duties import run_pass
from horsies_django.testing import drain as run_due
from horsies_django.worker.config import WorkerConfig
from tests.batches import jobs as batch_jobs
from tests.jobs.entries import entries
from tests.steps import event_jobs

pytestmark = pytest.mark.django_db(transaction=True)


def waiting_batch():
    """Start a batch whose call waits for an event; return its handle and the call's."""
    with Batch("waits") as batch:
        batch.add(event_jobs.waits)
    run_due()
    return batch.handle, Task.objects.awaiting("event:approved").get()


def send(task):
    from horsies_django import TaskHandle

    assert TaskHandle(task.pk).send_event("approved", 7)


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_task_waits_for_the_end_of_a_batch_without_a_slot():
    batch, call = waiting_batch()
    handle = event_jobs.waits_for.send(str(batch.id))
    run_due()
    assert Task.objects.awaiting(f"workflow:{batch.id}").count() == 1

    send(call)
    run_due()

    assert handle.value(0) == [[7]]
    assert entries().count("begun") == 1


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_coroutine_waits_for_an_event_and_a_batch():
    batch, call = waiting_batch()
    handle = event_jobs.awaits.send(str(batch.id))
    run_due()
    handle.send_event("approved", "first")
    run_due()
    assert Task.objects.awaiting(f"workflow:{batch.id}").count() == 1
    send(call)
    run_due()

    assert handle.value(0) == ["first", [[7]]]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_workflow_that_has_ended_is_not_waited_for():
    with Batch("ended") as batch:
        batch.add(batch_jobs.double, 2)
    run_due()
    handle = event_jobs.waits_for.send(str(batch.handle.id))

    run_due()

    assert handle.value(0) == [4]
    assert TaskAttempt.objects.filter(task=handle.id).count() == 1


def test_a_workflow_without_an_output_gives_the_results_of_its_nodes():
    started = Workflow("two", [batch_jobs.double.node(node_id="a")(value=1)]).start()
    handle = event_jobs.waits_for.send(str(started.id))
    run_due()

    assert handle.value(0) == {"a": 2}


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize(("end", "code"), [("cancel", "WORKFLOW_CANCELLED"), ("expire", "WORKFLOW_EXPIRED")])
def test_each_end_of_a_workflow_wakes_the_tasks_that_wait_for_it(end, code):
    batch, _ = waiting_batch()
    handle = event_jobs.waits_for.send(str(batch.id))
    run_due()
    if end == "cancel":
        assert batch.cancel()
    else:
        batch._rows().update(good_until=Now())
        run_pass(WorkerConfig.of("default").options, names=["expired overdue workflows"])
    assert not Task.objects.awaiting().exists()

    run_due()

    assert handle.value(0) == code


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_paused_workflow_has_not_ended():
    batch, _ = waiting_batch()
    handle = event_jobs.waits_for.send(str(batch.id), timeout=60)
    batch.pause()
    run_due()
    assert handle.status() == TaskStatus.PENDING

    run_due(scheduled=True)

    assert handle.value(0) == "WAIT_TIMEOUT"


def test_a_workflow_that_is_not_there_ends_the_wait():
    handle = event_jobs.waits_for.send("01991f3e-0000-7000-8000-000000000000")
    run_due()
    assert handle.value(0) == "TASK_NOT_FOUND"


def test_a_plain_task_can_t_be_waited_for():
    handle = event_jobs.waits_for_a_task.send()
    run_due()
    assert "a workflow or of a batch" in handle.get(0).err_value.message


@pytest.mark.slow
@pytest.mark.sqlite
def test_the_reaper_wakes_what_nobody_else_has_woken():
    batch, call = waiting_batch()
    handle, other = event_jobs.waits_for.send(str(batch.id)), event_jobs.waits.send()
    run_due()
    TaskStep.objects.filter(task=other.id, status="WAITING").update(status="UNREAD", result={"ok": 1})
    batch._rows().update(is_awaited=False)  # nobody wakes the task at the end
    send(call)
    run_due()
    assert batch.status() == WorkflowStatus.COMPLETED
    assert Task.objects.awaiting().count() == 1

    batch._rows().update(is_awaited=True)
    run_due()

    assert other.value(0) == [1]
    assert handle.value(0) == [[7]]


def test_the_reaper_wakes_in_a_database_with_the_collation_of_a_language():
    if connection.vendor != "postgresql":
        pytest.skip("SQLite compares bytes")
    with connection.cursor() as cursor:
        cursor.execute("SELECT collname FROM pg_collation WHERE collname IN ('en-US-x-icu', 'en_US.utf8')")
        if (row := cursor.fetchone()) is None:
            pytest.skip("this server has no collation of a language")
        cursor.execute(f'ALTER TABLE horsies_tasks ALTER waits_for TYPE varchar(300) COLLATE "{row[0]}"')
    try:
        batch, call = waiting_batch()
        handle = event_jobs.waits_for.send(str(batch.id))
        run_due()
        batch._rows().update(is_awaited=False)
        send(call)
        run_due()
        batch._rows().update(is_awaited=True)
        run_due()
        assert handle.value(0) == [[7]]
    finally:
        with connection.cursor() as cursor:
            cursor.execute('ALTER TABLE horsies_tasks ALTER waits_for TYPE varchar(300) COLLATE "default"')


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_workflow_that_nobody_waits_for_any_more_is_looked_at_no_longer():
    batch, call = waiting_batch()
    event_jobs.waits_for.send(str(batch.id))
    run_due()
    send(call)
    run_due()
    assert batch._rows().get().is_awaited  # a body may be about to wait

    batch._rows().update(completed_at=NowPlus(-3600))
    run_due()

    assert not batch._rows().get().is_awaited


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_workflow_of_another_database_can_t_be_waited_for(run_script, settings):
    batch, _ = waiting_batch()

    def body(context):
        batch._database = "elsewhere"
        context.wait(batch)

    assert "on the database 'elsewhere'; allowed: one on 'default'" in run_script(body).get(0).err_value.message


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_node_that_waits_is_held_while_its_workflow_is_paused_and_goes_on_after_that():
    batch, call = waiting_batch()
    assert batch.pause()
    assert Task.objects.suspended().get() == call

    send(call)
    run_due(scheduled=True)
    assert batch.status() == WorkflowStatus.PAUSED
    assert batch.resume()
    run_due()

    assert batch.value(0) == [[7]]
    assert entries() == ["wait 0"]
    assert Task.objects.get(pk=call.pk).status == TaskStatus.COMPLETED


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_node_that_sleeps_goes_on_sleeping_when_its_workflow_is_resumed():
    with Batch("sleeps") as batch:
        batch.add(event_jobs.sleeps_as_node)
    run_due()
    batch.handle.pause()
    batch.handle.resume()
    run_due()
    assert Task.objects.awaiting("sleep").count() == 1

    run_due(scheduled=True)

    assert batch.handle.value(0) == ["after"]
    assert entries() == ["before", "after"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_cancelling_a_workflow_ends_its_waiting_tasks():
    batch, call = waiting_batch()

    assert batch.cancel()

    assert Task.objects.get(pk=call.pk).status == TaskStatus.CANCELLED
    assert batch.status() == WorkflowStatus.CANCELLED


@pytest.mark.slow
@pytest.mark.sqlite
def test_the_end_of_a_workflow_that_nobody_waits_for_costs_nothing_more():
    def statements(*, is_awaited):
        with Batch("quiet") as batch:
            batch.add(batch_jobs.double, 2)
        WorkflowRow.objects.filter(pk=batch.handle.id).update(is_awaited=is_awaited)
        with CaptureQueriesContext(connection) as queries:
            run_due()
        assert BatchHandle(batch.handle.id).value(0) == [4]
        return len(queries)

    statements(is_awaited=False)

    assert statements(is_awaited=False) < statements(is_awaited=True)
