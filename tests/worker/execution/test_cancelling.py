"""Cancelling tasks in each state."""

import os
import time

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from horsies_django import TaskStatus
from horsies_django.models import Task, TaskAttempt, Worker
from tests.chaos.fleet import stopped
from tests.conftest import wait_until
from tests.jobs.models import Entry
from tests.jobs.tasks import write
from tests.reaper.age_heartbeats import make_heartbeats_old
from tests.worker.execution import jobs

pytestmark = pytest.mark.django_db(transaction=True)

#: Settings of a worker whose reaper runs often.
QUICK_REAPER = {"TEST_CHECK_MS": "300"}


def keys(prefix=""):
    return set(Entry.objects.filter(key__startswith=prefix).values_list("key", flat=True))


def entry(key, limit=20.0):
    return wait_until(lambda: Entry.objects.filter(key=key).first(), limit=limit, what=key)


def assert_cancelled(handle):
    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.error_code) == (TaskStatus.CANCELLED, "TASK_CANCELLED")
    assert row.cancelled_at is not None
    assert row.result["err"]["error_code"] == "TASK_CANCELLED"
    assert (row.completed_at, row.failed_at, row.attempts.count()) == (None, None, 0)


# Tasks that have not begun.


def test_a_pending_task_is_cancelled_and_never_runs(drain):
    handle = write.send("never")

    assert handle.cancel() is True

    drain()
    assert_cancelled(handle)
    assert handle.cancel() is False
    assert handle.get(0).err.error_code == "TASK_CANCELLED"
    assert not keys()


def test_scheduled_and_retrying_tasks_are_cancelled(drain):
    later, retried = write.schedule(60, "later"), jobs.raises_retry.send("retried", after=60)
    drain()

    assert later.cancel() is True
    assert retried.cancel() is True

    assert [later.status(), retried.status()] == [TaskStatus.CANCELLED] * 2
    assert not Task.objects.scheduled().exists()
    assert not Task.objects.retrying().exists()


def test_a_claimed_task_is_cancelled_and_never_runs(worker, tmp_path):
    worker("--threads", "1", "--prefetch", "2")
    running = jobs.hold.send("running", str(tmp_path / "gate"))
    entry("running")
    claimed, other = write.send("never"), write.send("other")
    wait_until(lambda: claimed.status() == other.status() == TaskStatus.CLAIMED)

    assert claimed.cancel() is True

    assert_cancelled(claimed)
    (tmp_path / "gate").touch()
    assert running.value(timeout=20) == "running"
    assert other.get(timeout=20).is_ok()
    assert_cancelled(claimed)
    assert "never" not in keys()


# Running tasks.


def test_a_running_task_is_cancelled_only_with_include_running(worker, tmp_path):
    worker()
    handle = jobs.hold.send("running", str(tmp_path / "gate"))
    entry("running")

    assert handle.cancel() is False
    assert Task.objects.filter(pk=handle.id).cancel() == 0

    assert handle.status() == TaskStatus.RUNNING
    (tmp_path / "gate").touch()
    assert handle.value(timeout=20) == "running"


BODIES = {
    "thread": (jobs.tidy, "TaskRevoked"),
    "coroutine": (jobs.atidy, "CancelledError"),
    "coroutine with a context": (jobs.acheck_and_return, "saw it"),
    "context, polled": (jobs.check_and_return, "saw it"),
    "context, at a checkpoint": (jobs.checkpoints, "TaskRevoked"),
    "context, at a save": (jobs.saves, "TaskRevoked"),
    "swallows the interrupt": (jobs.returns_when_interrupted, "ended"),
    "fails when interrupted": (jobs.fails_when_interrupted, "ended"),
}


