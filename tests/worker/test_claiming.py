"""Which tasks a worker claims, and in which order."""

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from horsies_django import TaskStatus
from horsies_django.models import Queue, Task
from horsies_django.models.claim.complete_and_claim import compile_for
from horsies_django.models.claims import WorkerInfo
from horsies_django.worker.slot_pool import MAX_QUEUES
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = pytest.mark.django_db(transaction=True)


def claim(start=10, prefetch=0, worker="w"):
    with transaction.atomic():
        return Task.objects.claim(worker, start=start, prefetch=prefetch)


def test_tasks_are_claimed_by_priority_then_time_then_id(drain):
    low = tasks.write.with_options(priority=-5).send("low")
    first, second = tasks.write.send("first"), tasks.write.send("second")
    high = tasks.write.with_options(priority=5).send("high")
    earlier = tasks.write.schedule(timezone.now() - timedelta(hours=1), "earlier")

    order = [claimed.task_id for claimed in claim()]

    assert order == [high.id, earlier.id, first.id, second.id, low.id]


def test_tasks_of_one_send_many_run_in_the_order_they_were_given():
    handles = tasks.write.send_many({"key": str(number)} for number in range(50))

    order = [claimed.task_id for claimed in claim(50)]

    assert order == [handle.id for handle in handles]


def test_a_task_claimed_for_a_free_slot_is_running_at_once():
    handle = tasks.noop.send()

    (claimed,) = claim(start=1)

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.claimed, row.claimed_by_worker_id) == (TaskStatus.RUNNING, True, "w")
    assert row.claimed_at is not None
    assert row.started_at is not None
    assert (row.claim, row.attempt) == (claimed.claim, claimed.attempt) == (1, 1)


def test_a_prefetched_task_is_claimed_but_not_started():
    handle = tasks.noop.send()

    claim(start=0, prefetch=1)

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.started_at, row.attempt) == (TaskStatus.CLAIMED, None, 0)


def test_tasks_that_are_not_due_are_not_claimed():
    tasks.noop.schedule(3600)
    tasks.noop.with_options(good_until=timezone.now() - timedelta(seconds=1)).send()
    due = tasks.noop.schedule(0)

    assert [claimed.task_id for claimed in claim()] == [due.id]


def test_concurrent_claims_share_no_row_and_do_not_block_each_other():
    if connection.vendor == "sqlite":
        return  # SQLite has one writer at a time; the chaos tests use many processes
    handles = tasks.noop.send_many({} for _ in range(15))
    ids, runner = [handle.id for handle in handles], WorkerInfo("b", "host", 1)
    other = connection.copy()
    try:
        with transaction.atomic():
            claimed_ids = [claimed.task_id for claimed in Task.objects.claim("a", start=5)]
            with other.cursor() as cursor:  # as another process that is claiming
                cursor.execute("BEGIN")
                cursor.execute("SELECT id FROM horsies_tasks WHERE id = ANY(%s) FOR UPDATE", [ids[5:10]])
                connection.cursor().execute("SET LOCAL lock_timeout = '5s'")
                more = [claimed.task_id for claimed in Task.objects.claim("a", start=3)]
                busy = compile_for(Task.objects.all(), runner, is_async=False).run([], 10, ["default"])
    finally:
        other.close()

    assert (claimed_ids, more) == (ids[:5], ids[10:13])
    assert [claimed.task_id for claimed in busy] == ids[13:]


def test_a_second_claim_gets_nothing_and_leaves_the_first_unchanged():
    handle = tasks.noop.send()
    with transaction.atomic():
        (first,) = Task.objects.claim("a", start=1)
    before = Task.objects.filter(pk=handle.id).values().get()

    with transaction.atomic():
        second = Task.objects.claim("b", start=1)

    assert (first.task_id, list(second)) == (handle.id, [])
    assert Task.objects.filter(pk=handle.id).values().get() == before


def test_a_worker_runs_only_tasks_of_its_queues(drain):
    emails, other = tasks.on_emails.send(), tasks.add.send(1)

    drain(queues="emails")

    assert emails.status() == TaskStatus.COMPLETED
    assert other.status() == TaskStatus.PENDING


def test_a_worker_runs_no_tasks_of_excluded_queues(drain):
    emails, other = tasks.on_emails.send(), tasks.add.send(1)

    drain(exclude_queues="emails, unknown")

    assert emails.status() == TaskStatus.PENDING
    assert other.status() == TaskStatus.COMPLETED


