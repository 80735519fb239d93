"""Stops with bodies that outlast the timeout: first the bodies end, and then their tasks are released."""

import os
import signal
import time

import pytest
from django.db import connection

from horsies_django import TaskStatus
from horsies_django.models import Queue, Task, Worker
from tests.conftest import wait_until
from tests.faults import jobs
from tests.faults.attempts import attempts_of
from tests.faults.server import frozen
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

CRASHED = ("WORKER_FAILURE", "WORKER_CRASHED", True)


def first_entry(key):
    return wait_until(lambda: Entry.objects.filter(key=key).first(), limit=40, what=f"{key} has begun")


@pytest.mark.parametrize("is_group", [False, True], ids=["the supervisor", "the whole group"])
def test_tasks_cut_off_by_a_shutdown_keep_to_the_max_concurrency_of_their_queue(worker, tmp_path, is_group):
    Queue.objects.create(name="narrow", max_concurrency=3)
    first = worker("--threads", "4", "--shutdown-timeout", "0.5")
    handles = [jobs.take_a_slot.send(str(tmp_path), 3, f"task {number}") for number in range(6)]
    wait_until(lambda: Entry.objects.filter(key__startswith="task").count() == 3, limit=40)
    pids = set(Entry.objects.values_list("pid", flat=True))
    second = worker("--threads", "4", "--shutdown-timeout", "0.5")

    os.killpg(first.process.pid, signal.SIGTERM) if is_group else first.signal(signal.SIGTERM)

    assert first.wait(40) == 0, first.output
    others = Entry.objects.exclude(pid__in=pids)
    wait_until(lambda: others.count() >= 3, limit=40, what="the second worker runs three bodies")
    (tmp_path / "gate").touch()
    assert [handle.value(timeout=60) for handle in handles] == [f"task {number}" for number in range(6)]
    assert not Entry.objects.filter(key="too many").exists()
    assert sum(attempts_of(handle)[0] == CRASHED for handle in handles) == 3
    assert set(Task.objects.values_list("retry_count", flat=True)) == {0}  # the stop is not the tasks' fault
    assert second.process.poll() is None


@pytest.mark.parametrize("body", [jobs.clean_up, jobs.aclean_up])
def test_a_stopped_drain_ends_its_bodies_before_it_releases_their_tasks(manage, body):
    handle = body.send("body")
    process = manage("horsies_worker", "--drain", "--threads", "2", "--shutdown-timeout", "0.5")
    first_entry("body began")

    process.signal(signal.SIGTERM)

    assert process.wait(40) == 0, process.output
    assert Entry.objects.filter(key="body ended").exists()
    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.retry_count) == (TaskStatus.PENDING, 0)
    assert attempts_of(handle) == [CRASHED]


def test_a_stopped_drain_keeps_the_task_of_a_body_that_does_not_stop(manage):
    handle = jobs.be_stuck.send("stuck", 120)
    process = manage("horsies_worker", "--drain", "--shutdown-timeout", "0.5", "--timeout-grace", "1")
    first_entry("stuck")

    process.signal(signal.SIGTERM)

    assert process.wait(60) == 0, process.output
    assert Task.objects.get(pk=handle.id).status == TaskStatus.RUNNING
    assert attempts_of(handle) == []


def is_registered():
    return Worker.objects.exists()


@pytest.mark.nightly
@pytest.mark.parametrize("signals", [1, 2])
def test_a_worker_stops_in_bounded_time_on_a_frozen_server(own_cluster, start, tmp_path, signals):
    """A frozen server accepts statements and answers none."""
    process = start("horsies_worker", "--shutdown-timeout", "1" if signals == 1 else "600")
    wait_until(is_registered, limit=60)
    handle = jobs.hold.send("held", str(tmp_path / "gate"))
    first_entry("held")
    connection.close()

    with frozen(own_cluster):
        process.signal(signal.SIGTERM)
        if signals == 2:
            wait_until(lambda: "worker stopping" in process.output, limit=40)
            process.signal(signal.SIGTERM)
        # One signal: 1 s, 5 s for the runner to report, 10 s for the database. Two signals: almost 0 s, and 3 s.
        process.wait(60)

    assert "left to a reaper" in process.output
    assert handle.status() == TaskStatus.RUNNING


def test_a_supervisor_heeds_signals_after_a_runner_died_on_a_frozen_server(own_cluster, start):
    process = start("horsies_worker", "--threads", "1")
    wait_until(is_registered, limit=60)
    runner = Worker.objects.get().pid
    connection.close()

    with frozen(own_cluster):
        os.kill(runner, signal.SIGKILL)
        wait_until(lambda: "runner died" in process.output, limit=40)
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGINT)
        process.wait(40)

    assert "left to a reaper" in process.output


def test_a_dead_runners_task_is_recovered_once_the_database_is_back(own_cluster, start, tmp_path):
    start("horsies_worker", "--threads", "1")
    handle = jobs.hold.send("held", str(tmp_path / "gate"))
    runner = first_entry("held").pid
    connection.close()

    with frozen(own_cluster):
        os.kill(runner, signal.SIGKILL)
        frozen_until = time.monotonic() + 3
        wait_until(lambda: time.monotonic() > frozen_until)

    assert handle.get(timeout=40).err.error_code == "WORKER_CRASHED"
    assert tasks.add.send(1).value(timeout=40) == 2
