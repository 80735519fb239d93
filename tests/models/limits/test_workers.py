"""Limits by key, kept by real workers."""

import os
import signal
from collections import defaultdict

import pytest
from django.db import connection
from django.db.models.functions import Now

from horsies_django import reclaim
from horsies_django.core.status import TaskStatus
from horsies_django.models import Limit, Task, TaskAttempt
from tests.conftest import wait_until
from tests.jobs import limited, tasks
from tests.jobs.models import Entry

pytestmark = pytest.mark.django_db(transaction=True)


def spans():
    """When the bodies of each key ran."""
    found = defaultdict(list)
    for text in Entry.objects.values_list("key", flat=True):
        key, began, ended = text.split()
        found[key].append((float(began), float(ended)))
    return found


def most_at_once(ran):
    """The most bodies that ran at one time. One that ends leaves before one begins at that moment."""
    count = most = 0
    for _, change in sorted([(began, 1) for began, _ in ran] + [(ended, -1) for _, ended in ran]):
        count += change
        most = max(most, count)
    return most


def two_at_once(ran, key):
    """Whether at most two bodies ran at one time, and two had a place: they may be too short to meet."""
    places = TaskAttempt.objects.filter(task__limit_key=key).values_list("started_at", "finished_at")
    return most_at_once(ran) <= 2 <= most_at_once(places)


def all_done():
    return not Task.objects.exclude(status=TaskStatus.COMPLETED).exists()


def test_two_workers_run_at_most_two_of_each_key_at_once_and_all_of_them(worker):
    count = 25
    limited.two_of.send_many({"who": key, "seconds": 0.02} for _ in range(count) for key in "ab")
    for _ in range(2):
        worker("--threads", "8", "--shutdown-timeout", "1")

    wait_until(all_done, limit=60)

    ran = spans()
    assert {key: len(times) for key, times in ran.items()} == {"a": count, "b": count}
    assert all(two_at_once(times, f"tests.jobs.limited.two_of:{key}") for key, times in ran.items()), ran
    assert not Task.objects.blocked().exists()


@pytest.mark.slow
def test_a_full_key_with_ten_thousand_behind_it_slows_nobody(manage, tmp_path):
    count, deep = (2_000, 10_000) if connection.vendor == "postgresql" else (500, 2_000)

    def drained(name):
        tasks.noop.send_many({} for _ in range(count))
        tally = tmp_path / name
        process = manage("horsies_worker", "--drain", "--threads", "16", "-v0", COUNT_STATEMENTS=str(tally))
        assert process.wait(90) == 0, process.output
        return os.path.getsize(tally)

    alone = drained("alone")
    limited.two_of.send_many([{"who": "full"}] * deep)
    Task.objects.filter(blocked=False, limit_key__isnull=False).update(
        status=TaskStatus.RUNNING, claimed_by_worker_id="elsewhere", claim=1, attempt=1, started_at=Now()
    )
    most, beside = alone * 1.25 + 10, [drained("beside")]
    while beside[-1] > most and len(beside) < 3:  # how many ends come together is the machine's doing, too
        beside.append(drained(f"beside {len(beside)}"))

    assert Task.objects.completed().count() == (1 + len(beside)) * count
    assert Task.objects.blocked().count() == deep - 2
    print(f"{alone} statements alone, {beside} beside a full key")
    assert min(beside) <= most


@pytest.mark.slow
def test_a_worker_that_is_killed_leaves_no_place_taken(worker):
    limited.two_of.send_many({"who": key, "seconds": 0.05} for _ in range(20) for key in "ab")
    first = worker("--threads", "8")
    wait_until(lambda: Entry.objects.count() >= 4)

    os.killpg(first.process.pid, signal.SIGKILL)
    first.wait()
    wait_until(lambda: reclaim(0.5) >= 0 and not Task.objects.active().exists())  # while nobody lives who is slow
    worker("--threads", "8", "--shutdown-timeout", "1")
    wait_until(lambda: reclaim(10) >= 0 and not Task.objects.blocked().exists(), limit=60)

    wait_until(
        lambda: reclaim(10) >= 0 and not Task.objects.active().exists() and not Task.objects.pending().exists(),
        limit=60,
    )
    assert Task.objects.completed().count() >= 36  # what ran at the time has failed: its policy says so
    assert Task.objects.completed().count() + Task.objects.archived().count() == 40


@pytest.mark.slow
def test_starts_by_key_stay_within_their_rate_with_two_workers(worker):
    count = 24  # 20 a second, four at once
    for _ in range(2):
        worker("--threads", "4", "--shutdown-timeout", "1")
    limited.often.send_many({"who": key} for _ in range(count) for key in "ab")

    wait_until(all_done, limit=60)

    started = defaultdict(list)
    for key, at in TaskAttempt.objects.order_by("started_at").values_list("task__limit_key", "started_at"):
        started[key].append(at.timestamp())
    assert len(started) == 2
    for began in started.values():
        assert len(began) == count
        for first in range(count):
            for last in range(first + 1, count):
                # In any time t no more than what waited then, a burst at most, and what came in meanwhile.
                assert last - first + 1 <= 4 * 2 + 20 * (began[last] - began[first])
        assert began[-1] - began[0] >= (count - 4) / 20 * 0.5  # without a limit: at once; the first may begin late
    assert Limit.objects.filter(next_at__isnull=False).count() <= 2
