"""Workers and runners that are stopped or killed."""

import os
import signal

import pytest

from horsies_django import TaskStatus
from horsies_django.core.ids import uuid7
from horsies_django.models import Task, Worker
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.settings import MODULES

pytestmark = pytest.mark.once


def alive(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def send_hold(gate):
    """Send a body that waits for the gate; once it runs, return its handle and its process."""
    key = str(uuid7())
    handle = tasks.hold.send(key, str(gate))
    wait_until(lambda: Entry.objects.filter(key=key).exists())
    return handle, Entry.objects.get(key=key).pid


@pytest.mark.slow
@pytest.mark.parametrize("to_group", [False, True], ids=["the supervisor", "the whole group"])
def test_a_worker_that_gets_sigterm_waits_for_its_running_body_and_exits_with_0(worker, gate, to_group):
    process = worker("--threads", "1", "--prefetch", "3")
    handle, _ = send_hold(gate)
    waiting = tasks.noop.send_many({} for _ in range(3))
    wait_until(lambda: Task.objects.filter(status=TaskStatus.CLAIMED).count() == 3)

    os.killpg(process.process.pid, signal.SIGTERM) if to_group else process.signal(signal.SIGTERM)
    wait_until(lambda: Task.objects.pending().count() == 3, what="the release of the prefetched tasks")
    assert handle.status() == TaskStatus.RUNNING
    gate.touch()

    assert process.wait(20) == 0
    assert handle.status() == TaskStatus.COMPLETED
    assert [Task.objects.get(pk=task.id).attempt for task in waiting] == [0, 0, 0]
    assert Worker.objects.count() == 0


@pytest.mark.slow
def test_a_body_that_outlasts_the_shutdown_timeout_fails_without_a_policy(worker, gate):
    process = worker("--shutdown-timeout", "0.5")
    handle, _ = send_hold(gate)

    process.signal(signal.SIGTERM)

    assert process.wait(20) == 0
    assert handle.get(0).err.error_code == "WORKER_CRASHED"


@pytest.mark.slow
def test_a_second_sigterm_stops_the_worker_at_once(worker, gate):
    process = worker("--shutdown-timeout", "60")
    handle, _ = send_hold(gate)

    process.signal(signal.SIGTERM)
    wait_until(lambda: "worker stopping" in process.output)
    process.signal(signal.SIGTERM)

    assert process.wait(20) == 0
    assert handle.status() == TaskStatus.FAILED


@pytest.mark.slow
def test_a_worker_that_gets_sighup_stops_as_on_sigterm(worker, gate):
    process = worker()
    handle, _ = send_hold(gate)

    process.signal(signal.SIGHUP)
    wait_until(lambda: "worker stopping" in process.output)
    gate.touch()

    assert process.wait(20) == 0
    assert handle.status() == TaskStatus.COMPLETED


@pytest.mark.slow
def test_a_worker_that_gets_sigquit_stops_at_once(worker, gate):
    process = worker("--shutdown-timeout", "60")
    handle, _ = send_hold(gate)

    process.signal(signal.SIGQUIT)

    assert process.wait(20) == 0
    assert handle.status() == TaskStatus.FAILED


@pytest.mark.slow
@pytest.mark.parametrize("no_fork", ["0", "1"], ids=["forked", "not forked"])
def test_a_worker_started_with_nohup_ignores_sighup_in_all_its_processes(worker, no_fork):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        # A variable that is read at import keeps the process from being forked from one that does not ignore SIGHUP.
        process = worker(HORSIES_WORKER_NO_FORK=no_fork, TEST_MODULES=",".join(MODULES))
    finally:
        signal.signal(signal.SIGHUP, before)

    os.kill(Worker.objects.get().pid, signal.SIGHUP)
    process.signal(signal.SIGHUP)

    assert tasks.add.send(1).value(timeout=20) == 2
    assert "worker stopping" not in process.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hangs_at", "statuses"),
    [("import", [-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP]), ("connection", [0, 0, 0])],
    ids=["Django is imported", "the tables are checked"],
)
def test_a_stop_before_a_worker_has_begun_ends_it_with_the_documented_status(manage, tmp_path, hangs_at, statuses):
    ended = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        variables = {"DJANGO_SETTINGS_MODULE": "tests.worker.hanging_settings", "HANG_IN": str(tmp_path)}
        process = manage("horsies_worker", "--skip-checks", **variables, HANG_AT=hangs_at)
        wait_until((tmp_path / "hangs").exists, limit=40)
        (tmp_path / "hangs").unlink()
        process.signal(number)
        ended.append(process.wait(20))

    assert ended == statuses


