"""An end that comes from an older claim changes nothing."""

import pytest
from django.db import transaction

from horsies_django import TaskStatus
from horsies_django.models import Task, TaskAttempt
from horsies_django.models.attempt import AttemptError
from horsies_django.models.claim.complete_and_claim import compile_for
from horsies_django.models.claims import Completion, WorkerInfo
from horsies_django.worker.config import WorkerConfig
from horsies_django.worker.store import WorkerStore
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)

RUNNER = WorkerInfo("w", "host", 1)
ERROR = AttemptError("BROKEN", "broken")


def claim_one():
    with transaction.atomic():
        (claimed,) = Task.objects.claim("w", start=1)
    return claimed


def ended(claimed, error=None, delay=None):
    result = '{"err":{"error_code":"BROKEN"}}' if error else '{"ok":1}'
    return Completion(claimed.task_id, claimed.claim, result, error, delay)


def store(end):
    with transaction.atomic():
        if end.error is None:
            Task.objects.complete([end], RUNNER)
        elif end.delay is None:
            Task.objects.fail([end], RUNNER)
        else:
            Task.objects.retry_later([end], RUNNER)


ENDS = {"completion": (None, None), "failure": (ERROR, None), "retry": (ERROR, 5.0)}


@pytest.mark.parametrize("kind", ENDS)
def test_a_late_end_of_an_older_claim_of_the_same_worker_changes_nothing(kind):
    handle = tasks.noop.send()
    older = claim_one()
    Task.objects.filter(pk=handle.id).update(status=TaskStatus.CLAIMED)
    with transaction.atomic():
        assert Task.objects.stale_claimed(-60).requeue() == 1  # as if the worker had been silent
    newer = claim_one()

    store(ended(older, *ENDS[kind]))

    row = Task.objects.get(pk=handle.id)
    assert newer.claim == older.claim + 1
    assert (row.status, row.claim, row.result) == (TaskStatus.RUNNING, newer.claim, None)
    assert not TaskAttempt.objects.exists()


@pytest.mark.parametrize("kind", ENDS)
def test_a_late_end_of_a_cancelled_task_changes_nothing(kind):
    handle = tasks.noop.send()
    claimed = claim_one()
    assert handle.cancel(include_running=True)

    store(ended(claimed, *ENDS[kind]))

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.error_code) == (TaskStatus.CANCELLED, "TASK_CANCELLED")
    assert not TaskAttempt.objects.exists()


@pytest.mark.parametrize("kind", ENDS)
def test_an_end_that_is_stored_twice_leaves_one_attempt(kind):
    handle = tasks.noop.send()
    end = ended(claim_one(), *ENDS[kind])

    store(end)
    before = Task.objects.filter(pk=handle.id).values().get()
    store(end)

    assert Task.objects.filter(pk=handle.id).values().get() == before
    assert TaskAttempt.objects.count() == 1


def test_a_lost_claim_does_not_affect_the_others_of_its_batch():
    handles = [tasks.noop.send() for _ in range(3)]
    with transaction.atomic():
        claims = Task.objects.claim("w", start=3)
    handles[1].cancel(include_running=True)

    with transaction.atomic():
        Task.objects.complete([ended(claimed) for claimed in claims], RUNNER)

    assert [handle.status() for handle in handles] == ["COMPLETED", "CANCELLED", "COMPLETED"]
    assert TaskAttempt.objects.count() == 2


def test_a_prefetched_task_that_was_cancelled_does_not_start():
    handle = tasks.noop.send()
    with transaction.atomic():
        (claimed,) = Task.objects.claim("w", start=0, prefetch=1)
    handle.cancel()

    with transaction.atomic():
        started = Task.objects.start([claimed], "w")

    assert started == set()
    assert handle.status() == TaskStatus.CANCELLED


def test_a_claimed_task_past_its_deadline_expires_and_keeps_its_claim():
    handle = tasks.noop.send()
    with transaction.atomic():
        (claimed,) = Task.objects.claim("w", start=0, prefetch=1)
    Task.objects.filter(pk=handle.id).update(good_until="2020-01-01T00:00Z")

    with transaction.atomic():
        started = Task.objects.start([claimed], "w")

    row = Task.objects.get(pk=handle.id)
    assert started == set()
    assert (row.status, row.claimed_by_worker_id, row.attempts.count()) == (TaskStatus.EXPIRED, "w", 0)
    assert row.claimed_at is not None
    assert row.result["err"]["error_code"] == "TASK_EXPIRED"
    assert row.result["err"]["data"] == {"task_id": str(handle.id), "worker_id": "w"}


def test_a_task_prefetched_twice_by_one_worker_starts_once():
    handle = tasks.noop.send()
    store = WorkerStore(WorkerConfig.of("default"), RUNNER)
    with transaction.atomic():
        (older,) = Task.objects.claim("w", start=0, prefetch=1)
    assert handle.cancel()
    assert handle.retry()
    with transaction.atomic():
        (newer,) = Task.objects.claim("w", start=0, prefetch=1)

    with transaction.atomic():
        started = store.start([older, newer])

    assert started == [newer]
    assert Task.objects.get(pk=handle.id).attempt == 1


@pytest.mark.parametrize("kind", ENDS)
def test_an_end_by_another_worker_with_the_same_claim_number_changes_nothing(kind):
    """After a failover to a server without a claim, two workers may hold claim 1."""
    handle = tasks.noop.send()
    claimed = claim_one()
    Task.objects.filter(pk=handle.id).update(claimed_by_worker_id="other")  # as on the new primary

    store(ended(claimed, *ENDS[kind]))

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.claim, row.result, row.error_code) == (TaskStatus.RUNNING, claimed.claim, None, None)
    assert not TaskAttempt.objects.exists()


@pytest.mark.parametrize("runner", [RUNNER, WorkerInfo("other", "host", 2)], ids=["its own", "another's"])
def test_complete_and_claim_stores_only_ends_of_the_workers_own_claims(runner):
    handle = tasks.noop.send()
    claimed = claim_one()
    with transaction.atomic():
        exchange = compile_for(Task.objects.all(), runner, is_async=False)

    exchange.run([ended(claimed)], 0, ())

    is_its_own = runner is RUNNER
    assert handle.status() == (TaskStatus.COMPLETED if is_its_own else TaskStatus.RUNNING)
    assert list(TaskAttempt.objects.values_list("worker_id", "pid")) == ([("w", 1)] if is_its_own else [])


def test_a_claim_number_held_by_another_worker_is_not_its_own():
    tasks.noop.send()
    claimed = claim_one()

    assert WorkerStore(WorkerConfig.of("default"), RUNNER).running_claims() == {(claimed.task_id, claimed.claim)}
    assert WorkerStore(WorkerConfig.of("default"), WorkerInfo("other", "host", 2)).running_claims() == set()
