"""Limit keys with real workers."""

import os
import signal
from collections import defaultdict

import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now

from horsies_django import reclaim
from horsies_django.core.status import TaskStatus
from horsies_django.models import Limit, Task, TaskAttempt
from tests.conftest import wait_until
from tests.jobs import limited, tasks
from tests.jobs.models import Entry

pytestmark = pytest.mark.django_db(transaction=True)


def spans():
    """Return the start and end of each body, by limit key."""
    found = defaultdict(list)
    for text in Entry.objects.values_list("key", flat=True):
        key, began, ended = text.split()
        found[key].append((float(began), float(ended)))
    return found


def most_at_once(runs):
    """Return the most bodies that ran at once; one that ends when another begins does not overlap it."""
    count = most = 0
    for _, change in sorted([(began, 1) for began, _ in runs] + [(ended, -1) for _, ended in runs]):
        count += change
        most = max(most, count)
    return most


def at_most_two_ran_at_once(runs, key):
    """Return whether at most two bodies ran at once and two held a slot: short bodies may not overlap."""
    held = TaskAttempt.objects.filter(task__limit_key=key).values_list("started_at", "finished_at")
    return most_at_once(runs) <= 2 <= most_at_once(held)


def all_done():
    return not Task.objects.exclude(status=TaskStatus.COMPLETED).exists()


@pytest.mark.slow
@pytest.mark.sqlite
def test_two_workers_run_all_tasks_and_at_most_two_of_each_limit_key_at_once(worker):
    count = 25
    limited.two_per_user.send_many({"user": key, "seconds": 0.02} for _ in range(count) for key in "ab")
    for _ in range(2):
        worker("--threads", "8", "--shutdown-timeout", "1")

    wait_until(all_done, limit=60)

    runs = spans()
    assert {key: len(times) for key, times in runs.items()} == {"a": count, "b": count}
    assert all(
        at_most_two_ran_at_once(times, f"tests.jobs.limited.two_per_user:{key}") for key, times in runs.items()
    ), runs
    assert not Task.objects.blocked().exists()


@pytest.mark.slow
def test_ten_thousand_blocked_tasks_do_not_slow_other_tasks(manage, tmp_path):
    count, blocked = (2_000, 10_000) if connection.vendor == "postgresql" else (500, 2_000)

    def drained(name):
        tasks.noop.send_many({} for _ in range(count))
        tally = tmp_path / name
        process = manage("horsies_worker", "--drain", "--threads", "16", "-v0", COUNT_STATEMENTS=str(tally))
        assert process.wait(90) == 0, process.output
        return os.path.getsize(tally)

    alone = drained("alone")
    limited.two_per_user.send_many([{"user": "full"}] * blocked)
    Task.objects.filter(blocked=False, limit_key__isnull=False).update(
        status=TaskStatus.RUNNING, claimed_by_worker_id="elsewhere", claim=1, attempt=1, started_at=Now()
    )
    most, beside = alone * 1.25 + 10, [drained("beside")]
    while beside[-1] > most and len(beside) < 3:  # the number of ends per commit also depends on the machine
        beside.append(drained(f"beside {len(beside)}"))

    assert Task.objects.completed().count() == (1 + len(beside)) * count
    assert Task.objects.blocked().count() == blocked - 2
    print(f"{alone} statements alone, {beside} beside a full key")
    assert min(beside) <= most


@pytest.mark.slow
def test_a_killed_worker_frees_its_concurrency_slots(worker):
    limited.two_per_user.send_many({"user": key, "seconds": 0.05} for _ in range(20) for key in "ab")
    first = worker("--threads", "8")
    wait_until(lambda: Entry.objects.count() >= 4)

    os.killpg(first.process.pid, signal.SIGKILL)
    first.wait()
    wait_until(lambda: reclaim(0.5) >= 0 and not Task.objects.active().exists())  # no live worker could be slow
    worker("--threads", "8", "--shutdown-timeout", "1")
    wait_until(lambda: not Task.objects.exclude(status__in=[TaskStatus.COMPLETED, TaskStatus.FAILED]).exists())

    assert Task.objects.completed().count() >= 36  # tasks that ran at the time fail: they have no policy
    assert Task.objects.completed().count() + Task.objects.archived().count() == 40


@pytest.mark.slow
def test_two_workers_keep_to_the_rate_limit_of_each_key(worker):
    count = 24  # 20 a second, four at once
    for _ in range(2):
        worker("--threads", "4", "--shutdown-timeout", "1")
    limited.rate_limited.send_many({"user": key} for _ in range(count) for key in "ab")

    wait_until(all_done, limit=60)

    assert not TaskAttempt.objects.filter(started_at__lt=F("due_at")).exists()
    released = defaultdict(list)  # a worker that stalls may start several of them at once
    for key, at in TaskAttempt.objects.order_by("due_at").values_list("task__limit_key", "due_at"):
        released[key].append(at.timestamp())
    assert len(released) == 2
    for times in released.values():
        assert len(times) == count
        for first in range(count):
            for last in range(first + 1, count):
                # In any period at most the burst and the tokens that were added meanwhile, with a margin.
                assert last - first + 1 <= 4 * 2 + 20 * (times[last] - times[first])
        # Without a limit all are due at once.
        assert times[-1] - times[0] >= (count - 4) / 20 * 0.5
    assert Limit.objects.filter(next_at__isnull=False).count() <= 2
