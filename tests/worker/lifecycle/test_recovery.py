"""Recovery of tasks and processes after signals and sudden ends."""

import ctypes
import os
import signal
import time
from pathlib import Path

import pytest

from horsies_django import TaskStatus, Workflow, WorkflowStatus
from horsies_django.core.status import TASK_LIVE_STATES
from horsies_django.models import Task, Worker, WorkflowTask
from tests.chaos.fleet import is_alive, state, stopped
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.reaper.age_heartbeats import make_heartbeats_old
from tests.worker.lifecycle import jobs
from tests.workflows.runs import reap

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

#: Settings of a worker whose reaper runs often.
QUICK = {"TEST_CHECK_MS": "200"}


def pid_of(key, count=1):
    """Return the process of the body that left ``key`` for the ``count``-th time."""
    wait_until(lambda: Entry.objects.filter(key=key).count() >= count, what=f"the begin of {key}")
    return Entry.objects.filter(key=key).order_by("pk")[count - 1].pid


def attempts_of(handle):
    rows = Task.objects.get(pk=handle.id).attempts.order_by("attempt")
    return [(row.outcome, row.error_code, row.will_retry) for row in rows]


CRASHED, CRASHED_FOR_GOOD = ("WORKER_FAILURE", "WORKER_CRASHED", True), ("WORKER_FAILURE", "WORKER_CRASHED", False)
DONE = ("COMPLETED", "", False)


@pytest.mark.slow
def test_a_second_worker_recovers_the_tasks_of_a_killed_worker(worker, gate):
    """With a policy the task runs again, without one it fails; a task that was only claimed is released."""
    doomed = worker("--threads", "2", "--prefetch", "1", **QUICK)
    again, once = jobs.hold_again.send("again", str(gate)), tasks.hold.send("once", str(gate))
    runner = pid_of("again")
    pid_of("once")
    claimed = tasks.write.send("claimed")
    wait_until(lambda: claimed.status() == TaskStatus.CLAIMED)

    os.killpg(doomed.process.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(runner))
    make_heartbeats_old()
    worker("--threads", "2", **QUICK)
    gate.touch()

    wait_until(lambda: not Task.objects.filter(status__in=TASK_LIVE_STATES).exists())
    assert again.value(0) == pid_of("again", 2) != runner
    assert attempts_of(again) == [CRASHED, DONE]
    assert once.get(0).err.error_code == "WORKER_CRASHED"
    assert attempts_of(once) == [CRASHED_FOR_GOOD]
    assert attempts_of(claimed) == [DONE]
    assert (claimed.info().attempt, claimed.info().retry_count) == (1, 0)
    assert Entry.objects.filter(key__in=["once", "claimed"]).count() == 2


def test_the_body_finishes_after_sigint_to_the_process_group(manage, gate):
    process = manage("horsies_worker", "--processes", "2")
    wait_until(lambda: Worker.objects.count() == 2)
    handle = tasks.hold.send("held", str(gate))
    runner = pid_of("held")

    os.killpg(process.process.pid, signal.SIGINT)
    wait_until(lambda: Worker.objects.count() == 1, what="the end of the idle runner")
    assert handle.status() == TaskStatus.RUNNING
    gate.touch()

    assert process.wait(20) == 0
    assert handle.value(0) == "held"
    assert attempts_of(handle) == [DONE]
    assert not is_alive(runner)
    assert not Worker.objects.exists()


def test_a_runner_that_gets_sigterm_finishes_its_body_and_is_replaced(worker, gate):
    process = worker("--shutdown-timeout", "20")
    handle = tasks.hold.send("held", str(gate))
    runner = pid_of("held")

    os.kill(runner, signal.SIGTERM)
    wait_until(lambda: "worker stopping" in process.output)
    waits = tasks.write.send("waits")
    gate.touch()

    assert handle.value(timeout=20) == "held"
    assert waits.get(timeout=20).is_ok()
    assert pid_of("waits") != runner
    assert attempts_of(handle) == attempts_of(waits) == [DONE]
    assert process.process.poll() is None


@pytest.mark.slow
def test_a_body_that_outlasts_the_shutdown_timeout_is_killed_and_retried_by_its_policy(worker, gate):
    process = worker("--threads", "1", "--prefetch", "1", "--shutdown-timeout", "1")
    again = jobs.hold_again.send("again", str(gate))
    runner = pid_of("again")
    claimed = tasks.write.send("claimed")
    wait_until(lambda: claimed.status() == TaskStatus.CLAIMED)

    began = time.monotonic()
    process.signal(signal.SIGTERM)

    assert process.wait(20) == 0
    assert time.monotonic() - began >= 1
    assert not is_alive(runner)
    assert (again.status(), claimed.status()) == (TaskStatus.PENDING, TaskStatus.PENDING)
    assert attempts_of(again) == [CRASHED]
    assert attempts_of(claimed) == []


