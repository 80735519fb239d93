"""Runner processes: how they end, how they are replaced, and what they share."""

import os
import re
import signal
from pathlib import Path

import pytest
from django.db import connection

from horsies_django import TaskStatus
from horsies_django.core.status import TASK_LIVE_STATES
from horsies_django.models import Task, TaskAttempt, Worker
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.worker.lifecycle import jobs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.slow]


@pytest.fixture
def folder(tmp_path):
    """What is put into this folder breaks a part of the processes that ``fragile`` describes."""
    return tmp_path


@pytest.fixture
def fragile(folder):
    # It tells runners by how they were started.
    settings = "tests.worker.lifecycle.breaking_settings"
    return {"BREAK_AT": str(folder), "DJANGO_SETTINGS_MODULE": settings, "HORSIES_WORKER_NO_FORK": "1"}


# Bodies that end their process.

ENDINGS = {
    "leave": (jobs.leave, "UNHANDLED_EXCEPTION", "FAILED"),
    "leave hard": (jobs.leave_hard, "WORKER_CRASHED", "WORKER_FAILURE"),
    "segfault": (jobs.segfault, "WORKER_CRASHED", "WORKER_FAILURE"),
    "killed for its memory": (jobs.killed_for_its_memory, "WORKER_CRASHED", "WORKER_FAILURE"),
}


@pytest.mark.slow
def test_however_a_body_ends_its_process_it_has_its_attempt_and_the_others_go_on(worker):
    process = worker("--threads", "1", "--prefetch", "2")
    handles, between = {}, []
    for name, (body, *_) in ENDINGS.items():
        handles[name] = body.send(name)
        between.append(tasks.write.send("between"))

    results = {name: handle.get(timeout=30) for name, handle in handles.items()}
    wait_until(lambda: Entry.objects.filter(key="between").count() == len(between), limit=30)
    wait_until(lambda: Task.objects.completed().count() == len(between))

    assert {name: result.err.error_code for name, result in results.items()} == {
        name: code for name, (_, code, _) in ENDINGS.items()
    }
    for name, (_, code, outcome) in ENDINGS.items():
        attempt = TaskAttempt.objects.get(task_id=handles[name].id)
        pid = Entry.objects.get(key=name).pid
        assert (attempt.outcome, attempt.error_code, attempt.pid) == (outcome, code, pid), name
    assert {handle.info().attempt for handle in between} == {1}
    wait_until(lambda: Worker.objects.count() == 1)
    assert process.process.poll() is None


@pytest.mark.slow
def test_only_the_runner_of_such_a_body_is_replaced(worker, gate):
    worker("--processes", "2", "--threads", "1", runners=2)
    bystander = tasks.hold.send("bystander", str(gate))
    wait_until(lambda: Entry.objects.exists())
    kept = Entry.objects.get().pid

    assert jobs.segfault.send("segfault").get(timeout=20).err.error_code == "WORKER_CRASHED"
    wait_until(lambda: Worker.objects.exclude(pid__in=Entry.objects.values("pid")).exists(), what="a fresh runner")
    gate.touch()

    assert bystander.value(timeout=20) == "bystander"
    assert Worker.objects.filter(pid=kept).exists()


# Replacing runners under load.


def all_have_run_once(count):
    wait_until(lambda: not Task.objects.filter(status__in=TASK_LIVE_STATES).exists(), limit=80)
    assert Entry.objects.count() == Entry.objects.values("key").distinct().count() == count
    assert set(TaskAttempt.objects.values_list("attempt", "outcome")) == {(1, "COMPLETED")}


@pytest.mark.slow
def test_replacing_runners_by_count_under_load_loses_no_task(worker):
    process = worker(
        *("--processes", "2", "--threads", "4", "--prefetch", "4", "--max-tasks-per-child", "20"), runners=2
    )

    for start in range(0, 120, 30):
        tasks.write.send_many({"key": str(number)} for number in range(start, start + 30))

    all_have_run_once(120)
    assert Entry.objects.values("pid").distinct().count() >= 4
    assert "runner died" not in process.output
    process.signal(signal.SIGTERM)
    assert process.wait(20) == 0


