"""Batches: many calls, callbacks after the last one, progress, calls added meanwhile, retries of failed calls."""

import io
import threading
import uuid
from dataclasses import replace

import pytest
from asgiref.sync import async_to_sync
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.management import call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from horsies_django import (
    Batch,
    BatchHandle,
    BatchProgress,
    TaskHandle,
    WorkflowHandle,
    WorkflowStatus,
    sleep,
    task,
)
from horsies_django.core.compat import InvalidTask
from horsies_django.exceptions import BatchEnded
from horsies_django.models import Task, TaskAttempt, Workflow, WorkflowTask
from tests.admin.client import log_in, messages_of
from tests.batches import jobs
from tests.jobs.models import Entry

pytestmark = pytest.mark.django_db(transaction=True)


def start_batch(*calls, **callbacks):
    batch = Batch("b", **callbacks)
    for job, *args in calls:
        batch.add(job, *args)
    return batch.start()


def progress_of(total, **counts):
    zeros = dict.fromkeys(("waiting", "running", "completed", "failed", "cancelled"), 0)
    return BatchProgress(total=total, **zeros | counts)


def callback_result(handle, name):
    return WorkflowHandle(handle.id).result_for(name)


def test_a_batch_runs_its_calls_and_returns_their_values_in_order(drain):
    with Batch("doubles") as batch:
        keys = batch.add_many(jobs.double, [{"value": value} for value in range(5)])
        batch.add(jobs.note, "n")
    handle = BatchHandle(str(batch.id))

    assert (handle.status(), handle.progress()) == (WorkflowStatus.RUNNING, progress_of(6, waiting=6))
    drain()

    assert handle.get(timeout=0).unwrap() == [0, 2, 4, 6, 8, "n"]
    assert handle.result_for(keys[3]).unwrap() == 6
    assert handle.progress() == progress_of(6, completed=6)
    assert handle.progress().done == 6
    assert batch.handle == handle


@pytest.mark.slow
def test_callbacks_run_once_after_all_calls_and_get_the_batch_id(drain):
    handle = start_batch(
        (jobs.double, 1),
        (jobs.double, 2),
        on_success=jobs.add_up.node(priority=5)(extra=100),
        on_complete=jobs.note_batch,
    )

    drain()

    assert callback_result(handle, "on_success").unwrap() == 106
    assert callback_result(handle, "on_complete").unwrap() == {"done": 2, "failed": 0}
    assert Entry.objects.filter(key=str(handle.id)).count() == 1
    assert handle.status() is WorkflowStatus.COMPLETED


@pytest.mark.slow
def test_a_failed_batch_runs_on_complete_and_on_success_only_after_a_retry(drain, tmp_path):
    path = tmp_path / "there"
    handle = start_batch(
        (jobs.double, 4),
        (jobs.fail_unless, str(path)),
        on_success=jobs.note.node()(key="yes"),
        on_complete=jobs.note_batch,
    )
    drain()
    assert handle.status() is WorkflowStatus.FAILED
    assert handle.progress() == progress_of(2, completed=1, failed=1)
    assert handle.get(timeout=0).err.error_code == "MAP_ITEM_FAILED"
    assert list(Entry.objects.values_list("key", flat=True)) == [str(handle.id)]
    before = Task.objects.count()

    path.touch()
    assert handle.retry()
    drain()

    assert handle.get(timeout=0).unwrap() == [8, "there"]
    assert Task.objects.count() == before + 2  # the failed call, and on_success
    assert sorted(Entry.objects.values_list("key", flat=True)) == sorted([str(handle.id), "yes"])


def retry_by_task_handle(handle, client):
    assert TaskHandle(task_of(handle, "tasks[1]")).retry()


def retry_by_node(handle, client):
    assert handle.retry("tasks[1]")


def retry_by_command(handle, client):
    out = io.StringIO()
    call_command("horsies_task", "retry", str(task_of(handle, "tasks[1]")), stdout=out)
    assert out.getvalue() == "re-queued: 1\n"


