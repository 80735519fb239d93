"""Stops that outlast their timeout: first the bodies end, and then their tasks are given away."""

import os
import signal
import time

import pytest
from django.db import connection

from horsies_django import TaskStatus
from horsies_django.models import Queue, Task, TaskAttempt, Worker
from tests.conftest import wait_until
from tests.faults import jobs
from tests.faults.server import frozen
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

CRASHED = ("WORKER_FAILURE", "WORKER_CRASHED", True)


def began(key):
    return wait_until(lambda: Entry.objects.filter(key=key).first(), limit=40, what=f"{key} has begun")


def attempts_of(handle):
    attempts = TaskAttempt.objects.filter(task=handle.id).order_by("attempt")
    return list(attempts.values_list("outcome", "error_code", "will_retry"))


@pytest.mark.parametrize("is_group", [False, True], ids=["the supervisor", "the whole group"])
def test_a_shutdown_that_is_outlasted_runs_no_task_twice_at_once_and_keeps_max_concurrency(worker, tmp_path, is_group):
    Queue.objects.create(name="narrow", max_concurrency=3)
    first = worker("--threads", "4", "--shutdown-timeout", "0.5")
    handles = [jobs.take_a_place.send(str(tmp_path), 3, f"task {number}") for number in range(6)]
    wait_until(lambda: Entry.objects.filter(key__startswith="task").count() == 3, limit=40)
    pids = set(Entry.objects.values_list("pid", flat=True))
    second = worker("--threads", "4", "--shutdown-timeout", "0.5")

    os.killpg(first.process.pid, signal.SIGTERM) if is_group else first.signal(signal.SIGTERM)

    assert first.wait(40) == 0, first.output
    others = Entry.objects.exclude(pid__in=pids)
    wait_until(lambda: others.count() >= 3, limit=40, what="the second worker has all the places")
    (tmp_path / "gate").touch()
    assert [handle.value(timeout=60) for handle in handles] == [f"task {number}" for number in range(6)]
    assert not Entry.objects.filter(key="too many").exists()
    assert sum(attempts_of(handle)[0] == CRASHED for handle in handles) == 3
    assert set(Task.objects.values_list("retry_count", flat=True)) == {0}  # the stop is not the tasks' fault
    assert second.process.poll() is None


@pytest.mark.parametrize("body", [jobs.clean_up, jobs.aclean_up])
def test_a_drain_with_no_supervisor_ends_its_bodies_first(manage, body):
    handle = body.send("body")
    process = manage("horsies_worker", "--drain", "--threads", "2", "--shutdown-timeout", "0.5")
    began("body began")

    process.signal(signal.SIGTERM)

    assert process.wait(40) == 0, process.output
    assert Entry.objects.filter(key="body ended").exists()
    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.retry_count) == (TaskStatus.PENDING, 0)
    assert attempts_of(handle) == [CRASHED]


def test_a_drain_with_no_supervisor_keeps_the_task_of_a_body_that_does_not_stop(manage):
    handle = jobs.be_stuck.send("stuck", 30)
    process = manage("horsies_worker", "--drain", "--shutdown-timeout", "0.5", "--timeout-grace", "1")
    began("stuck")

    process.signal(signal.SIGTERM)

    assert process.wait(25) == 0, process.output
    assert Task.objects.get(pk=handle.id).status == TaskStatus.RUNNING
    assert attempts_of(handle) == []


def is_registered():
    return Worker.objects.exists()


@pytest.mark.nightly
@pytest.mark.parametrize("signals", [1, 2])
def test_a_stop_ends_within_its_bound_whatever_the_database_does(own_cluster, start, tmp_path, signals):
    """The server is frozen: it takes what is said and answers nothing."""
    process = start("horsies_worker", "--shutdown-timeout", "1" if signals == 1 else "600")
    wait_until(is_registered, limit=60)
    handle = jobs.hold.send("held", str(tmp_path / "gate"))
    began("held")
    connection.close()

    with frozen(own_cluster):
        told_at = time.monotonic()
        process.signal(signal.SIGTERM)
        if signals == 2:
            wait_until(lambda: "worker stopping" in process.output, limit=40)
            process.signal(signal.SIGTERM)
        process.wait(60)
        took = time.monotonic() - told_at

    assert "left to a reaper" in process.output
    # 1 s, 5 s for the runner to say what it has to, 10 s for the database; or next to nothing, and 3 s.
    assert took < (16 if signals == 1 else 10) + 10, process.output
    assert handle.status() == TaskStatus.RUNNING


def test_a_runner_that_dies_while_the_database_is_silent_does_not_make_the_supervisor_deaf(own_cluster, start):
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


def test_what_a_dead_runner_held_is_recovered_once_the_database_is_back(own_cluster, start, tmp_path):
    start("horsies_worker", "--threads", "1")
    handle = jobs.hold.send("held", str(tmp_path / "gate"))
    runner = began("held").pid
    connection.close()

    with frozen(own_cluster):
        os.kill(runner, signal.SIGKILL)
        frozen_until = time.monotonic() + 3
        wait_until(lambda: time.monotonic() > frozen_until)

    assert handle.get(timeout=40).err.error_code == "WORKER_CRASHED"
    assert tasks.add.send(1).value(timeout=40) == 2