def test_tasks_of_a_paused_queue_wait_until_it_is_resumed(drain):
    Queue.objects.create(name="emails", paused=True)
    emails, other = tasks.on_emails.send(), tasks.add.send(1)

    drain()
    paused = emails.status()
    Queue.objects.update(paused=False)
    drain()

    assert paused == TaskStatus.PENDING
    assert other.status() == emails.status() == TaskStatus.COMPLETED


@pytest.mark.slow
@pytest.mark.sqlite
def test_more_queues_than_one_claim_covers_are_drained_most_urgent_first(drain):
    for number in range(3 * MAX_QUEUES):
        tasks.noop.using(queue_name=f"queue-{number:02d}").send_many([{}] * 2)
    urgent = tasks.noop.using(queue_name="queue-99", priority=1).send()

    drain(threads=1)

    assert not Task.objects.exclude(status=TaskStatus.COMPLETED).exists()
    # SQLite stores milliseconds, so times may be equal.
    assert Task.objects.get(pk=urgent.id).started_at == min(Task.objects.values_list("started_at", flat=True))


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("flag", ["", "--poll-interval=0.1"], ids=["by default", "polling often"])
def test_a_busy_worker_notices_a_resumed_queue(worker, flag):
    """It gets no notification, its only slot is always busy, and it polls only one queue until then."""
    Queue.objects.create(name="emails", paused=True)
    urgent = tasks.on_emails.using(priority=100).send()
    tasks.nap.send_many({"seconds": 0.01} for _ in range(600))
    worker("--processes", "1", "--threads", "1", "--async-slots", "1", "-v0", *([flag] if flag else []))
    wait_until(lambda: Task.objects.completed().count() > 5)

    Queue.objects.update(paused=False)
    before = Task.objects.completed().count()

    wait_until(lambda: urgent.status() == TaskStatus.COMPLETED)
    # Measured in tasks rather than seconds, because a slow machine delays both.
    earlier = Task.objects.filter(started_at__lt=Task.objects.get(pk=urgent.id).started_at).count() - before
    assert earlier < 300, "it was among the last tasks to begin"


@pytest.mark.slow
@pytest.mark.sqlite
def test_once_makes_one_claim_and_exits(manage):
    tasks.write.send_many({"key": str(number)} for number in range(5))

    status = manage("horsies_worker", "--once", "--threads", "2").wait()

    assert status == 0
    assert sorted(Entry.objects.values_list("key", flat=True)) == ["0", "1"]
    assert Task.objects.pending().count() == 3


@pytest.mark.slow
@pytest.mark.sqlite
def test_once_exits_when_there_are_no_tasks(manage):
    assert manage("horsies_worker", "--once").wait() == 0


def test_a_drain_waits_for_retries_that_fall_due(drain):
    handle = tasks.flaky.send("drained", 2)

    drain()

    assert handle.value(0) == 3
    assert Task.objects.get(pk=handle.id).attempts.count() == 3


@pytest.mark.slow
def test_an_idle_worker_starts_a_delayed_task_on_time(worker):
    # Without LISTEN the next poll has to find it.
    worker("--poll-interval", "600" if connection.vendor == "postgresql" else "5")

    handle = tasks.write.schedule(1.5, "later")

    wait_until(lambda: handle.status() == TaskStatus.COMPLETED)
    row = Task.objects.get(pk=handle.id)
    assert row.started_at >= row.enqueued_at


@pytest.mark.slow
@pytest.mark.sqlite
def test_all_prefetched_tasks_run(worker):
    worker("--threads", "2", "--prefetch", "5")

    handles = tasks.write.send_many({"key": str(number)} for number in range(40))

    wait_until(lambda: Task.objects.completed().count() == len(handles))
    assert Entry.objects.count() == len(handles)


@pytest.mark.slow
@pytest.mark.sqlite
def test_max_tasks_per_child_replaces_the_runner_and_loses_nothing(worker):
    worker("--threads", "1", "--max-tasks-per-child", "3")

    tasks.write.send_many({"key": str(number)} for number in range(9))

    wait_until(lambda: Task.objects.completed().count() == 9, limit=40)
    assert Entry.objects.values("pid").distinct().count() >= 3


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_drain_continues_after_its_runners_reach_max_tasks_per_child(manage):
    tasks.write.send_many({"key": str(number)} for number in range(20))

    process = manage("horsies_worker", "--drain", "--processes", "2", "--threads", "1", "--max-tasks-per-child", "4")

    assert process.wait(60) == 0
    assert Task.objects.completed().count() == 20
