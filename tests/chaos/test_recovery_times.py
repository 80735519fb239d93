"""How soon tasks run again after their runner or worker is killed."""

import os
import signal
import time

import pytest
from django.db.models import Count, Max

from horsies_django import TaskStatus
from horsies_django.models import Task, Worker
from tests.chaos import jobs
from tests.chaos.fleet import is_alive
from tests.conftest import wait_until
from tests.jobs.models import Entry

#: Tasks in flight.
COUNT = 16

#: Seconds that the policy of ``hold_again`` waits before a retry, and that a busy machine may add.
DELAY, SLACK = 1.0, 1.0

#: The most trials: a machine that pauses in one of them hardly pauses in each.
TRIES = 3


def assert_fast(limit, trial):
    """Repeat the trial, each time with new workers, until one takes less than ``limit`` seconds."""
    times = []
    while min(times, default=limit) >= limit and len(times) < TRIES:
        Task.objects.all().delete()
        Entry.objects.all().delete()
        times.append(trial(str(len(times))))
    assert min(times) < limit, times


def hold_in_all_slots(gate):
    handles = jobs.hold_again.send_many({"key": str(number), "gate": str(gate)} for number in range(COUNT))
    wait_until(lambda: Entry.objects.count() == COUNT, what="every body has begun")
    return handles


def have_begun_twice(keys):
    """Whether the body of each key has begun twice."""
    counts = Entry.objects.filter(key__in=keys).values("key").annotate(times=Count("pk"))
    return [entry["times"] for entry in counts] == [2] * len(keys)


def kill_and_wait(pid, keys):
    """Kill a process; return the seconds until the last of the keys began again, by the clock of the bodies."""
    os.kill(pid, signal.SIGKILL)
    killed_at = time.time()
    wait_until(lambda: have_begun_twice(keys), limit=30)
    return Entry.objects.aggregate(last=Max("at"))["last"] - killed_at


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2], ids=["the only runner", "one of two runners"])
def test_the_tasks_of_a_killed_runner_run_again_within_three_seconds(worker, tmp_path, processes):
    def trial(name):
        gate = tmp_path / name
        process = worker("--processes", str(processes), "--threads", str(COUNT // processes), runners=processes)
        handles = hold_in_all_slots(gate)
        victim = Entry.objects.values_list("pid", flat=True).first()
        keys = list(Entry.objects.filter(pid=victim).values_list("key", flat=True))

        took = kill_and_wait(victim, keys)

        gate.touch()
        wait_until(lambda: Task.objects.completed().count() == COUNT)
        attempts = [handle.info().attempt for handle in handles]
        assert sorted(attempts) == [1] * (COUNT - len(keys)) + [2] * len(keys)
        process.stop()
        return took

    assert_fast(3, trial)


@pytest.mark.sqlite
@pytest.mark.slow
def test_the_tasks_of_a_killed_worker_run_elsewhere_after_the_threshold(worker, tmp_path):
    threshold, check = 3.0, 0.5  # so long that no worker looks dead after a brief pause
    thresholds = {"TEST_STALE_MS": "3000", "TEST_HEARTBEAT_MS": "400", "TEST_CHECK_MS": "500"}

    def trial(name):
        gate = tmp_path / name
        doomed = worker("--processes", "2", "--threads", str(COUNT // 2), runners=2, **thresholds)
        runners = list(Worker.objects.values_list("pid", flat=True))
        hold_in_all_slots(gate)
        successor = worker("--threads", str(COUNT), **thresholds)

        took = kill_and_wait(doomed.process.pid, [str(number) for number in range(COUNT)])

        wait_until(lambda: not any(map(is_alive, runners)), what="no orphaned runner is alive, though its bodies wait")
        gate.touch()
        wait_until(lambda: Task.objects.completed().count() == COUNT)
        assert set(Task.objects.values_list("status", "attempt")) == {(TaskStatus.COMPLETED, 2)}
        successor.stop()
        return took

    assert_fast(threshold + check + DELAY + SLACK, trial)
