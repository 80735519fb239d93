"""Short tasks are started before a slot is free, long ones are not; a task that has not begun uses no attempt."""

import os
import signal
from statistics import median

import pytest
from django.db import transaction
from django.db.models import F, IntegerField
from django.db.models.functions import Cast

from horsies_django import TaskStatus
from horsies_django.models import Task, TaskAttempt
from tests.conftest import wait_until
from tests.faults.jobs import ablock
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

#: Enough no-ops for a runner to measure that they are short, with some left ahead of the tasks that follow.
MANY = 600


def statements(tally):
    return os.path.getsize(tally) if tally.exists() else 0


def running():
    return Task.objects.filter(status=TaskStatus.RUNNING)


@pytest.mark.slow
def test_one_thread_claims_many_short_tasks_at_once(manage, tmp_path):
    tasks.noop.send_many({} for _ in range(MANY))
    tally = tmp_path / "statements"

    process = manage("horsies_worker", "--drain", "--threads", "1", "-v0", COUNT_STATEMENTS=str(tally))

    assert process.wait(60) == 0, process.output
    assert TaskAttempt.objects.filter(outcome="COMPLETED").count() == MANY
    assert statements(tally) / MANY < 1


@pytest.mark.slow
def test_start_ahead_0_starts_at_most_one_task_for_each_slot(manage, tmp_path):
    tasks.noop.send_many({} for _ in range(50))
    tally = tmp_path / "statements"

    process = manage(
        "horsies_worker", "--drain", "--threads", "1", "--start-ahead", "0", "-v0", COUNT_STATEMENTS=str(tally)
    )

    assert process.wait(60) == 0, process.output
    assert statements(tally) >= 50


@pytest.mark.slow
def test_tasks_started_ahead_behind_a_long_task_are_released(worker, gate):
    tasks.noop.send_many({} for _ in range(MANY))
    handles = [tasks.hold.send(str(number), str(gate)) for number in range(30)]
    worker("--threads", "2")

    wait_until(lambda: Entry.objects.count() == 2)

    waiting = Task.objects.filter(pk__in=[handle.id for handle in handles], status=TaskStatus.PENDING)
    released = waiting.filter(attempt=0, claimed_by_worker_id=None, started_at=None)
    wait_until(lambda: released.count() == 28)
    gate.touch()
    wait_until(lambda: Task.objects.completed().count() == MANY + 30)
    assert not TaskAttempt.objects.exclude(attempt=1, outcome="COMPLETED").exists()


@pytest.mark.slow
def test_a_stop_releases_tasks_that_have_not_begun(worker, gate):
    tasks.noop.send_many({} for _ in range(MANY))
    held = tasks.hold.send("in the way", str(gate))
    tasks.noop.send_many({} for _ in range(MANY))
    process = worker("--threads", "1")
    wait_until(lambda: Entry.objects.exists())

    process.signal(signal.SIGTERM)
    wait_until(lambda: running().count() == 1)
    gate.touch()

    assert process.wait(20) == 0
    assert not running().exists()
    assert not Task.objects.pending().exclude(attempt=0, claimed_by_worker_id=None).exists()
    assert held.status() == TaskStatus.COMPLETED
    # If the thread was slow, some of the earlier tasks may also have been released.
    assert TaskAttempt.objects.count() == Task.objects.completed().count()


@pytest.mark.slow
def test_a_stop_without_a_supervisor_releases_coroutines_behind_a_blocked_loop(manage, gate, tmp_path):
    with transaction.atomic():
        blocker = ablock.with_options(priority=1).send(str(tmp_path / "begun"), str(gate))
        behind = [tasks.awrite.send("behind").id for _ in range(20)]
    process = manage("horsies_worker", "--drain", "--no-reaper", "--shutdown-timeout", "30", "--async-slots", "30")
    wait_until(lambda: (tmp_path / "begun").exists() and running().count() == 21)

    process.signal(signal.SIGTERM)
    waiting = Task.objects.pending().filter(pk__in=behind, attempt=0, claimed_by_worker_id=None, started_at=None)
    wait_until(lambda: waiting.count() == 20, limit=25)
    gate.touch()

    assert process.wait(20) == 0
    assert blocker.status() == TaskStatus.COMPLETED
    assert not Entry.objects.exists()


@pytest.mark.slow
def test_coroutines_behind_a_blocked_loop_run_on_other_workers(worker, gate, tmp_path):
    with transaction.atomic():  # so that one claim takes them all
        blocker = ablock.with_options(priority=1).send(str(tmp_path / "begun"), str(gate))
        behind = [tasks.awrite.send("behind") for _ in range(5)]
    worker()
    wait_until(lambda: (tmp_path / "begun").exists() and Task.objects.filter(claim__gte=1).count() == 6)
    other = worker()

    assert [handle.value(timeout=20) for handle in behind] == ["behind"] * 5
    assert tasks.awrite.send("later").value(timeout=20) == "later"
    other.stop()
    last = tasks.awrite.send("last")
    assert blocker.status() == TaskStatus.RUNNING
    assert not TaskAttempt.objects.exclude(attempt=1, outcome="COMPLETED").exists()
    gate.touch()

    assert (blocker.get(20).is_ok(), last.value(timeout=20)) == (True, "last")


@pytest.mark.slow
def test_tasks_of_a_dead_runner_that_had_not_begun_use_no_attempt(worker):
    tasks.noop.send_many({} for _ in range(MANY))
    killer = tasks.hard_exit.send("killer")
    behind = [handle.id for handle in tasks.noop.send_many({} for _ in range(MANY))]

    worker("--threads", "1")

    wait_until(lambda: Task.objects.completed().filter(pk__in=behind).count() == MANY, limit=40)
    assert killer.get(20).err.error_code == "WORKER_CRASHED"
    assert not TaskAttempt.objects.filter(task__in=behind).exclude(attempt=1, outcome="COMPLETED").exists()


@pytest.mark.slow
def test_started_at_is_only_slightly_before_the_body_begins(worker):
    """The database and the body use the clock of the same machine."""
    worker("--threads", "2")
    some = 9
    for number in range(some):
        tasks.noop.send_many({} for _ in range(2 * MANY // some))
        tasks.write.send(str(number))
    tasks.noop.send_many({} for _ in range(MANY))
    wait_until(lambda: not Task.objects.exclude(status=TaskStatus.COMPLETED).exists())

    starts = TaskAttempt.objects.filter(task__task_name="tests.jobs.tasks.write").order_by("task_id")
    begins = Entry.objects.annotate(number=Cast("key", IntegerField())).order_by("number")
    early = [entry.at - attempt.started_at.timestamp() for attempt, entry in zip(starts, begins, strict=True)]
    assert len(early) == some
    assert median(early) < 0.5  # a pause of the machine delays the tasks of one claim only
    assert not TaskAttempt.objects.filter(finished_at__lt=F("started_at")).exists()
