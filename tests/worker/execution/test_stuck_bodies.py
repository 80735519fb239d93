"""Bodies that no exception can interrupt: their runner is replaced, and only they use an attempt."""

import os

import pytest
from django.db import transaction

from horsies_django import TaskStatus
from horsies_django.models import Task, TaskAttempt, Worker
from tests.conftest import wait_until
from tests.jobs.models import Entry
from tests.jobs.tasks import ahold, write
from tests.worker.execution import jobs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.once]

GRACE = ("--timeout-grace", "0.5")


def entry(key):
    return wait_until(lambda: Entry.objects.filter(key=key).first(), what=key)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone(pid):
    return wait_until(lambda: not is_alive(pid), what=f"the end of process {pid}")


def outcomes(handle):
    attempts = TaskAttempt.objects.filter(task=handle.id).order_by("attempt")
    return list(attempts.values_list("attempt", "outcome", "error_code", "will_retry"))


COMPLETED = [(1, "COMPLETED", "", False)]
TIMED_OUT = [(1, "FAILED", "TASK_TIMEOUT", False)]


def test_a_stuck_body_ends_with_its_runner_once_its_siblings_have_finished(worker, tmp_path):
    process = worker(*GRACE, "--threads", "3")
    gate = tmp_path / "gate"
    sibling, asibling = jobs.hold.send("sibling", str(gate)), ahold.send("asibling", str(gate))
    old = entry("sibling").pid
    assert entry("asibling").pid == old
    with transaction.atomic():  # so that one claim takes both
        # Both begin before the runner takes up no more, which it does when one is over its timeout.
        stuck = jobs.stuck.with_options(timeout=1).send("stuck")
        also = jobs.stuck.with_options(timeout=1).send("also", "usleep")
    assert entry("stuck").pid == entry("also").pid == old

    wait_until(lambda: Worker.objects.count() == 2, what="a second runner")
    fresh = write.send("fresh")

    assert fresh.get(timeout=20).is_ok()
    assert entry("fresh").pid != old
    assert is_alive(old)
    assert {handle.status() for handle in (sibling, asibling, stuck, also)} == {TaskStatus.RUNNING}
    gate.touch()
    assert sibling.value(timeout=20) == "sibling"
    assert asibling.value(timeout=20) == "asibling"
    assert stuck.get(timeout=20).err.error_code == also.get(timeout=20).err.error_code == "TASK_TIMEOUT"
    gone(old)
    wait_until(lambda: Worker.objects.count() == 1)
    assert outcomes(sibling) == outcomes(asibling) == outcomes(fresh) == COMPLETED
    assert outcomes(stuck) == outcomes(also) == TIMED_OUT
    row = Task.objects.get(pk=stuck.id)
    assert (row.status, row.error_code, row.attempt) == (TaskStatus.FAILED, "TASK_TIMEOUT", 1)
    assert Entry.objects.filter(key="stuck").count() == 1
    assert write.send("after").get(timeout=20).is_ok()
    assert process.process.poll() is None


def test_a_coroutine_that_blocks_the_event_loop_is_stuck(worker, tmp_path):
    worker(*GRACE)
    sibling = jobs.hold.send("sibling", str(tmp_path / "gate"))
    old = entry("sibling").pid
    stuck = jobs.astuck.with_options(timeout=0.3).send("stuck")
    wait_until(lambda: Worker.objects.count() == 2, what="a second runner")

    fresh = jobs.aspin.send(0)

    assert fresh.value(timeout=20) == "in time"
    assert (sibling.status(), stuck.status()) == (TaskStatus.RUNNING, TaskStatus.RUNNING)
    (tmp_path / "gate").touch()
    assert sibling.value(timeout=20) == "sibling"
    assert stuck.get(timeout=20).err.error_code == "TASK_TIMEOUT"
    gone(old)
    assert outcomes(stuck) == TIMED_OUT
    assert outcomes(sibling) == COMPLETED


def test_a_stuck_body_is_retried_if_the_policy_lists_the_timeout(worker):
    worker(*GRACE)

    handle = jobs.stuck_once.send("twice")
    # The second attempt needs time on a busy machine.
    wait_until(lambda: Task.objects.filter(pk=handle.id, retry_count=1).update(timeout=30))

    assert handle.value(timeout=30) == 2
    assert outcomes(handle) == [(1, "FAILED", "TASK_TIMEOUT", True), (2, "COMPLETED", "", False)]
    assert Entry.objects.filter(key="twice").values("pid").distinct().count() == 2


def test_tasks_prefetched_by_a_stuck_runner_run_on_the_new_runner_with_all_attempts(worker):
    worker(*GRACE, "--threads", "1", "--prefetch", "5")
    stuck = jobs.stuck.with_options(timeout=0.3).send("stuck")
    old = entry("stuck").pid

    waiting = write.send_many({"key": f"waiting {number}"} for number in range(5))

    assert {handle.get(timeout=20).is_ok() for handle in waiting} == {True}
    assert old not in Entry.objects.filter(key__startswith="waiting").values_list("pid", flat=True)
    assert all(outcomes(handle) == COMPLETED for handle in waiting)
    assert stuck.get(timeout=20).err.error_code == "TASK_TIMEOUT"


def test_a_body_that_returns_after_the_timeout_grace_has_one_attempt(worker, tmp_path):
    process = worker(*GRACE)
    sibling = jobs.hold.send("sibling", str(tmp_path / "gate"))
    old = entry("sibling").pid
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    stuck = jobs.stuck_until.with_options(timeout=0.3).send("stuck", str(fifo))
    wait_until(lambda: "task can't be stopped" in process.output)

    other_end = os.open(fifo, os.O_RDWR)
    assert stuck.get(timeout=20).err.error_code == "TASK_TIMEOUT"
    os.close(other_end)

    assert sibling.status() == TaskStatus.RUNNING
    (tmp_path / "gate").touch()
    assert sibling.value(timeout=20) == "sibling"
    gone(old)
    assert outcomes(stuck) == TIMED_OUT
    assert outcomes(sibling) == COMPLETED


def test_a_worker_with_a_stuck_body_stops_on_sigterm(worker):
    process = worker("--timeout-grace", "60", "--shutdown-timeout", "0.3")
    stuck = jobs.stuck.with_options(timeout=0.3).send("stuck", "sleep", 1.5)
    entry("stuck")

    process.signal()

    assert process.wait(20) == 0
    assert stuck.get(0).err.error_code == "TASK_TIMEOUT"
    assert outcomes(stuck) == TIMED_OUT


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_drain_runs_the_other_tasks_despite_a_stuck_body(manage, processes):
    stuck = jobs.stuck.with_options(timeout=0.3).send("stuck", "sleep", 5)
    rest = [jobs.spin.send(0.01) for _ in range(5)]

    process = manage("horsies_worker", "--drain", "--threads", "1", "--processes", processes, *GRACE)

    assert process.wait(60) == 0, process.output
    assert stuck.get(0).err.error_code == "TASK_TIMEOUT"
    assert outcomes(stuck) == TIMED_OUT
    assert [handle.status() for handle in rest] == [TaskStatus.COMPLETED] * 5
