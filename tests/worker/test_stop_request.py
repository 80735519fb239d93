"""A stop request: the runner finishes its running tasks and ends, and is not replaced."""

import os
import signal

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

import horsies_django
from horsies_django import TaskStatus
from horsies_django.models import Task, Worker
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.worker.test_stopping import send_hold

pytestmark = pytest.mark.once


def row_of(pid):
    return Worker.objects.filter(pid=pid)


@pytest.mark.slow
def test_the_worker_row_has_its_slots_queues_and_version(worker):
    worker("--threads", "3", "--async-slots", "7", "--queues", "emails,default", "--exclude-queues", "reports")

    row = Worker.objects.get()

    assert (row.threads, row.async_slots, row.backend, row.version) == (3, 7, "default", horsies_django.__version__)
    assert (row.queues, row.excluded_queues) == (["emails", "default"], ["reports"])
    assert row.memory > 1_000_000
    assert row.stop_requested_at is None


@pytest.mark.slow
def test_each_heartbeat_updates_the_memory_of_the_worker_row(worker):
    worker(TEST_HEARTBEAT_MS="200", TEST_STALE_MS="60000")
    Worker.objects.update(memory=1)

    wait_until(lambda: Worker.objects.get().memory > 1_000_000)


@pytest.mark.slow
def test_a_requested_runner_finishes_its_task_and_stops_while_the_other_continues(worker, gate):
    process = worker("--processes", "2", "--threads", "1", "--shutdown-timeout", "0.2", runners=2)
    handle, pid = send_hold(gate)

    assert row_of(pid).request_stop() == 1
    wait_until(lambda: "worker asked to stop" in process.output, limit=40)

    assert tasks.add.send(1).value(timeout=20) == 2
    assert handle.status() == TaskStatus.RUNNING
    assert row_of(pid).exists()
    gate.touch()

    wait_until(lambda: not row_of(pid).exists())
    assert handle.status() == TaskStatus.COMPLETED
    wait_until(lambda: "not replaced" in process.output)
    assert Worker.objects.count() == 1
    assert tasks.add.send(1).value(timeout=20) == 2
    assert process.process.poll() is None


@pytest.mark.slow
def test_the_worker_exits_with_status_0_when_its_last_runner_was_asked_to_stop(worker, gate):
    process = worker("--threads", "1", "--prefetch", "2", TEST_HEARTBEAT_MS="500", TEST_STALE_MS="60000")
    handle, _ = send_hold(gate)
    waiting = tasks.noop.send_many({} for _ in range(2))
    wait_until(lambda: Task.objects.filter(status=TaskStatus.CLAIMED).count() == 2)

    Worker.objects.request_stop()
    wait_until(lambda: Task.objects.pending().count() == 2, what="the release of the prefetched tasks")
    gate.touch()

    assert process.wait(20) == 0
    assert handle.status() == TaskStatus.COMPLETED
    assert {Task.objects.get(pk=task.id).attempt for task in waiting} == {0}
    assert not Worker.objects.exists()
    assert "with the last one the worker ends" in process.output


@pytest.mark.slow
def test_a_runner_that_dies_after_a_stop_request_is_not_replaced(worker, gate):
    process = worker("--threads", "1")
    handle, pid = send_hold(gate)
    Worker.objects.request_stop()

    os.kill(pid, signal.SIGKILL)

    assert process.wait(20) == 0, process.output
    assert handle.status() == TaskStatus.FAILED


@pytest.mark.slow
def test_a_runner_that_gets_sigterm_after_a_stop_request_is_not_replaced(worker, gate):
    process = worker("--threads", "1", TEST_HEARTBEAT_MS="500", TEST_STALE_MS="60000")
    handle, pid = send_hold(gate)
    Worker.objects.request_stop()
    wait_until(lambda: "worker asked to stop" in process.output)

    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: "worker stopping" in process.output)
    gate.touch()

    assert process.wait(20) == 0, process.output
    assert handle.status() == TaskStatus.COMPLETED


@pytest.mark.slow
def test_sigterm_after_a_stop_request_applies_the_shutdown_timeout(worker, gate):
    process = worker("--threads", "1", "--shutdown-timeout", "0.5", TEST_HEARTBEAT_MS="500", TEST_STALE_MS="60000")
    handle, _ = send_hold(gate)
    Worker.objects.request_stop()
    wait_until(lambda: "worker asked to stop" in process.output)

    process.signal(signal.SIGTERM)

    assert process.wait(20) == 0
    assert handle.get(0).err.error_code == "WORKER_CRASHED"


@pytest.mark.slow
def test_an_idle_runner_stops_at_once(worker):
    process = worker()

    Worker.objects.request_stop()

    assert process.wait(20) == 0


@pytest.mark.django_db(transaction=True)
def test_a_second_stop_request_changes_nothing():
    Worker.objects.register("w", "", "host", 1)

    assert [Worker.objects.request_stop() for _ in range(2)] == [1, 0]


@pytest.mark.django_db(transaction=True)
def test_a_heartbeat_is_one_statement_and_returns_the_stop_request():
    Worker.objects.register("w", "", "host", 1)

    with transaction.atomic(), CaptureQueriesContext(connection) as captured:  # the transaction of a tick
        assert Worker.objects.beat("w", 1) == "go on"
    assert len(captured) == 1
    Worker.objects.request_stop()
    assert Worker.objects.beat("w", 2) == "stop"
    assert Worker.objects.get().memory == 2
    assert Worker.objects.beat("unknown") == "gone"
