"""Who holds the lock of a tree, and who waits for it."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
from django.db import connection, transaction

from horsies_django import TaskHandle, Workflow
from horsies_django.models import Task
from horsies_django.models import Workflow as WorkflowRow
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.workflows import bodies
from tests.workflows.runs import contradictions, states, times

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _locks_rows():
    if not connection.features.has_select_for_update:
        pytest.skip("has no locks on rows: there is one writer at a time")


def waits_for_a_lock():
    """Whether somebody else waits for a row of ours."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
        )
        return cursor.fetchone()[0] > 0


def test_an_atomic_body_waits_for_its_workflow_lock_without_locking_its_task(worker):
    """So that who has locked the workflow can cancel the task."""
    node = bodies.report_atomically.node(node_id="one")(key="atomic")
    handle = Workflow("atomic", [node, bodies.give.node(node_id="after", waits_for=[node])()]).start()
    (task,) = Task.objects.filter(workflow_id=handle.id)

    with transaction.atomic():
        WorkflowRow.objects.lock([handle.id])
        process = worker("--threads", "2")
        wait_until(waits_for_a_lock)
        is_cancelled = TaskHandle(task.pk).cancel(include_running=True)
    wait_until(lambda: handle.status() != "RUNNING")

    assert is_cancelled
    assert times("atomic") == 0
    assert states(handle) == {"one": "FAILED", "after": "SKIPPED"}
    assert contradictions(handle) == []
    output = process.stop()
    assert "deadlock" not in output, output


def transactions():
    """Return how many there have been in this database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
        return cursor.fetchone()[0]


@pytest.mark.slow
def test_a_worker_backs_off_while_a_workflow_stays_locked(worker):
    handle = Workflow("locked", [bodies.try_.node()(key="locked")]).start()
    process = worker("--threads", "2")

    with transaction.atomic():
        WorkflowRow.objects.lock([handle.id])
        wait_until(lambda: times("locked") == 1)
        time.sleep(1)  # how often it tries within a time is what this is about
        before, began = transactions(), time.monotonic()
        time.sleep(4)
        tries = (transactions() - before) / (time.monotonic() - began)

    wait_until(lambda: handle.status() == "COMPLETED")
    process.stop()
    assert 1 < tries < 50  # in a second


@pytest.fixture
def ahead(worker, tmp_path):
    """Start 30 nodes at a worker with two slots, which marks more of them as running than have begun."""
    tasks.noop.send_many({} for _ in range(600))  # so that it learns to start ahead
    gate = tmp_path / "gate"
    nodes = [tasks.hold.node()(key=str(number), gate=str(gate)) for number in range(30)]
    process = worker("--threads", "2", "-v0")
    wait_until(lambda: Task.objects.filter(status="COMPLETED").count() > 400)
    handle = Workflow("ahead", nodes).start()
    wait_until(lambda: of(handle).filter(status="RUNNING").exists())
    return handle, gate, process


def stop_slowly(stop):
    """Pause or cancel, in a transaction that is open until the worker has tried to give back what it holds."""
    with transaction.atomic():
        assert stop()
        before = transactions()
        wait_until(lambda: transactions() > before + 5)


def of(handle):
    return Task.objects.filter(workflow_id=handle.id)


def test_a_pause_takes_back_nodes_that_were_started_ahead(ahead):
    """Its worker has marked it as running, gives it back as it has not begun, and sees then that it is not to run."""
    handle, gate, _ = ahead

    assert handle.pause()

    wait_until(lambda: of(handle).filter(status="RUNNING").count() <= 2)
    wait_until(lambda: list(handle.tasks().values()).count("READY") >= 28)
    assert not of(handle).filter(status__in=["PENDING", "CLAIMED"]).exists()
    gate.touch()
    assert handle.resume()
    assert handle.get(20).is_ok()
    assert Entry.objects.count() == 30


@pytest.mark.slow
def test_an_uncommitted_pause_takes_back_nodes_that_were_started_ahead(ahead):
    handle, gate, _ = ahead

    stop_slowly(handle.pause)

    wait_until(lambda: list(handle.tasks().values()).count("READY") >= 28)
    assert not of(handle).filter(status__in=["PENDING", "CLAIMED"]).exists()
    gate.touch()
    wait_until(lambda: not of(handle).filter(status="RUNNING").exists())
    assert Entry.objects.count() <= 2


@pytest.mark.slow
def test_an_uncommitted_cancel_skips_nodes_that_were_started_ahead(ahead):
    handle, gate, _ = ahead

    stop_slowly(handle.cancel)

    wait_until(lambda: of(handle).filter(status__in=["PENDING", "CLAIMED", "RUNNING"]).count() <= 2)
    gate.touch()
    wait_until(lambda: not of(handle).filter(status__in=["PENDING", "CLAIMED", "RUNNING"]).exists())
    assert list(handle.tasks().values()).count("SKIPPED") >= 28
    assert Entry.objects.count() <= 2


@pytest.mark.nightly
@pytest.mark.slow
def test_a_worker_that_stops_at_once_returns_nodes_of_a_locked_workflow(ahead):
    handle, _, process = ahead
    with transaction.atomic():
        WorkflowRow.objects.lock([handle.id])
        wait_until(lambda: Entry.objects.count() == 2)

        process.signal()
        process.signal()
        assert process.wait() == 0, process.output

        assert sorted(Counter(of(handle).values_list("status", "attempt")).items()) == [
            (("PENDING", 0), 28),
            (("RUNNING", 1), 2),  # those two had begun
        ]


@pytest.mark.parametrize(("verb", "left"), [("pause", "READY"), ("cancel", "SKIPPED")])
def test_pause_and_cancel_take_back_a_task_that_is_briefly_locked(verb, left):
    """As who lets it in at its gate has, or who sees that its time has come."""
    handle = Workflow("locked", [tasks.noop.node(node_id="one")()]).start()
    is_held = threading.Event()

    def hold():
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                assert of(handle).lock().get()
                is_held.set()
                cursor.execute("SELECT pg_sleep(0.2)")
        finally:
            connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_held.wait(20)
    assert getattr(handle, verb)()
    holder.join(20)

    assert states(handle) == {"one": left}
    assert of(handle).get().status == "CANCELLED"