@pytest.mark.slow
def test_a_running_task_is_cancelled_at_once_and_its_body_is_interrupted_soon(worker):
    asynchronous = [kind for kind in BODIES if kind.startswith("coroutine")]
    synchronous = BODIES.keys() - asynchronous
    process = worker("--threads", str(len(synchronous)), "--async-slots", str(len(asynchronous)))
    handles = {kind: body.send(kind) for kind, (body, _) in BODIES.items()}
    for kind in BODIES:
        entry(f"{kind} began")

    assert [handle.cancel(include_running=True) for handle in handles.values()] == [True] * len(BODIES)

    for handle in handles.values():
        assert_cancelled(handle)
    for kind, (_, outcome) in BODIES.items():
        entry(f"{kind} {outcome}")
    # All slots are free, so the bodies have ended.
    after = [jobs.spin.send(0.3) for _ in synchronous] + [jobs.aspin.send(0.3) for _ in asynchronous]
    assert {handle.value(timeout=20) for handle in after} == {"in time"}
    for handle in handles.values():
        assert_cancelled(handle)
    assert "Exception in thread" not in process.output
    assert set(TaskAttempt.objects.values_list("task", flat=True)) == {handle.id for handle in after}


@pytest.mark.slow
def test_a_body_that_never_checks_its_context_is_interrupted_after_two_seconds(worker):
    worker()
    handle = jobs.never_check.send("it")
    entry("it began")
    before = time.time()
    handle.cancel(include_running=True)

    assert entry("it TaskRevoked").at - before > 1.9

    assert_cancelled(handle)


def test_the_late_result_of_an_uninterruptible_cancelled_body_is_dropped(worker, tmp_path):
    worker("--threads", "1")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    handle = jobs.stuck_until.send("in C", str(fifo))
    entry("in C")

    assert handle.cancel(include_running=True)

    assert_cancelled(handle)
    other_end = os.open(fifo, os.O_RDWR)
    assert write.send("after").get(timeout=20).is_ok()  # there is one thread, so the other body has ended
    os.close(other_end)
    assert_cancelled(handle)


def test_only_a_retry_leaves_the_cancelled_state(worker, tmp_path):
    worker()
    handle = jobs.taken_away.send("it", str(tmp_path / "gate"))
    entry("it began")
    handle.cancel(include_running=True)
    entry("it 1 TaskRevoked")

    assert handle.cancel(include_running=True) is False
    rows = Task.objects.filter(pk=handle.id)
    with transaction.atomic():
        assert (rows.requeue(), rows.expire(), rows.make_due_claimable()) == (0, 0, 0)
    assert_cancelled(handle)

    assert handle.retry() is True
    wait_until(lambda: Entry.objects.filter(key="it began").count() == 2)
    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.error_code, row.result, row.cancelled_at) == (TaskStatus.RUNNING, None, None, None)
    (tmp_path / "gate").touch()
    assert handle.value(timeout=20) == "attempt 2"


def test_the_old_body_of_a_cancelled_and_retried_task_is_interrupted(worker, tmp_path):
    """The same runner claims the task again while it still runs the old body; it interrupts the old body."""
    worker("--threads", "2")
    handle = jobs.taken_away.send("it", str(tmp_path / "gate"))
    entry("it began")

    assert handle.cancel(include_running=True)
    assert handle.retry()
    wait_until(lambda: Entry.objects.filter(key="it began").count() == 2)

    entry("it 1 TaskRevoked")
    (tmp_path / "gate").touch()
    assert handle.value(timeout=20) == "attempt 2"


def test_an_ended_task_is_not_cancelled(drain):
    late = write.send("late")
    Task.objects.update(good_until="2020-01-01T00:00Z")
    ended = {"EXPIRED": late, "COMPLETED": write.send("done"), "FAILED": jobs.plain.send("os")}
    drain(no_reaper=False)

    assert not any(handle.cancel(include_running=True) for handle in ended.values())

    assert {state: handle.status() for state, handle in ended.items()} == {state: state for state in ended}


# In bulk, and by key.


def test_a_queryset_cancels_tasks_in_bulk_and_returns_their_number(worker, tmp_path):
    worker("--threads", "2")
    running = [jobs.hold.send(f"running {number}", str(tmp_path / "gate")) for number in range(2)]
    wait_until(lambda: len(keys("running")) == 2)
    pending, other = [write.send("never") for _ in range(20)], write.send("other")
    ours = Task.objects.exclude(pk=other.id)

    assert ours.cancel() == 20
    assert ours.cancel() == 0
    assert {handle.status() for handle in pending} == {TaskStatus.CANCELLED}
    assert {handle.status() for handle in running} == {TaskStatus.RUNNING}
    assert ours.cancel(include_running=True) == 2

    assert other.get(timeout=20).is_ok()  # both slots are free, although the gate never opened
    assert {handle.status() for handle in running} == {TaskStatus.CANCELLED}
    assert "never" not in keys()