def test_a_second_sigterm_stops_the_worker_at_once_and_releases_its_tasks(manage, gate):
    process = manage("horsies_worker", "--threads", "1", "--prefetch", "1", "--shutdown-timeout", "600")
    again = jobs.hold_again.send("again", str(gate))
    runner = pid_of("again")
    claimed = tasks.write.send("claimed")
    wait_until(lambda: claimed.status() == TaskStatus.CLAIMED)

    process.signal(signal.SIGTERM)
    wait_until(lambda: claimed.status() == TaskStatus.PENDING, what="the release of the task that has not begun")
    assert again.status() == TaskStatus.RUNNING
    process.signal(signal.SIGTERM)

    assert process.wait(20) == 0
    assert not is_alive(runner)
    assert (again.status(), claimed.status()) == (TaskStatus.PENDING, TaskStatus.PENDING)
    assert attempts_of(again) == [CRASHED]
    assert attempts_of(claimed) == []
    assert not Worker.objects.exists()


@pytest.mark.slow
def test_a_node_whose_worker_is_killed_fails_and_its_workflow_ends(worker, manage, tmp_path):
    doomed = worker("--no-reaper", **QUICK)
    held = tasks.hold.node(node_id="held")(key="held", gate=str(tmp_path / "gate"))
    handle = Workflow("killed", [held, tasks.write.node(node_id="after", waits_for=[held])(key="after")]).start()
    runner = pid_of("held")

    os.killpg(doomed.process.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(runner))
    make_heartbeats_old()
    assert manage("horsies_reaper", "--once").wait(60) == 0

    codes = {node.node_id: node.result["err"]["error_code"] for node in WorkflowTask.objects.all()}
    assert codes == {"held": "WORKER_CRASHED", "after": "UPSTREAM_SKIPPED"}
    assert handle.status() == WorkflowStatus.FAILED
    assert not Task.objects.filter(status__in=TASK_LIVE_STATES).exists()


def test_sigterm_delivered_to_another_supervisor_thread_stops_the_worker(worker):
    """The kernel may deliver it to any thread, as after a SIGCONT; Python handles it once the main thread wakes."""
    process = worker()
    main = process.process.pid

    def is_sent():
        other = next(int(entry.name) for entry in Path(f"/proc/{main}/task").iterdir() if int(entry.name) != main)
        return ctypes.CDLL(None).tgkill(main, other, signal.SIGTERM) == 0  # a thread may have ended meanwhile

    wait_until(is_sent)

    assert process.wait(20) == 0


@pytest.mark.slow
def test_a_worker_resumed_after_a_long_pause_does_not_overwrite_the_newer_run(worker, tmp_path):
    """The pause exceeds the stale threshold, so the task runs on another worker and the late result is refused."""
    gates = [tmp_path / "first", tmp_path / "second"]
    paused = worker("--shutdown-timeout", "5", **QUICK)
    handle = jobs.hold_again.send("again", str(gates[0]))
    runner = pid_of("again")
    with stopped(paused.process.pid, runner):
        Task.objects.filter(pk=handle.id).update(args=["again", str(gates[1])])
        make_heartbeats_old()
        worker(**QUICK)
        second = pid_of("again", 2)
        gates[0].touch()
    paused.signal(signal.SIGTERM)

    assert paused.wait(20) == 0, "the worker tried to store the result of its body"
    assert handle.status() == TaskStatus.RUNNING
    gates[1].touch()

    assert handle.value(timeout=20) == second != runner
    assert attempts_of(handle) == [CRASHED, DONE]


@pytest.mark.slow
def test_a_worker_logs_no_completion_for_a_result_that_the_row_refuses(manage):
    handle = jobs.stop_the_process.send("stopped")
    process = manage("horsies_worker", "--drain", "--no-reaper")
    pid = pid_of("stopped")
    wait_until(lambda: state(pid) == "T", what="the process is stopped")
    make_heartbeats_old()
    reap()
    assert Task.objects.get(pk=handle.id).error_code == "WORKER_CRASHED"
    began = time.monotonic()
    wait_until(lambda: time.monotonic() > began + 1)  # a shorter stop is not checked

    os.kill(pid, signal.SIGCONT)

    assert process.wait(20) == 0
    assert f"task revoked id={handle.id}" in process.output
    assert "task completed" not in process.output
    assert attempts_of(handle) == [CRASHED_FOR_GOOD]