@pytest.mark.slow
def test_a_killed_runner_is_replaced_and_its_task_runs_again_at_once(worker):
    worker()
    handle = tasks.crash_once.send("crash")

    assert handle.value(timeout=20) == 2

    first, second = Task.objects.get(pk=handle.id).attempts.order_by("attempt")
    assert (first.outcome, first.will_retry, first.error_code) == ("WORKER_FAILURE", True, "WORKER_CRASHED")
    assert (second.outcome, second.attempt) == ("COMPLETED", 2)
    assert first.worker_id != second.worker_id
    assert first.pid is not None


@pytest.mark.slow
def test_a_killed_runners_task_without_a_policy_fails_at_once_with_one_attempt(worker, gate):
    worker()
    handle, pid = send_hold(gate)

    os.kill(pid, signal.SIGKILL)

    wait_until(lambda: handle.status() == TaskStatus.FAILED)  # a heartbeat is stale after two minutes
    assert handle.get(0).err.error_code == "WORKER_CRASHED"
    assert Task.objects.get(pk=handle.id).attempts.count() == 1


@pytest.mark.slow
def test_the_prefetched_tasks_of_a_killed_runner_are_released_without_an_attempt(worker, gate):
    worker("--threads", "1", "--prefetch", "2")
    _, pid = send_hold(gate)
    waiting = tasks.noop.send_many({} for _ in range(2))
    wait_until(lambda: Task.objects.filter(status=TaskStatus.CLAIMED).count() == 2)

    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: Task.objects.completed().count() == 2)

    assert [Task.objects.get(pk=task.id).attempt for task in waiting] == [1, 1]


@pytest.mark.slow
def test_the_runners_of_a_killed_supervisor_end(worker, gate):
    process = worker("--processes", "2", runners=2)
    _, pid = send_hold(gate)
    pids = list(Worker.objects.values_list("pid", flat=True))
    assert pid in pids

    process.signal(signal.SIGKILL)

    wait_until(lambda: not any(map(alive, pids)), what="the end of all runners")


@pytest.mark.slow
def test_a_drain_continues_after_many_bodies_end_their_process(manage):
    crashing = tasks.hard_exit.send_many({"key": str(number)} for number in range(8))
    good = tasks.add.send(1)

    process = manage("horsies_worker", "--drain", "--processes", "2", "--threads", "1")

    assert process.wait(60) == 0, process.output
    assert {handle.status() for handle in crashing} == {TaskStatus.FAILED}
    assert Task.objects.filter(error_code="WORKER_CRASHED").count() == len(crashing)
    assert good.value(0) == 2


@pytest.mark.nightly
@pytest.mark.slow
def test_runners_that_cannot_start_end_a_drain_with_exit_status_1(manage):
    process = manage("horsies_worker", "--drain", "--processes", "2", BREAK_RUNNERS="1", HORSIES_WORKER_NO_FORK="1")

    assert process.wait(180) == 1
    assert "runner died" in process.output


@pytest.mark.slow
def test_a_worker_backs_off_when_runners_cannot_start(manage):
    process = manage("horsies_worker", BREAK_RUNNERS="1", HORSIES_WORKER_NO_FORK="1")

    wait_until(lambda: process.output.count("runner died") >= 4, limit=180)
    process.signal(signal.SIGTERM)

    assert process.wait(20) == 0
    assert process.output.count("runner died") < 12