def test_cancelling_by_unique_key_cancels_the_live_task_with_that_key(drain):
    first = write.with_options(unique_key="a").send("a")
    other = write.with_options(unique_key="b").send("b")

    assert write.cancel("a") is True
    assert write.cancel("a") is False
    assert write.cancel("no such key") is False

    again = write.with_options(unique_key="a").send("a again")
    drain()
    assert first.status() == TaskStatus.CANCELLED
    assert again.status() == other.status() == TaskStatus.COMPLETED
    assert write.cancel("b") is False
    assert keys() == {"a again", "b"}


def test_cancelling_by_unique_key_can_include_a_running_task(worker):
    worker()
    handle = jobs.tidy.with_options(unique_key="k").send("it")
    entry("it began")

    assert jobs.tidy.cancel("k") is False
    assert handle.status() == TaskStatus.RUNNING
    assert jobs.tidy.cancel("k", include_running=True) is True

    assert_cancelled(handle)
    entry("it TaskRevoked")


def test_the_async_cancel_methods_cancel_a_task(drain):
    one, two = write.send("one"), write.with_options(unique_key="k").send("two")

    assert async_to_sync(one.acancel)() is True
    assert async_to_sync(one.acancel)() is False
    assert async_to_sync(write.acancel)("k") is True

    drain()
    assert_cancelled(one)
    assert_cancelled(two)


# Races.


@pytest.mark.slow
@pytest.mark.parametrize("include_running", [False, True])
def test_no_task_runs_after_cancel_returned_true(worker, include_running):
    worker("--threads", "4", "--prefetch", "8")
    handles = write.send_many({"key": f"task {number}"} for number in range(150))
    reported = {}

    for number, handle in enumerate(handles):
        reported[number] = handle.cancel(include_running=include_running)

    wait_until(lambda: not Task.objects.exclude(status__in=["COMPLETED", "CANCELLED"]).exists(), limit=60)
    print(f"{sum(reported.values())} of {len(handles)} cancelled")
    for number, was_cancelled in reported.items():
        row = Task.objects.get(pk=handles[number].id)
        assert row.status == (TaskStatus.CANCELLED if was_cancelled else TaskStatus.COMPLETED)
        began = Entry.objects.filter(key=f"task {number}").count()
        # A task that was running when it was cancelled has a start, and may have left its entry.
        assert began <= 1 if row.started_at and include_running else began == (0 if was_cancelled else 1)
        assert row.attempts.count() == (0 if was_cancelled else 1)


@pytest.mark.slow
def test_bodies_whose_tasks_the_reaper_recovered_are_interrupted(worker, tmp_path):
    """One task fails, the other is retried; the same runner claims the retry when it is resumed."""
    worker("--threads", "3", **QUICK_REAPER)
    lost, retried = jobs.tidy.send("lost"), jobs.taken_away.send("retried", str(tmp_path / "gate"))
    pid = entry("lost began").pid
    assert entry("retried began").pid == pid

    with stopped(pid):
        make_heartbeats_old()
        assert lost.get(timeout=20).err.error_code == "WORKER_CRASHED"
        wait_until(lambda: retried.status() == TaskStatus.PENDING)

    entry("lost TaskRevoked")
    entry("lost cleaned up")
    wait_until(lambda: Entry.objects.filter(key="retried began").count() == 2)
    entry("retried 1 TaskRevoked")
    (tmp_path / "gate").touch()
    assert retried.value(timeout=20) == "attempt 2"
    assert lost.status() == TaskStatus.FAILED
    attempts = TaskAttempt.objects.order_by("attempt")
    assert list(attempts.filter(task=lost.id).values_list("outcome", flat=True)) == ["WORKER_FAILURE"]
    assert list(attempts.filter(task=retried.id).values_list("outcome", flat=True)) == ["WORKER_FAILURE", "COMPLETED"]
    assert Worker.objects.get().pid == pid
