"""The concurrency and rate limits of queues, with real workers."""

import os
import signal
import time
from collections import Counter
from itertools import pairwise

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from horsies_django import TaskStatus
from horsies_django.models import Queue, Task, TaskAttempt
from horsies_django.models.claim.complete_and_claim import compile_for
from horsies_django.models.claims import WorkerInfo
from horsies_django.testing import travel
from horsies_django.worker.config import WorkerConfig
from horsies_django.worker.executor import InlineExecutor
from horsies_django.worker.inbox import Inbox
from horsies_django.worker.slot_pool import SlotPool, StartAheadTuner
from horsies_django.worker.store import WorkerStore
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


#: Seconds within which a worker applies a change: one, plus a margin for a busy machine.
SOON = 20


def most_at_once(spans):
    """Return how many of these spans overlap at most."""
    moves = sorted(move for begin, end in spans for move in ((begin, 1), (end, -1)))
    most = now = 0
    for _, step in moves:
        now += step
        most = max(most, now)
    return most


def ran(queue="default"):
    """Return the begin and end of each attempt, by the database's clock."""
    return list(TaskAttempt.objects.filter(task__queue_name=queue).values_list("started_at", "finished_at"))


def running(queue="default"):
    return Task.objects.active().filter(queue_name=queue).count()


RUNNER = WorkerInfo("me", "host", 1)


def askable(store, pool):
    """Return the queues with due tasks that a worker may ask now."""
    (queues,) = store.scan([pool]).queues
    return store.selector.unblocked([queue.queue_name for queue in queues if not queue.is_paused])


def claim_ten(**options):
    """Poll and claim as a worker with ten free slots; return its store, its pool and the claims."""
    store = WorkerStore(WorkerConfig.of("default", **options), RUNNER)
    pool = SlotPool(False, 10, 0, InlineExecutor(Inbox().put), StartAheadTuner(10, 0))
    pool.set_queues(askable(store, pool))
    return store, pool, store.complete_and_claim(pool, [], 10)


@pytest.mark.slow
def test_max_concurrency_limits_the_running_tasks_of_all_workers(worker, tmp_path):
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


@pytest.mark.slow
def test_a_locked_queue_row_delays_only_the_tasks_of_that_queue(worker):
    if connection.vendor == "sqlite":
        return  # SQLite has no row locks
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


@pytest.mark.slow
def test_a_killed_runner_releases_its_concurrency_slots(manage, worker, tmp_path):
    gate = tmp_path / "gate"
    Queue.objects.named("default").set(max_concurrency=2)
    tasks.hold.with_options(retry_policy=None).send_many({"key": "held", "gate": str(gate)} for _ in range(6))
    first = worker("--threads", "4", "-v0")
    wait_until(lambda: Entry.objects.count() == 2)

    (pid,) = set(Entry.objects.values_list("pid", flat=True))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: Entry.objects.count() == 4, what="the begin of two more tasks")
    assert running() == 2
    gate.touch()

    wait_until(lambda: not Task.objects.pending().exists() and not running())
    assert Task.objects.completed().count() == 4
    assert first.process.poll() is None


@pytest.mark.slow
def test_a_limit_of_0_stops_a_queue_until_the_limit_is_raised(worker):
    Queue.objects.named("default").set(max_concurrency=0)
    tasks.noop.send_many({} for _ in range(5))
    tasks.noop.using(queue_name="other").send()
    worker("-v0", "--poll-interval", "0.5")
    wait_until(lambda: Task.objects.completed().count() == 1)
    assert running() == 0

    Queue.objects.named("default").set(max_concurrency=2)

    wait_until(lambda: Task.objects.completed().count() == 6, SOON)


@pytest.mark.slow
def test_pausing_and_resuming_take_effect_within_a_second(worker):
    worker("-v0", "--poll-interval", "0.5")
    Queue.objects.named("default").pause()
    tasks.noop.send()
    tasks.noop.using(queue_name="other").send().get(timeout=20)
    assert Task.objects.pending().count() == 1

    Queue.objects.named("default").resume()

    wait_until(lambda: not Task.objects.pending().exists(), SOON)


@pytest.mark.slow
def test_a_rate_limit_spreads_task_starts_evenly_across_runners(worker):
    Queue.objects.named("default").set(rate_limit="20/s, 5")
    tasks.noop.send_many({} for _ in range(65))

    worker("--processes", "2", "--threads", "8", "-v0", runners=2)
    wait_until(lambda: Task.objects.completed().count() == 65, 60)

    starts = sorted(Task.objects.values_list("claimed_at", flat=True))  # a thread may begin several late ones at once
    pauses = [(later - earlier).total_seconds() for earlier, later in pairwise(starts)]
    assert sum(pauses) >= (65 - 2 * 5) / 20 - 0.1  # a delayed worker may use its burst of tokens late
    for number, start in enumerate(starts):
        within = sum(1 for other in starts[number:] if (other - start).total_seconds() < 1)
        assert within <= 2 * 5 + 20 + 1


