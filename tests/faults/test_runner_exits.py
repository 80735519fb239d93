"""Runners that exit with any status, and runners that are replaced while a long body still runs."""

import pytest

from horsies_django import TaskStatus
from horsies_django.models import Task, TaskAttempt, Worker
from tests.conftest import wait_until
from tests.faults import jobs
from tests.faults.attempts import attempts_of
from tests.jobs.models import Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

COMPLETED = [("COMPLETED", "", False)]
CRASHED = [("WORKER_FAILURE", "WORKER_CRASHED", False)]


def pid_of(key):
    return wait_until(lambda: Entry.objects.filter(key=key).first(), limit=40, what=f"{key} has begun").pid


@pytest.mark.slow
def test_a_body_that_exits_its_process_has_crashed_whatever_the_status(worker):
    """The statuses include those with which runners once gave the reason of their exit."""
    process = worker("--threads", "1")

    for status in (0, 70, 71, 72, 73, 74):
        handle = jobs.exit_with.send(f"with {status}", status)
        assert handle.get(timeout=40).err.error_code == "WORKER_CRASHED"
        assert attempts_of(handle) == CRASHED
        wait_until(lambda status=status: f"status={status}" in process.output)

    assert jobs.write.send("after").get(timeout=40).is_ok()
    assert process.output.count("runner died") == 6
    assert "stopped on request" not in process.output


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("--max-tasks-per-child", "5"), ("--max-memory-mb", "16")], ids=["count", "memory"])
def test_a_replacement_runs_tasks_beside_the_runner_of_a_long_body(worker, tmp_path, flags):
    process = worker("--threads", "4", *flags)
    gate = tmp_path / "gate"
    long = jobs.hold.send("long", str(gate))
    old = pid_of("long")

    short = [jobs.write.send(f"short {number}") for number in range(30)]

    assert all(handle.get(timeout=90).is_ok() for handle in short)
    assert long.status() == TaskStatus.RUNNING
    assert Entry.objects.filter(key__startswith="short").exclude(pid=old).exists()
    gate.touch()
    assert long.value(timeout=40) == "long"
    assert not TaskAttempt.objects.exclude(outcome="COMPLETED").exists()
    wait_until(lambda: Worker.objects.count() == 1, what=lambda: f"one runner of {list(Worker.objects.values())}")
    assert "runner died" not in process.output


@pytest.mark.slow
def test_long_bodies_do_not_each_get_a_process_of_their_own(worker, tmp_path):
    worker("--threads", "3", "--max-tasks-per-child", "2")
    gate = tmp_path / "gate"
    for number in range(12):
        jobs.hold.send(f"long {number}", str(gate))
    wait_until(lambda: Entry.objects.count() == 4, limit=40, what="two runners have two bodies each")

    assert Worker.objects.count() == 2
    gate.touch()
    wait_until(lambda: Task.objects.completed().count() == 12, limit=90)
    assert Entry.objects.values("pid").distinct().count() == 6


@pytest.mark.slow
def test_a_worker_with_one_thread_runs_one_body_even_while_it_replaces_runners(worker, tmp_path):
    process = worker("--threads", "1", "--max-tasks-per-child", "1")
    gates = [tmp_path / str(number) for number in range(2)]
    handles = [jobs.hold.send(f"held {number}", str(gate)) for number, gate in enumerate(gates)]
    pid_of("held 0")

    gates[0].touch()
    assert handles[0].value(timeout=40) == "held 0"
    pid_of("held 1")

    assert "a fresh one starts beside it" not in process.output
    gates[1].touch()
    assert handles[1].value(timeout=40) == "held 1"