def retry_by_ticked_row(handle, client):
    ticked = {"action": "retry", ACTION_CHECKBOX_NAME: str(task_of(handle, "tasks[1]"))}
    answer = log_in(client, "view_task", "retry_task").post(reverse("admin:horsies_django_task_changelist"), ticked)
    assert messages_of(answer) == "1 task re-queued."


def task_of(handle, node_id):
    return WorkflowTask.objects.get(workflow=handle.id, node_id=node_id).task_id


def other_calls(handle, node_id):
    """Return the rows of the other calls: of their nodes and of their tasks."""
    others = WorkflowTask.objects.filter(workflow=handle.id, map_index=0).exclude(node_id=node_id).order_by("pk")
    keys = others.values_list("task_id", flat=True)
    return [*others.values(), *Task.objects.filter(pk__in=list(keys)).order_by("pk").values()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("retry", "end"),
    [
        (retry_by_task_handle, "failed"),
        (retry_by_node, "failed"),
        (retry_by_command, "failed"),
        (retry_by_ticked_row, "failed"),
        (retry_by_task_handle, "cancelled"),
    ],
)
def test_a_retry_of_one_call_leaves_all_other_calls_as_they_are(drain, tmp_path, client, retry, end):
    path = tmp_path / "there"
    handle = start_batch(*[(jobs.fail_unless, str(path))] * 4, on_complete=jobs.note_batch)
    if end == "cancelled":
        handle.cancel()
    drain()
    ended = progress_of(4, **{end: 4})
    before, attempts = other_calls(handle, "tasks[1]"), TaskAttempt.objects.count()
    assert (handle.progress(), len(before)) == (ended, 6)

    path.touch()
    retry(handle, client)
    drain()

    assert other_calls(handle, "tasks[1]") == before
    assert handle.progress() == replace(ended, completed=1, **{end: 3})
    assert handle.result_for("tasks[1]").unwrap() == "there"
    assert TaskAttempt.objects.count() == attempts + 1 + (end == "cancelled")  # the call, and on_complete
    assert handle.status() is WorkflowStatus.FAILED
    assert callback_result(handle, "on_complete").is_ok()


@pytest.mark.slow
def test_retries_of_all_failed_calls_one_by_one_complete_a_batch(drain, tmp_path):
    path = tmp_path / "there"
    handle = start_batch(*[(jobs.fail_unless, str(path))] * 3, on_success=jobs.note.node()(key="yes"))
    drain()
    path.touch()

    for place in range(3):
        assert handle.retry(f"tasks[{place}]")
        drain()
        assert Entry.objects.filter(key="yes").exists() is (place == 2)

    assert handle.get(timeout=0).unwrap() == ["there"] * 3


@pytest.mark.slow
def test_a_retry_of_many_tasks_counts_each_and_takes_as_many_statements_as_of_two(drain, tmp_path):
    def cost(count):
        handle = start_batch(*[(jobs.fail_unless, str(tmp_path / "never"))] * count)
        drain()
        with CaptureQueriesContext(connection) as queries:
            assert Task.objects.filter(workflow_id=handle.id).retry() == count
        assert handle.progress().waiting == count
        return len(queries)

    assert cost(20) == cost(2)


@pytest.mark.slow
def test_calls_can_be_added_to_a_batch_until_all_its_calls_have_ended(drain):
    handle = start_batch((jobs.double, 1), on_success=jobs.add_up)

    key = handle.add(jobs.double, value=2)
    more = handle.add_many(jobs.double, [{"value": 3}, {"value": 4}])
    assert [each.node_id for each in (key, *more)] == ["tasks[1]", "tasks[2]", "tasks[3]"]
    assert handle.progress() == progress_of(4, waiting=4)
    drain()

    assert (handle.get(timeout=0).unwrap(), callback_result(handle, "on_success").unwrap()) == ([2, 4, 6, 8], 20)
    with pytest.raises(BatchEnded, match=str(handle.id)):
        handle.add(jobs.double, 5)
    with pytest.raises(LookupError, match="There is no batch"):
        BatchHandle(uuid.uuid4()).add(jobs.double, 5)
    assert handle.progress().total == 4


