"""Limits of queues, kept by real workers: at most so many at once, at most so many begun a time."""

import os
import signal
from itertools import pairwise

import pytest
from django.db import connection, connections, transaction

from horsies_django.models import Queue, Task, TaskAttempt
from horsies_django.models.claims import WorkerInfo
from horsies_django.worker.config import WorkerConfig
from horsies_django.worker.executors import InlineExecutor
from horsies_django.worker.inbox import Inbox
from horsies_django.worker.slot_pool import SlotPool
from horsies_django.worker.start_ahead import StartAheadTuner
from horsies_django.worker.store import WorkerStore
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


#: Seconds within which a worker surely obeys: one, and some in which the machine stands still.
SOON = 5


def most_at_once(spans):
    """How many of these spans of time there were at one moment at most."""
    moves = sorted(move for begin, end in spans for move in ((begin, 1), (end, -1)))
    most = now = 0
    for _, step in moves:
        now += step
        most = max(most, now)
    return most


def ran(queue="default"):
    """When each attempt began and ended, by the database's clock."""
    return list(TaskAttempt.objects.filter(task__queue_name=queue).values_list("started_at", "finished_at"))


def running(queue="default"):
    return Task.objects.active().filter(queue_name=queue).count()


def test_of_a_queue_with_a_limit_no_more_run_at_once_in_all_workers_together(worker, tmp_path):
    gate = tmp_path / "gate"
    Queue.objects.named("default").set(max_concurrency=3)
    tasks.hold.send_many({"key": "held", "gate": str(gate)} for _ in range(6))
    tasks.nap.send_many({"seconds": 0.02} for _ in range(40))

    worker("--processes", "2", "--threads", "2", "--start-ahead", "0", "-v0", runners=2)
    wait_until(lambda: Entry.objects.count() == 3)
    tasks.noop.using(queue_name="free").send().get(timeout=20)
    assert running() == Entry.objects.count() == 3
    assert len(set(Entry.objects.values_list("pid", flat=True))) == 2
    gate.touch()

    wait_until(lambda: Task.objects.completed().count() == 47)
    assert most_at_once(ran()) <= 3


def test_who_keeps_the_row_of_a_queue_locked_holds_up_that_queue_alone(worker):
    if connection.vendor == "sqlite":
        return  # no row locks there
    row = Queue.objects.named("limited")
    row.set(max_concurrency=3)
    other = connections["default"].copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SELECT 1 FROM horsies_queues WHERE name = 'limited' FOR UPDATE")
        limited = tasks.noop.using(queue_name="limited").send()
        worker("--threads", "2", "-v0")

        for _ in range(20):
            assert tasks.noop.using(queue_name="free").send().get(timeout=20).is_ok()
        assert limited.status() == "PENDING"
    finally:
        other.rollback()
        other.close()

    assert limited.get(timeout=20).is_ok()


def test_a_worker_that_is_killed_leaves_no_place_taken(manage, worker, tmp_path):
    gate = tmp_path / "gate"
    Queue.objects.named("default").set(max_concurrency=2)
    tasks.hold.with_options(retry_policy=None).send_many({"key": "held", "gate": str(gate)} for _ in range(6))
    first = worker("--threads", "4", "-v0")
    wait_until(lambda: Entry.objects.count() == 2)

    (pid,) = set(Entry.objects.values_list("pid", flat=True))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: Entry.objects.count() == 4, what="the other two places are taken again")
    assert running() == 2
    gate.touch()

    wait_until(lambda: not Task.objects.pending().exists() and not running())
    assert Task.objects.completed().count() == 4
    assert first.process.poll() is None


def test_a_limit_of_0_stops_a_queue_and_a_higher_one_lets_it_go_on_within_a_second(worker):
    Queue.objects.named("default").set(max_concurrency=0)
    tasks.noop.send_many({} for _ in range(5))
    tasks.noop.using(queue_name="other").send()
    worker("-v0", "--poll-interval", "0.5")
    wait_until(lambda: Task.objects.completed().count() == 1)
    assert running() == 0

    Queue.objects.named("default").set(max_concurrency=2)

    wait_until(lambda: Task.objects.completed().count() == 6, SOON)


def test_pausing_and_resuming_hold_within_a_second(worker):
    worker("-v0", "--poll-interval", "0.5")
    Queue.objects.named("default").pause()
    tasks.noop.send()
    tasks.noop.using(queue_name="other").send().get(timeout=20)
    assert Task.objects.pending().count() == 1

    Queue.objects.named("default").resume()

    wait_until(lambda: not Task.objects.pending().exists(), SOON)


