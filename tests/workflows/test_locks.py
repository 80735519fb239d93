"""Locks on workflows and tasks, and what waits for them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction

from horsies_django import TaskHandle, Workflow
from horsies_django.models import Task
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.reaper.recovery import recover_stuck_workflows
from tests.conftest import wait_until
from tests.database import another_connection_waits_for_our_lock, count_commits
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.workflows import bodies
from tests.workflows.runs import end_without_notifying, inconsistencies, states, times

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _locks_rows():
    if not connection.features.has_select_for_update:
        pytest.skip("needs row locks: SQLite allows one writer only")


@pytest.mark.slow
def test_an_atomic_body_waits_for_its_workflow_lock_without_locking_its_task(worker):
    """The transaction that has locked the workflow can therefore cancel the task."""
    node = bodies.report_atomically.node(node_id="one")(key="atomic")
    handle = Workflow("atomic", [node, bodies.echo.node(node_id="after", waits_for=[node])()]).start()
    (task,) = Task.objects.filter(workflow_id=handle.id)

    with transaction.atomic():
        WorkflowRow.objects.lock([handle.id])
        process = worker("--threads", "2")
        wait_until(another_connection_waits_for_our_lock)
        is_cancelled = TaskHandle(task.pk).cancel(include_running=True)
    wait_until(lambda: handle.status() != "RUNNING")

    assert is_cancelled
    assert times("atomic") == 0
    assert states(handle) == {"one": "FAILED", "after": "SKIPPED"}
    assert inconsistencies(handle) == []
    output = process.stop()
    assert "deadlock" not in output, output


@pytest.mark.slow
def test_a_worker_ends_other_tasks_while_a_workflow_is_locked(worker, tmp_path):
    gate = tmp_path / "gate"
    handle = Workflow("locked", [bodies.flaky.node()(key="locked")]).start()
    other = tasks.hold.send("other", str(gate))

    with transaction.atomic():
        WorkflowRow.objects.lock([handle.id])
        worker("--threads", "2")
        wait_until(lambda: times("locked") == 1)
        gate.touch()
        wait_until(lambda: other.status() == "COMPLETED" or another_connection_waits_for_our_lock())

        assert (other.status(), handle.status()) == ("COMPLETED", "RUNNING")
    wait_until(lambda: handle.status() == "COMPLETED")


def test_repair_leaves_a_locked_workflow_to_the_next_pass():
    handle = Workflow("locked", {"one": bodies.echo.node()()}).start()
    end_without_notifying("one", status="COMPLETED", result={"ok": 1})

    def repair():
        try:
            return recover_stuck_workflows()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        WorkflowRow.objects.lock([handle.id])
        first = pool.submit(repair)
        wait_until(lambda: first.done() or another_connection_waits_for_our_lock())
        has_waited = not first.done()

    assert not has_waited
    assert first.result() == []
    assert [report.root_id for report in recover_stuck_workflows()] == [handle.id]
    assert handle.status() == "COMPLETED"


@pytest.mark.slow
def test_a_worker_backs_off_while_a_workflow_stays_locked(worker):
    handle = Workflow("locked", [bodies.flaky.node()(key="locked")]).start()
    process = worker("--threads", "2")

    with transaction.atomic():
        WorkflowRow.objects.lock([handle.id])
        wait_until(lambda: times("locked") == 1)
        time.sleep(1)  # the test measures how often it tries
        before, began = count_commits(), time.monotonic()
        time.sleep(4)
        tries = (count_commits() - before) / (time.monotonic() - began)

    wait_until(lambda: handle.status() == "COMPLETED")
    process.stop()
    assert 1 < tries < 50  # in a second


@pytest.fixture
def started_ahead(worker, tmp_path):
    """Start 30 nodes on a worker with two slots, which marks more of them as running than have started."""
    tasks.noop.send_many({} for _ in range(600))  # short tasks, so that the worker starts tasks ahead
    gate = tmp_path / "gate"
    nodes = [tasks.hold.node()(key=str(number), gate=str(gate)) for number in range(30)]
    process = worker("--threads", "2", "-v0")
    wait_until(lambda: Task.objects.filter(status="COMPLETED").count() > 400)
    handle = Workflow("ahead", nodes).start()
    wait_until(lambda: tasks_of(handle).filter(status="RUNNING").exists())
    return handle, gate, process


def stop_in_an_open_transaction(stop):
    """Pause or cancel in a transaction that stays open until the worker has tried to return its tasks."""
    with transaction.atomic():
        assert stop()
        before = count_commits()
        wait_until(lambda: count_commits() > before + 5)


def tasks_of(handle):
    return Task.objects.filter(workflow_id=handle.id)


@pytest.mark.slow
def test_a_pause_takes_back_nodes_that_were_started_ahead(started_ahead):
    """The worker has marked them as running, returns them because they have not started, and then sees the pause."""
    handle, gate, _ = started_ahead

    assert handle.pause()

    wait_until(lambda: tasks_of(handle).filter(status="RUNNING").count() <= 2)
    wait_until(lambda: list(handle.tasks().values()).count("READY") >= 28)
    wait_until(lambda: not tasks_of(handle).filter(status__in=["PENDING", "CLAIMED"]).exists())
    gate.touch()
    assert handle.resume()
    assert handle.get(20).is_ok()
    assert Entry.objects.count() == 30


@pytest.mark.slow
def test_an_uncommitted_pause_takes_back_nodes_that_were_started_ahead(started_ahead):
    handle, gate, _ = started_ahead

    stop_in_an_open_transaction(handle.pause)

    wait_until(lambda: list(handle.tasks().values()).count("READY") >= 28)
    wait_until(lambda: not tasks_of(handle).filter(status__in=["PENDING", "CLAIMED"]).exists())
    gate.touch()
    wait_until(lambda: not tasks_of(handle).filter(status="RUNNING").exists())
    assert Entry.objects.count() <= 2


@pytest.mark.slow
def test_an_uncommitted_cancel_skips_nodes_that_were_started_ahead(started_ahead):
    handle, gate, _ = started_ahead

    stop_in_an_open_transaction(handle.cancel)

    wait_until(lambda: tasks_of(handle).filter(status__in=["PENDING", "CLAIMED", "RUNNING"]).count() <= 2)
    gate.touch()
    wait_until(lambda: not tasks_of(handle).filter(status__in=["PENDING", "CLAIMED", "RUNNING"]).exists())
    assert list(handle.tasks().values()).count("SKIPPED") >= 28
    assert Entry.objects.count() <= 2


@pytest.mark.nightly
@pytest.mark.slow
def test_a_worker_that_stops_at_once_returns_nodes_of_a_locked_workflow(started_ahead):
    handle, _, process = started_ahead
    with transaction.atomic():
        WorkflowRow.objects.lock([handle.id])
        wait_until(lambda: Entry.objects.count() == 2)

        process.signal()
        process.signal()
        assert process.wait() == 0, process.output

        assert sorted(Counter(tasks_of(handle).values_list("status", "attempt")).items()) == [
            (("PENDING", 0), 28),
            (("RUNNING", 1), 2),  # those two had started
        ]


@pytest.mark.parametrize(("action", "expected"), [("pause", "READY"), ("cancel", "SKIPPED")])
def test_pause_and_cancel_take_back_a_task_that_is_briefly_locked(action, expected):
    """The concurrency limiter and the release of due tasks lock a task briefly."""
    handle = Workflow("locked", [tasks.noop.node(node_id="one")()]).start()
    is_held = threading.Event()

    def hold():
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                assert tasks_of(handle).lock().get()
                is_held.set()
                cursor.execute("SELECT pg_sleep(0.2)")
        finally:
            connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_held.wait(20)
    assert getattr(handle, action)()
    holder.join(20)

    assert states(handle) == {"one": expected}
    assert tasks_of(handle).get().status == "CANCELLED"
