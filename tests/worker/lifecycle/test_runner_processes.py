"""Runner processes: their ends, their replacement, and the connections that they must not share."""

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
    """A file in this folder breaks a part of the processes started with ``breaking_environment``."""
    return tmp_path


@pytest.fixture
def breaking_environment(folder):
    # The settings recognize a runner by its command line.
    settings = "tests.worker.lifecycle.breaking_settings"
    return {"BREAK_AT": str(folder), "DJANGO_SETTINGS_MODULE": settings, "HORSIES_WORKER_NO_FORK": "1"}


# Bodies that end their process.

ENDINGS = {
    "exit": (jobs.leave, "UNHANDLED_EXCEPTION", "FAILED"),
    "exit hard": (jobs.leave_hard, "WORKER_CRASHED", "WORKER_FAILURE"),
    "segfault": (jobs.segfault, "WORKER_CRASHED", "WORKER_FAILURE"),
    "killed for its memory": (jobs.kill_itself, "WORKER_CRASHED", "WORKER_FAILURE"),
}


@pytest.mark.slow
def test_a_body_that_ends_its_process_has_an_attempt_and_other_tasks_complete(worker):
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
def test_only_the_crashed_runner_is_replaced(worker, gate):
    worker("--processes", "2", "--threads", "1", runners=2)
    bystander = tasks.hold.send("bystander", str(gate))
    wait_until(lambda: Entry.objects.exists())
    kept = Entry.objects.get().pid

    assert jobs.segfault.send("segfault").get(timeout=20).err.error_code == "WORKER_CRASHED"
    wait_until(lambda: Worker.objects.exclude(pid__in=Entry.objects.values("pid")).exists(), what="a new runner")
    gate.touch()

    assert bystander.value(timeout=20) == "bystander"
    assert Worker.objects.filter(pid=kept).exists()


@pytest.mark.parametrize(
    "no_fork",
    [pytest.param("0", id="forked"), pytest.param("1", id="not forked", marks=pytest.mark.nightly)],
)
def test_a_runner_that_dies_is_replaced_though_the_project_reaps_all_processes(worker, no_fork):
    settings = {"DJANGO_SETTINGS_MODULE": "tests.worker.lifecycle.reaping_settings", "HORSIES_WORKER_NO_FORK": no_fork}
    process = worker("--processes", "2", runners=2, **settings)
    first = set(Worker.objects.values_list("pid", flat=True))

    for pid in first:
        os.kill(pid, signal.SIGKILL)

    wait_until(lambda: Worker.objects.exclude(pid__in=first).count() == 2, limit=40, what="two new runners")
    assert tasks.add.send(1).value(timeout=20) == 2
    process.signal(signal.SIGTERM)
    assert process.wait(20) == 0
    ends = re.findall(r"runner died id=\S+ (.*)", process.output)
    assert len(ends) == 2
    assert set(ends) <= {"status=0 or unknown", "signal=SIGKILL"}, "either the supervisor or the project reaps first"


# Replacing runners under load.


def assert_all_ran_once(count):
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

    assert_all_ran_once(120)
    assert Entry.objects.values("pid").distinct().count() >= 4
    assert "runner died" not in process.output
    process.signal(signal.SIGTERM)
    assert process.wait(20) == 0


@pytest.mark.slow
def test_replacing_runners_by_memory_under_load_loses_no_task(worker):
    process = worker("--threads", "2", "--prefetch", "2", "--max-memory-mb", "200")

    jobs.grow.send_many({"key": str(number), "megabytes": 40} for number in range(20))

    wait_until(lambda: "it is replaced" in process.output)  # checked once a second: maybe after all tasks
    jobs.grow.send_many({"key": str(number), "megabytes": 40} for number in range(20, 25))
    assert_all_ran_once(25)
    assert "runner died" not in process.output
    assert Entry.objects.values("pid").distinct().count() >= 2


def test_tasks_run_under_a_memory_limit_below_the_size_of_an_idle_runner(worker):
    """Each runner runs tasks before it is replaced; otherwise no task would ever run."""
    worker("--max-memory-mb", "16")

    assert tasks.add.send(1).value(timeout=20) == 2


# Runners that can't start.


@pytest.mark.slow
def test_failed_runner_starts_back_off_and_use_no_retry(manage, folder, breaking_environment):
    handle = tasks.flaky.send("waits", 0)
    (folder / "runner").touch()
    process = manage("horsies_worker", **breaking_environment)
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

    assert handle.get(timeout=40).is_ok(), "runners start once they can"
    process.signal(signal.SIGTERM)
    assert process.wait(20) == 0


# Shared connections.


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


def test_processes_share_no_connection(worker):
    process = worker("--processes", "2", "--threads", "2", runners=2)
    for _ in range(4):
        tasks.add.send(1).value(timeout=20)
    pids = [process.process.pid, *Worker.objects.values_list("pid", flat=True)]

    def all_sockets():
        sockets = [sockets_of(pid) for pid in pids]
        return (connection.vendor != "postgresql" or all(sockets)) and sockets

    sockets = wait_until(all_sockets)  # until the reaper has made its first pass

    assert len(set.union(*sockets)) == sum(map(len, sockets)), "no socket is shared"


def test_a_bodys_subprocess_inherits_no_connection(worker):
    worker()

    assert jobs.sockets_of_a_subprocess.send().value(timeout=20) == ""


# Loops that raise.


@pytest.mark.once
def test_a_reaper_that_raises_ends_its_worker_with_exit_status_1(worker, folder, breaking_environment):
    process = worker(TEST_CHECK_MS="200", **breaking_environment)
    handle = tasks.add.send(1)
    assert handle.value(timeout=20) == 2

    (folder / "reaper").touch()

    assert process.wait(40) == 1
    assert "the reaper is broken" in process.output
    assert not Worker.objects.exists(), "its runners have stopped in order"


def test_a_standalone_reaper_that_raises_exits_with_an_error_status(manage, folder, breaking_environment):
    (folder / "reaper").touch()

    process = manage("horsies_reaper", "--interval", "0.2", **breaking_environment)

    assert process.wait(40) != 0
    assert "the reaper is broken" in process.output


@pytest.mark.slow
def test_a_runner_whose_producer_raises_is_replaced_and_no_task_is_lost(worker, folder, breaking_environment):
    process = worker("--processes", "1", **breaking_environment)
    first = Worker.objects.get().pid

    (folder / "producer").touch()
    wait_until(lambda: "runner died" in process.output)
    handle = tasks.write.send("survives")
    (folder / "producer").unlink()

    assert handle.get(timeout=30).is_ok()
    assert Entry.objects.get().pid != first
    assert process.process.poll() is None