def test_at_a_rate_limit_tasks_begin_evenly_whatever_the_number_of_workers(worker):
    Queue.objects.named("default").set(rate_limit="20/s, 5")
    tasks.noop.send_many({} for _ in range(65))

    worker("--processes", "2", "--threads", "8", "-v0", runners=2)
    wait_until(lambda: Task.objects.completed().count() == 65, 60)

    starts = sorted(TaskAttempt.objects.values_list("started_at", flat=True))
    pauses = [(later - earlier).total_seconds() for earlier, later in pairwise(starts)]
    assert sum(pauses) >= (65 - 2 * 5) / 20 - 0.1  # a worker that stands still with tokens starts a burst late
    for number, start in enumerate(starts):
        within = sum(1 for other in starts[number:] if (other - start).total_seconds() < 1)
        assert within <= 2 * 5 + 20 + 1


def test_a_limit_of_the_settings_holds_until_the_row_says_otherwise(drain, settings):
    queues = {"default": {"max_concurrency": 0}}
    settings.TASKS = {"default": settings.TASKS["default"] | {"OPTIONS": {"queues": queues}}}
    tasks.noop.send()

    drain()
    assert Task.objects.pending().count() == 1
    Queue.objects.named("default").set(max_concurrency=1)
    drain()

    assert Task.objects.completed().count() == 1


def test_prefetched_tasks_count_as_taken(worker, tmp_path):
    gate = tmp_path / "gate"
    Queue.objects.named("default").set(max_concurrency=3)
    tasks.hold.send_many({"key": "held", "gate": str(gate)} for _ in range(10))

    worker("--threads", "2", "--prefetch", "8", "-v0")
    wait_until(lambda: Entry.objects.count() == 2)
    wait_until(lambda: running() == 3)
    tasks.noop.using(queue_name="other").send()
    wait_until(lambda: Task.objects.active().filter(queue_name="other").exists() or True)
    assert running() == 3
    gate.touch()

    wait_until(lambda: Task.objects.completed().count() == 11)


def test_coroutines_and_functions_share_the_places_of_a_queue(worker):
    Queue.objects.named("default").set(max_concurrency=2)
    tasks.awrite.send_many({"key": str(number)} for number in range(20))
    tasks.nap.send_many({"seconds": 0.02} for _ in range(20))

    worker("-v0")
    wait_until(lambda: Task.objects.completed().count() == 40)

    assert most_at_once(ran()) <= 2


def test_the_tokens_of_prefetched_tasks_that_never_began_come_back(worker, tmp_path):
    gate = tmp_path / "gate"
    Queue.objects.named("default").set(rate_limit="10/h")
    tasks.hold.send_many({"key": "held", "gate": str(gate)} for _ in range(10))
    first = worker("--threads", "1", "--prefetch", "20", "-v0")
    wait_until(lambda: Entry.objects.count() == 1 and running() == 10)
    second = worker("--threads", "10", "-v0")

    first.signal(signal.SIGTERM)

    wait_until(lambda: Entry.objects.count() == 10, what="another worker begins the other nine at once")
    gate.touch()
    assert first.wait(20) == 0
    wait_until(lambda: Task.objects.completed().count() == 10)
    assert second.process.poll() is None


def test_the_tokens_of_tasks_that_were_started_and_never_began_come_back():
    row = Queue.objects.named("default")
    row.set(rate_limit="10/h")
    store = WorkerStore(WorkerConfig.of("default"), WorkerInfo("me", "host", 1))
    pool = SlotPool(False, 10, 0, InlineExecutor(Inbox().put), StartAheadTuner(10, 0))
    tasks.noop.send_many({} for _ in range(12))
    pool.set_queues(*store.poll([pool]).queues)
    claims = store.complete_and_claim(pool, [], 10)
    assert len(claims) == 10
    assert row.get().tokens < 1

    with transaction.atomic():
        store.hand_back(claims[:4])
        store.hand_back(claims[:4])  # they are held no more: that is no news
    assert 4 <= row.get().tokens < 5
    with transaction.atomic():
        store.hand_back_unknown(claims[6:])

    assert 6 <= row.get().tokens < 7
    assert Task.objects.pending().count() == 8