def test_a_limit_in_the_settings_applies_until_the_queue_row_overrides_it(drain, settings):
    queues = {"default": {"max_concurrency": 0}}
    settings.TASKS = {"default": settings.TASKS["default"] | {"OPTIONS": {"queues": queues}}}
    tasks.noop.send()

    drain()
    assert Task.objects.pending().count() == 1
    Queue.objects.named("default").set(max_concurrency=1)
    drain()

    assert Task.objects.completed().count() == 1


def test_the_first_claim_takes_as_many_tasks_as_a_limit_in_the_settings_allows(settings):
    queues = {"default": {"max_concurrency": 2}}
    settings.TASKS = {"default": settings.TASKS["default"] | {"OPTIONS": {"queues": queues}}}
    tasks.noop.send_many({} for _ in range(5))
    Queue.objects.named("other").pause()
    assert not Queue.objects.filter(name="default").exists()

    _, _, claims = claim_ten()

    assert len(claims) == 2


def test_tasks_that_other_workers_hold_count_against_max_concurrency():
    Queue.objects.named("default").set(max_concurrency=6)
    tasks.noop.send_many({} for _ in range(4))
    assert len(claim_ten()[-1]) == 4
    tasks.noop.send_many({} for _ in range(4))

    _, _, claims = claim_ten()

    assert len(claims) == 2


def test_a_queue_that_was_paused_after_the_poll_gives_no_tasks():
    Queue.objects.named("default").set(max_concurrency=5)
    tasks.noop.send()
    store, pool, claims = claim_ten()
    tasks.noop.send()
    Queue.objects.named("default").pause()

    assert len(claims) == 1
    assert store.complete_and_claim(pool, [], 10) == []


@pytest.mark.parametrize("order", ["priority", "strict", "weighted"])
def test_a_claim_while_every_ready_queue_is_at_its_limit_costs_no_statement(order):
    Queue.objects.named("default").set(rate_limit="1/h")
    tasks.noop.send_many({} for _ in range(2))
    store, pool, claims = claim_ten(order=order)
    assert len(claims) == 1

    pool.mark_ready("default")
    with CaptureQueriesContext(connection) as captured:
        assert store.complete_and_claim(pool, [], 10) == []

    assert len(captured) == 0


def test_a_claim_takes_from_each_queue_as_many_tasks_as_its_own_limit_allows():
    tasks.noop.using(queue_name="free").send_many({} for _ in range(2))
    assert len(claim_ten()[-1]) == 2  # which count against no limit of another queue
    limits = {"a": 3, "b": 1, "c": 2}
    for name, most in limits.items():
        Queue.objects.named(name).set(max_concurrency=most)
        tasks.noop.using(queue_name=name).send_many({} for _ in range(4))

    _, _, claims = claim_ten()

    assert Counter(claim.queue_name for claim in claims) == limits


def test_one_of_several_queues_can_fill_all_slots_of_a_claim_though_another_has_a_limit():
    tasks.noop.send_many({} for _ in range(10))
    claim = compile_for(Task.objects.all(), RUNNER, is_async=False)

    assert len(claim.run([], 10, ["default", "limited"], {"limited": 3})) == 10


def test_a_claim_after_one_that_took_all_its_limits_allow_asks_all_queues_together():
    if connection.vendor != "postgresql":
        pytest.skip("elsewhere a claim is several statements")
    for queue in ("default", "limited"):
        tasks.noop.using(queue_name=queue).send_many({} for _ in range(3))
    claim = compile_for(Task.objects.all(), RUNNER, is_async=False)
    asked = ([], 10, ["default", "limited"], {"default": 1, "limited": 1})
    assert len(claim.run(*asked)) == 2

    with CaptureQueriesContext(connection) as captured:
        assert len(claim.run(*asked)) == 2

    assert len(captured) == 1


def test_a_worker_asks_a_queue_below_its_max_concurrency_again_at_once():
    Queue.objects.named("default").set(max_concurrency=2)
    tasks.noop.send()

    store, pool, claims = claim_ten()
    tasks.noop.send()

    assert len(claims) == 1
    assert askable(store, pool) == ("default",)