@pytest.mark.slow
def test_the_bodies_of_a_batch_can_add_calls_to_it(drain):
    plain, atomic = (
        start_batch((jobs.tree, 3), on_success=jobs.add_up),
        start_batch((jobs.atomic_tree, 5), on_complete=jobs.note_batch),
    )

    drain()

    assert plain.progress() == progress_of(15, completed=15)
    assert callback_result(plain, "on_success").unwrap() == 3 + 2 * 2 + 4
    assert atomic.get(timeout=0).unwrap() == [5, 4, 3, 2, 1, 0]


@pytest.mark.slow
def test_a_retried_batch_takes_more_calls(drain, tmp_path):
    handle = start_batch((jobs.fail_unless, str(tmp_path / "x")))
    drain()

    assert handle.retry()
    handle.add(jobs.double, 3)
    (tmp_path / "x").touch()
    drain()

    assert handle.get(timeout=0).unwrap() == ["there", 6]


def test_a_rollback_removes_a_batch_and_its_calls():
    with transaction.atomic():
        handle = start_batch((jobs.double, 1))
        handle.add(jobs.double, 2)
        transaction.set_rollback(True)

    assert (handle.status(), handle.progress(), Task.objects.count()) == (None, progress_of(0), 0)


@pytest.mark.slow
def test_an_empty_batch_ends_at_once_and_runs_its_callbacks(drain):
    handle = start_batch(on_success=jobs.add_up, on_complete=jobs.note_batch)

    drain()

    assert handle.get(timeout=0).unwrap() == []
    assert callback_result(handle, "on_success").unwrap() == 0


