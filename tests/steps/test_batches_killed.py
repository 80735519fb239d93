"""Loops over rows while runners and whole workers are killed: each row is counted once."""

import os
import random
import signal
import time
from contextlib import suppress
from itertools import pairwise

import pytest
from django.db import connection
from django.db.models import Count, Exists, OuterRef

from horsies_django import TASK_TERMINAL_STATES, TaskStatus
from horsies_django.models import Task, TaskAttempt, TaskStep, Worker
from tests.chaos.fleet import children
from tests.conftest import wait_until
from tests.jobs.models import Item
from tests.steps import batch_jobs as jobs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

#: The reaper finds the tasks of a worker that was killed as a whole after two seconds.
OFTEN = {"TEST_HEARTBEAT_MS": "500", "TEST_STALE_MS": "2000", "TEST_CHECK_MS": "500"}

#: Tasks that have recorded a turn under their claim: a crash is no failed attempt.
WITH_PROGRESS = Exists(TaskStep.objects.filter(task=OuterRef("pk"), claim=OuterRef("claim")))


def create(doublings):
    """Create 1,000 rows, and double them so many times; return the first key, and how many rows there are."""
    Item.objects.bulk_create([Item() for _ in range(1_000)])
    fields = [field for field in Item._meta.concrete_fields if not field.primary_key]
    columns = ", ".join(connection.ops.quote_name(field.column) for field in fields)
    with connection.cursor() as cursor:
        for _ in range(doublings):
            cursor.execute(f"INSERT INTO jobs_item ({columns}) SELECT {columns} FROM jobs_item")
    keys = Item.objects.order_by("pk").values_list("pk", flat=True)
    assert keys.last() - keys.first() + 1 == keys.count()
    return keys.first(), keys.count()


def send(body, first, count, tasks, **options):
    """Send tasks that share the rows."""
    starts = [first + count * number // tasks for number in range(tasks + 1)]
    body.send_many({"first": start, "last": end - 1, **options} for start, end in pairwise(starts))


def is_running():
    return Task.objects.exclude(status__in=TASK_TERMINAL_STATES).exists()


def counted():
    """Return how many rows have which count."""
    return dict(Item.objects.values_list("count").annotate(rows=Count("pk")).order_by())


def kill(*pids):
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_a_runner(tasks, killed):
    """Kill the runner of one of these tasks, unless it is killed already."""
    running = tasks.filter(status=TaskStatus.RUNNING).values_list("claimed_by_worker_id", flat=True)
    pids = set(Worker.objects.filter(pk__in=list(running)).values_list("pid", flat=True)) - killed
    for pid in random.sample(sorted(pids), min(1, len(pids))):
        kill(pid)
        killed.add(pid)


def kill_runners(tasks, times):
    """Kill so many runners of these tasks, each at a random moment."""
    killed = set()
    while len(killed) < times and is_running():
        time.sleep(random.uniform(0.1, 0.5))
        kill_a_runner(tasks, killed)
    assert len(killed) == times, "the tasks have ended before"


def test_each_row_is_counted_once_although_runners_are_killed(worker):
    first, count = create(3)
    send(jobs.counts_range, first, count, 2, size=50, pause=0.05)
    worker("--processes", "2", "--threads", "1", "--poll-interval", "0.1", runners=2)

    kill_runners(Task.objects.filter(WITH_PROGRESS), 5)

    wait_until(lambda: not is_running())
    assert counted() == {1: count}
    assert Task.objects.completed().count() == 2
    assert TaskAttempt.objects.filter(outcome="WORKER_FAILURE").count() == 5


def test_a_cursor_in_a_transaction_of_its_own_counts_rows_twice(worker):
    first, count = create(3)
    send(jobs.counts_range_by_hand, first, count, 2, size=50, pause=0.1)
    worker("--processes", "2", "--threads", "1", "--poll-interval", "0.1", runners=2)

    # One kill may miss the time between the two transactions, or hit a turn that was counted twice already.
    kill_runners(Task.objects.filter(checkpoint__isnull=False), 8)

    wait_until(lambda: not is_running())
    assert max(counted()) > 1


@pytest.mark.nightly
def test_a_million_rows_are_counted_once_a_round_for_two_minutes(manage):
    """Each round counts all rows; runners are killed all the time, and now and then a whole worker."""
    first, count = create(10)
    body = jobs.counts_range.with_options(max_attempts=1_000, backoff=1)  # a crash may hit one that has no progress yet
    flags = "--processes", "2", "--threads", "2", "--poll-interval", "0.2"
    workers = [manage("horsies_worker", *flags, **OFTEN) for _ in range(2)]
    ends_at, rounds, killed, killed_whole = time.monotonic() + 120, 0, set(), 0

    while time.monotonic() < ends_at:
        rounds += 1
        send(body, first, count, 8, size=500)
        while is_running():
            time.sleep(random.uniform(0.2, 1))
            if time.monotonic() < ends_at and random.random() < 0.8:
                kill_a_runner(Task.objects.all(), killed)
            elif time.monotonic() < ends_at:
                index = random.randrange(len(workers))
                kill(workers[index].process.pid, *children(workers[index].process.pid))
                workers[index] = manage("horsies_worker", *flags, **OFTEN)
                killed_whole += 1

    print(f"rounds={rounds} rows={count} runners killed={len(killed)} workers killed={killed_whole}")
    assert Task.objects.completed().count() == 8 * rounds
    assert counted() == {rounds: count}
    assert killed
    assert killed_whole
