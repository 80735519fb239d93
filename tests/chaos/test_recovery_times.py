"""How soon tasks run again after what ran them was killed."""

import os
import signal
import time

import pytest
from django.db.models import Count

from horsies_django import TaskStatus
from horsies_django.models import Task, Worker
from tests.chaos import jobs
from tests.chaos.fleet import is_alive
from tests.conftest import wait_until
from tests.jobs.models import Entry

#: Tasks in flight.
COUNT = 16

#: Seconds that the policy of ``work_again`` waits before a retry, and what a busy machine may add to everything.
DELAY, SLACK = 1.0, 1.0


def send_and_wait_until_all_run(seconds):
    handles = jobs.work_again.send_many({"key": str(number), "seconds": seconds} for number in range(COUNT))
    wait_until(lambda: Entry.objects.count() == COUNT, what="every body has begun")
    return handles


def begun_again(keys):
    """Whether each of the keys has been begun twice."""
    counts = Entry.objects.filter(key__in=keys).values("key").annotate(times=Count("pk"))
    return [entry["times"] for entry in counts] == [2] * len(keys)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2], ids=["the only runner", "one of two runners"])
def test_3_the_tasks_of_a_killed_runner_run_again_within_three_seconds(worker, processes):
    worker("--processes", str(processes), "--threads", str(COUNT // processes), runners=processes)
    handles = send_and_wait_until_all_run(1.0)
    victim = Entry.objects.values_list("pid", flat=True).first()
    keys = list(Entry.objects.filter(pid=victim).values_list("key", flat=True))

    os.kill(victim, signal.SIGKILL)
    killed_at = time.monotonic()

    wait_until(lambda: begun_again(keys), limit=10)
    assert time.monotonic() - killed_at < 3
    wait_until(lambda: Task.objects.completed().count() == COUNT)
    again = {str(handle.id): handle.info().attempt for handle in handles}
    assert sorted(again.values()) == [1] * (COUNT - len(keys)) + [2] * len(keys)


@pytest.mark.slow
def test_3_6_the_tasks_of_a_killed_worker_run_elsewhere_once_the_threshold_has_passed(worker):
    threshold, check = 1.0, 0.5
    thresholds = {"TEST_STALE_MS": "1000", "TEST_BEAT_MS": "400", "TEST_CHECK_MS": "500"}
    doomed = worker("--processes", "2", "--threads", str(COUNT // 2), runners=2, **thresholds)
    send_and_wait_until_all_run(4.0)
    runners = list(Worker.objects.values_list("pid", flat=True))
    worker("--threads", str(COUNT), **thresholds)

    doomed.signal(signal.SIGKILL)
    killed_at = time.monotonic()

    wait_until(lambda: begun_again([str(number) for number in range(COUNT)]), limit=15)
    assert time.monotonic() - killed_at < threshold + check + DELAY + SLACK
    assert not any(map(is_alive, runners)), "no orphan runs on"
    wait_until(lambda: Task.objects.completed().count() == COUNT)
    assert set(Task.objects.values_list("status", "attempt")) == {(TaskStatus.COMPLETED, 2)}