@pytest.mark.parametrize(("tokens", "most", "seconds"), [(10.0, 10, 360), (2.5, 2, 180)])
def test_a_worker_asks_a_queue_without_tokens_again_only_when_the_next_token_is_due(tokens, most, seconds):
    Queue.objects.create(name="default", rate_limit="10/h", tokens=tokens, refilled_at=timezone.now())
    tasks.noop.send_many({} for _ in range(12))

    store, pool, claims = claim_ten()

    assert len(claims) == most
    assert askable(store, pool) == ()
    assert seconds - 60 < store.selector.unblocks_at - time.monotonic() <= seconds


def test_a_bucket_without_the_time_of_its_last_token_counts_as_full():
    """A time out of range becomes none: without new tokens the queue would stand still for ever."""
    Queue.objects.create(name="default", rate_limit="3/h", tokens=0.0, refilled_at=None)
    tasks.noop.send_many({} for _ in range(5))

    _, _, claims = claim_ten()

    assert len(claims) == 3


def test_a_queue_with_a_rate_limit_goes_on_after_the_databases_clock_was_set_back():
    Queue.objects.create(name="default", rate_limit="3/h")
    with travel(hours=1):
        tasks.noop.send_many({} for _ in range(5))
        assert len(claim_ten()[2]) == 3
    tasks.noop.send_many({} for _ in range(5))

    assert [len(claim_ten()[2]) for _ in range(2)] == [3, 0]


@pytest.mark.slow
def test_prefetched_tasks_count_against_max_concurrency(worker, tmp_path):
    gate = tmp_path / "gate"
    Queue.objects.named("default").set(max_concurrency=3)
    tasks.hold.send_many({"key": "held", "gate": str(gate)} for _ in range(10))

    worker("--threads", "2", "--prefetch", "8", "-v0")
    wait_until(lambda: Entry.objects.count() == 2)
    wait_until(lambda: running() == 3)
    tasks.noop.using(queue_name="other").send()
    wait_until(lambda: Task.objects.active().filter(queue_name="other").exists())
    assert running() == 3
    gate.touch()

    wait_until(lambda: Task.objects.completed().count() == 11)


@pytest.mark.slow
def test_coroutines_and_functions_share_the_concurrency_limit_of_a_queue(worker):
    Queue.objects.named("default").set(max_concurrency=2)
    tasks.awrite.send_many({"key": str(number)} for number in range(20))
    tasks.nap.send_many({"seconds": 0.02} for _ in range(20))

    worker("-v0")
    wait_until(lambda: Task.objects.completed().count() == 40)

    assert most_at_once(ran()) <= 2


@pytest.mark.slow
def test_prefetched_tasks_that_never_began_return_their_rate_limit_tokens(worker, tmp_path):
    gate = tmp_path / "gate"
    Queue.objects.named("default").set(rate_limit="10/h")
    tasks.hold.send_many({"key": "held", "gate": str(gate)} for _ in range(10))
    first = worker("--threads", "1", "--prefetch", "20", "-v0")
    wait_until(lambda: Entry.objects.count() == 1 and running() == 10)
    second = worker("--threads", "10", "-v0")

    first.signal(signal.SIGTERM)

    wait_until(lambda: Entry.objects.count() == 10, what="the begin of the other nine on another worker")
    gate.touch()
    assert first.wait(20) == 0
    wait_until(lambda: Task.objects.completed().count() == 10)
    assert second.process.poll() is None


def test_released_tasks_return_their_rate_limit_tokens_once():
    row = Queue.objects.named("default")
    row.set(rate_limit="10/h")
    tasks.noop.send_many({} for _ in range(12))
    store, _, claims = claim_ten()
    assert len(claims) == 10
    assert row.get().tokens < 1

    with transaction.atomic():
        store.release(claims[:4], TaskStatus.RUNNING)
        store.release(claims[:4], TaskStatus.RUNNING)  # already released: changes nothing
    assert 4 <= row.get().tokens < 5
    with transaction.atomic():
        store.hand_back_unknown(claims[6:])

    assert 6 <= row.get().tokens < 7
    assert Task.objects.pending().count() == 8


def test_released_tasks_of_a_queue_without_a_rate_limit_change_no_row_of_a_queue():
    Queue.objects.named("default").set(max_concurrency=10)
    Queue.objects.named("other").set(rate_limit="10/h")
    tasks.noop.send_many({} for _ in range(2))
    store, _, claims = claim_ten()

    with transaction.atomic(), CaptureQueriesContext(connection) as statements:
        store.release(claims, TaskStatus.RUNNING)

    assert Task.objects.pending().count() == 2
    assert not [one["sql"] for one in statements if one["sql"].startswith('UPDATE "horsies_queues"')]