def test_a_batch_block_that_raises_starts_no_batch():
    batch = Batch("never")

    with pytest.raises(ZeroDivisionError), batch:
        batch.add(jobs.double, 1 // 0)

    with pytest.raises(ValueError, match=r"<Batch 'never': 0 calls> has not started; allowed: its handle after"):
        _ = batch.handle
    assert not Workflow.objects.exists()


@pytest.mark.slow
def test_a_cancelled_batch_runs_no_call_and_no_callback_until_it_is_retried(drain):
    handle = start_batch((jobs.double, 1), (jobs.double, 2), on_complete=jobs.note_batch)

    assert handle.cancel()
    drain()

    assert (handle.status(), handle.progress()) == (WorkflowStatus.CANCELLED, progress_of(2, cancelled=2))
    assert not Entry.objects.exists()
    with pytest.raises(BatchEnded):
        handle.add(jobs.double, 3)
    assert handle.retry()
    drain()
    assert handle.get(timeout=0).unwrap() == [2, 4]
    assert Entry.objects.count() == 1


@pytest.mark.slow
def test_a_paused_batch_takes_calls_and_runs_them_once_it_is_resumed(drain):
    handle = start_batch((jobs.double, 1))
    handle.pause()
    handle.add(jobs.double, 2)
    drain()
    assert handle.progress() == progress_of(2, waiting=2)

    handle.resume()
    drain()

    assert handle.get(timeout=0).unwrap() == [2, 4]


@pytest.mark.slow
def test_a_batch_of_thousands_of_calls_takes_as_many_statements_as_a_small_one():
    def cost(count):
        batch = Batch("many")
        batch.add_many(jobs.double, [{"value": value} for value in range(count)])
        with CaptureQueriesContext(connection) as queries:
            handle = batch.start()
            handle.add_many(jobs.double, [{"value": 1}] * count)
            handle.progress()
        return len(queries)

    assert cost(2_000) <= cost(2) + 2


@pytest.mark.slow
def test_batches_have_async_methods(drain):
    async def run():
        async with Batch("a") as batch:
            batch.add(jobs.double, 1)
        await batch.handle.aadd(jobs.double, 2)
        await batch.handle.aadd_many(jobs.double, [{"value": 3}])
        return batch.handle, await batch.handle.aprogress()

    handle, progress = async_to_sync(run)()
    drain()

    assert progress == progress_of(3, waiting=3)
    assert async_to_sync(handle.aget)(timeout=0).unwrap() == [2, 4, 6]


@pytest.mark.slow
def test_a_killed_runner_does_not_change_the_outcome_of_a_batch(worker, tmp_path):
    worker("--processes", "2", runners=2)
    handle = start_batch(
        *((jobs.kill_runner_once, str(tmp_path / f"died-{number}")) for number in range(2)),
        *((jobs.double_with_retries, number) for number in range(20)),
        on_success=jobs.add_up.node()(results=[1]),
        on_complete=jobs.note_batch,
    )

    assert handle.get(timeout=60).unwrap() == ["alive", "alive", *range(0, 40, 2)]
    assert callback_result(handle, "on_complete").unwrap() == {"done": 22, "failed": 0}
    assert Entry.objects.filter(key=str(handle.id)).count() == 1


@pytest.mark.slow
def test_calls_added_concurrently_while_a_batch_ends_are_not_lost(worker):
    worker("--processes", "2", "--threads", "4", runners=2)
    handle = start_batch((jobs.tree, 4), on_complete=jobs.note_batch)
    added, refused = [], []

    def add():
        try:
            for _ in range(25):
                try:
                    added.append(handle.add(jobs.double, 1))
                except BatchEnded:
                    refused.append(1)
        finally:
            connection.close()

    threads = [threading.Thread(target=add, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert handle.get(timeout=60).is_ok()
    assert len(added) + len(refused) == 100
    assert handle.progress() == progress_of(31 + len(added), completed=31 + len(added))
    assert len({key.node_id for key in added}) == len(added)
    assert Entry.objects.filter(key=str(handle.id)).count() == 1


def test_the_row_of_a_batch_marks_it_among_workflows():
    start_batch((jobs.double, 1))

    assert Workflow.objects.get().is_batch
    assert WorkflowTask.objects.filter(map_index=None).values_list("node_id", flat=True).get() == "tasks"


# Errors.


@pytest.mark.once
@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: Batch(" "), "name is ' '; allowed: a text of 1 to 255 characters"),
        (lambda: Batch("x").add("job"), "task is 'job'; allowed: a task"),
        (lambda: Batch("x").add(jobs.double, "two", 3), "positional argument 2 has no name"),
        (lambda: Batch("x").add(jobs.double, "two"), "'value'"),
        (lambda: Batch("x").add(jobs.double, 2, value=3), "'value' is given twice"),
        (lambda: Batch("x").add(jobs.double), "missing a required argument: 'value'"),
        (lambda: Batch("x").add(jobs.double.with_options(unique_key="u"), 2), "unique_key='u'"),
        (lambda: Batch("x", on_success="done"), "on_success is 'done'; allowed: a task, or a node of one"),
        (lambda: Batch("x", on_success=jobs.double), "missing a required argument: 'value'"),
        (lambda: Batch("x", on_complete=jobs.add_up), "missing a required argument: 'results'"),
        (lambda: Batch("x", on_complete=sleep(3)), "on_complete is"),
        (lambda: Batch("x", on_complete=jobs.note.node(waits_for=[sleep(3)])(key="k")), "waits for no other"),
        (lambda: Batch("x", on_complete=jobs.note.node(priority=1_000)(key="k")), "priority must be"),
        (lambda: Batch("x", backend="nowhere"), "backend is 'nowhere'"),
    ],
)
def test_a_batch_refuses_invalid_calls_and_callbacks(act, message):
    with pytest.raises((ValueError, TypeError, InvalidTask)) as caught:
        act()

    assert message in str(caught.value)


def test_a_batch_can_be_started_only_once():
    batch = Batch("x")
    batch.start()

    with pytest.raises(ValueError, match="has been started; allowed: one start"):
        batch.start()


@pytest.mark.once
def test_a_batch_refuses_a_variadic_positional_argument():
    def several(*values):
        """Take any values."""

    several.__qualname__ = "several"

    with pytest.raises(TypeError, match="positional argument 1 has no name"):
        Batch("x").add(task(several), 1)
