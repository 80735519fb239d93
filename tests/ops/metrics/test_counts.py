"""Counts by state: exact up to a limit, and marked as a lower bound above it."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from horsies_django import TaskStatus
from horsies_django.core.compat import task_backends
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Queue, Task, Worker
from horsies_django.ops.metrics import Count, collect, counts
from tests.jobs import tasks
from tests.ops.inspector.factories import COLUMNS
from tests.ops.inspector.factories import make as made
from tests.worker.signals import jobs as signalled

pytestmark = pytest.mark.django_db(transaction=True)


def now():
    return datetime.now(UTC)


def snapshot():
    return collect(task_backends["default"].config)


def numbers():
    return {name: count.number for name, count in snapshot().counts.items()}


def make(number, **columns):
    Task.objects.bulk_create([Task(task_name="tests.jobs.tasks.noop", **columns) for _ in range(number)])


@pytest.mark.slow
def test_tasks_are_counted_by_status_and_by_state_of_the_inspector(drain):
    tasks.add.send(1)
    tasks.fail.send()
    signalled.fail.send()  # is retried in an hour
    drain()
    with transaction.atomic():
        tasks.noop.send()
        tasks.noop.send()
    with transaction.atomic():
        Task.objects.claim("w", start=1, prefetch=1)
    tasks.noop.schedule(60)
    tasks.noop.send()
    tasks.noop.send().cancel()
    make(1, good_until=now() - timedelta(seconds=1))
    make(1, status="EXPIRED", expired_at=now())
    make(2, deferred=True, enqueued_at=now() - timedelta(seconds=90))
    make(2, deferred=True, blocked=True, limit_key="k")
    make(1, deferred=True, blocked=True, limit_key="k", good_until=now() - timedelta(seconds=1))

    assert numbers() == {
        "due": 3,
        "blocked": 2,
        "scheduled": 1,
        "retrying": 1,
        "overdue": 2,
        "pending": 7,
        "aggregating": 0,
        "awaiting": 0,
        "active": 2,
        "claimed": 1,
        "running": 1,
        "completed": 1,
        "failed": 1,
        "cancelled": 1,
        "expired": 1,
    }
    for state in ("scheduled", "aggregating", "retrying", "awaiting", "overdue", "active", "completed"):
        assert numbers()[state] == getattr(Task.objects, state)().count(), state
    assert not any(count.is_more for count in snapshot().counts.values())


@pytest.mark.slow
def test_a_count_above_the_limit_is_a_lower_bound(monkeypatch):
    monkeypatch.setattr(counts, "MAX_COUNTED", 10)
    make(40)
    make(30, deferred=True, enqueued_at=now() + timedelta(hours=1))
    make(60, status=TaskStatus.FAILED, failed_at=now())
    make(100, status=TaskStatus.COMPLETED, completed_at=now())
    make(3, status=TaskStatus.CANCELLED, cancelled_at=now())

    found = snapshot().counts

    assert found["cancelled"] == Count(3)
    assert {found[name] for name in ("due", "pending", "scheduled", "failed")} == {Count(10, is_more=True)}
    assert found["retrying"] == Count(0, is_more=True)
    assert found["completed"].is_more


def test_each_queue_has_its_depth_its_oldest_wait_and_its_pause():
    tasks.on_emails.send()
    make(2, queue_name="emails", priority=5, enqueued_at=now() - timedelta(seconds=30))
    make(3, queue_name="emails", priority=-5, enqueued_at=now() - timedelta(seconds=500))
    make(1, queue_name="slow", is_async=True, enqueued_at=now() - timedelta(seconds=20))
    make(1, queue_name="late", deferred=True, enqueued_at=now() - timedelta(seconds=10))
    Queue.objects.create(name="emails", paused=True)
    Queue.objects.create(name="quiet")

    found = {queue.name: queue for queue in snapshot().queues}

    assert {name: queue.depth.due for name, queue in found.items()} == {
        "default": 0,
        "emails": 6,
        "late": 1,
        "quiet": 0,
        "slow": 1,
    }
    assert [name for name, queue in found.items() if queue.status.is_paused] == ["emails"]
    assert found["emails"].depth.waits == pytest.approx(500, abs=60)
    assert snapshot().depths.waits == pytest.approx(500, abs=60)
    assert found["quiet"].depth.waits is None


def test_each_worker_has_its_load_and_whether_it_is_alive():
    Worker.objects.register("w1", "web", "host", 1)
    Worker.objects.filter(pk="w1").update(threads=4, async_slots=0)
    Worker.objects.register("w2", "web", "host", 2)
    Worker.objects.filter(pk="w2").update(last_beat_at=now() - timedelta(hours=1))
    for _ in range(2):
        tasks.noop.send()
    with transaction.atomic():
        Task.objects.claim("w1", start=2)

    first, second = snapshot().workers

    assert (first.id, first.held, first.shown_load, first.load, first.is_alive) == ("w1", 2, "2/4", 0.5, True)
    assert (second.id, second.held, second.load, second.is_alive) == ("w2", 0, None, False)


def test_the_load_of_a_worker_is_that_of_its_fuller_kind_of_slots():
    Worker.objects.register("w1", "", "host", 1)
    Worker.objects.update(threads=2, async_slots=100)
    held = {"status": "CLAIMED", "claim": 1, "claimed_by_worker_id": "w1", "claimed_at": now()}
    make(2, **held)
    make(1, is_async=True, **held)

    (member,) = snapshot().workers

    assert (member.held, member.load, member.shown_load) == (3, 1.0, "2/2 + 1/100 async")


@pytest.mark.slow
def test_a_queue_without_a_worker_that_stays_is_unserved():
    for key in ("w1", "w2"):
        Worker.objects.register(key, "", "host", 1)
    Worker.objects.filter(pk="w1").update(queues=["emails"])
    Worker.objects.filter(pk="w2").update(excluded_queues=["slow"])
    make(1, queue_name="emails")
    make(1, queue_name="slow")
    make(1, queue_name="other")
    assert snapshot().unserved == ("slow",)

    Worker.objects.filter(pk="w2").request_stop()

    assert snapshot().unserved == ("other", "slow")

    Worker.objects.filter(pk="w1").quiet()

    found = snapshot()
    assert found.unserved == ("emails", "other", "slow")
    assert [(one.id, one.is_alive, one.is_quiet) for one in found.workers if one.id == "w1"] == [("w1", True, True)]


def test_counts_by_queue_and_state_add_up_to_the_totals():
    for queue in ("a", "b"):
        for state in COLUMNS:
            made(state, queue_name=queue, group_key="k" if state == "aggregating" else None)
    made("retrying", queue_name="b", enqueued_at=NowPlus(-5), next_retry_at=NowPlus(-5))

    found = snapshot()
    queues = {queue.name: queue.counts for queue in found.queues}

    assert {state: queues["a"][state] for state in COLUMNS} == dict.fromkeys(COLUMNS, Count(1))
    assert {state: queues["b"][state] for state in COLUMNS} == dict.fromkeys(COLUMNS, Count(1)) | {"pending": Count(2)}
    assert {state: found.counts[state].number for state in COLUMNS} == dict.fromkeys(COLUMNS, 2) | {"pending": 3}


def test_the_counts_of_queues_have_the_limit_of_the_totals(monkeypatch):
    monkeypatch.setattr(counts, "MAX_COUNTED", 10)
    make(15, queue_name="first")
    make(12, queue_name="second")
    make(3, queue_name="second", status="FAILED", failed_at=now())

    queues = {queue.name: queue.counts for queue in snapshot().queues}

    assert queues["first"]["pending"].is_more
    assert queues["second"]["pending"].is_more
    assert queues["second"]["failed"] == Count(3)