@pytest.mark.slow
def test_replacing_runners_by_memory_under_load_loses_no_task(worker):
    process = worker("--threads", "2", "--prefetch", "2", "--max-memory-mb", "200")

    jobs.grow.send_many({"key": str(number), "megabytes": 40} for number in range(20))

    wait_until(lambda: "it is replaced" in process.output)  # it weighs itself once a second: all may be done by then
    jobs.grow.send_many({"key": str(number), "megabytes": 40} for number in range(20, 25))
    all_have_run_once(25)
    assert "runner died" not in process.output
    assert Entry.objects.values("pid").distinct().count() >= 2


def test_a_limit_below_what_an_idle_runner_takes_still_lets_tasks_run(worker):
    """Each runner does something before it is replaced: else none ever would, and they would come and go for ever."""
    worker("--max-memory-mb", "16")

    assert tasks.add.send(1).value(timeout=20) == 2


# Runners that can't start.


@pytest.mark.slow
def test_a_runner_that_can_not_start_is_tried_less_and_less_often_and_burns_no_retry(manage, folder, fragile):
    handle = tasks.flaky.send("waits", 0)
    (folder / "runner").touch()
    process = manage("horsies_worker", **fragile)
    wait_until(lambda: process.output.count("runner restart delayed") >= 4, limit=60)

    pauses = [
        float(seconds) for seconds in re.findall(r"restart delayed failed_starts=\d+ seconds=(\S+)", process.output)
    ]
    assert pauses[0] < pauses[3]
    assert pauses == sorted(pauses)
    assert "these settings can't be read" in process.output
    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.attempt, row.retry_count, row.claim) == (TaskStatus.PENDING, 0, 0, 0)
    (folder / "runner").unlink()

    assert handle.get(timeout=40).is_ok(), "once runners can start again, they do"
    process.signal(signal.SIGTERM)
    assert process.wait(20) == 0


# What processes share.


def sockets_of(pid):
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def test_no_two_processes_share_a_connection(worker):
    process = worker("--processes", "2", "--threads", "2", runners=2)
    for _ in range(4):
        tasks.add.send(1).value(timeout=20)
    pids = [process.process.pid, *Worker.objects.values_list("pid", flat=True)]
    if connection.vendor == "postgresql":
        wait_until(lambda: all(map(sockets_of, pids)))  # the reaper may not have come to its first pass

    sockets = [sockets_of(pid) for pid in pids]

    assert len(set.union(*sockets)) == sum(map(len, sockets)), "each is one process's own"
    if connection.vendor == "postgresql":
        assert all(sockets)


def test_a_bodys_subprocess_inherits_no_connection(worker):
    worker()

    assert jobs.sockets_of_a_subprocess.send().value(timeout=20) == ""


# Loops that raise.


@pytest.mark.once
def test_a_reaper_that_raises_ends_its_worker_with_exit_status_1(worker, folder, fragile):
    process = worker(TEST_CHECK_MS="200", **fragile)
    handle = tasks.add.send(1)
    assert handle.value(timeout=20) == 2

    (folder / "reaper").touch()

    assert process.wait(40) == 1
    assert "the reaper is broken" in process.output
    assert not Worker.objects.exists(), "its runners have left in order"


def test_a_reaper_of_its_own_that_raises_ends_with_a_status_that_is_not_0(manage, folder, fragile):
    (folder / "reaper").touch()

    process = manage("horsies_reaper", "--interval", "0.2", **fragile)

    assert process.wait(40) != 0
    assert "the reaper is broken" in process.output


@pytest.mark.slow
def test_a_pump_that_raises_ends_its_runner_which_is_replaced_and_no_task_is_lost(worker, folder, fragile):
    process = worker("--processes", "1", **fragile)
    first = Worker.objects.get().pid

    (folder / "producer").touch()
    wait_until(lambda: "runner died" in process.output)
    handle = tasks.write.send("survives")
    (folder / "producer").unlink()

    assert handle.get(timeout=30).is_ok()
    assert Entry.objects.get().pid != first
    assert process.process.poll() is None
