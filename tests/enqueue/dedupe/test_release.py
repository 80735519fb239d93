"""When a task releases its unique key."""

import pytest
from django.core.management import call_command
from django.db import transaction
from django.db.models import F

from horsies_django import TaskStatus, Unique
from horsies_django.models import Task
from horsies_django.models.claims import Completion, WorkerInfo
from tests.enqueue.dedupe import jobs

pytestmark = pytest.mark.django_db

RUNNER = WorkerInfo("w", "host", 1)
UNTIL = ("started", "done", "success")


def job(until):
    return jobs.note.with_options(unique=Unique(by=("name",), until=until))


def claim_one(*, start=1, prefetch=0):
    with transaction.atomic():
        (claim,) = Task.objects.claim("w", start=start, prefetch=prefetch)
    return claim


def completion(claim, delay=None):
    return Completion(claim.task_id, claim.claim, '{"err": null}', None, delay)


#: How a pending task gets into each state.
TRANSITIONS = {
    "PENDING": lambda: None,
    "CLAIMED": lambda: claim_one(start=0, prefetch=1),
    "RUNNING": claim_one,
    "COMPLETED": lambda: Task.objects.complete([completion(claim_one())], RUNNER),
    "FAILED": lambda: Task.objects.fail([completion(claim_one())], RUNNER),
    "CANCELLED": lambda: Task.objects.cancel(),
}
#: The states in which a task holds its key, by `until`.
HOLDING_STATES = {
    "started": {"PENDING", "CLAIMED"},
    "done": {"PENDING", "CLAIMED", "RUNNING"},
    "success": {"PENDING", "CLAIMED", "RUNNING", "FAILED", "CANCELLED"},
}


@pytest.mark.parametrize("state", TRANSITIONS)
@pytest.mark.parametrize("until", UNTIL)
def test_until_decides_in_which_states_a_key_is_held(until, state):
    first = job(until).send("a")
    TRANSITIONS[state]()
    assert first.status() == state

    assert job(until).send("a").replayed is (state in HOLDING_STATES[until])


#: How a started task gets back to PENDING.
RETURNS = {
    "unstart": lambda claim: Task.objects.revert_start([claim], "w"),
    "snooze": lambda claim: Task.objects.snooze([completion(claim, 0)], "w"),
    "retry_later": lambda claim: Task.objects.retry_later([completion(claim, 0)], RUNNER),
    "retry": lambda claim: (
        Task.objects.fail([completion(claim)], RUNNER),
        Task.objects.filter(pk=claim.task_id).retry(),
    ),
}


@pytest.mark.parametrize("transition", RETURNS)
def test_a_started_task_returns_to_pending_without_a_key_that_another_holds(transition):
    first = job("started").send("a")
    claim = claim_one()
    second = job("started").send("a")

    with transaction.atomic():
        RETURNS[transition](claim)

    assert (first.status(), second.status()) == (TaskStatus.PENDING, TaskStatus.PENDING)
    assert Task.objects.get(pk=first.id).unique_until == "released"
    assert job("started").send("a").id == second.id


@pytest.mark.parametrize("until", ["done", "success"])
@pytest.mark.parametrize("transition", RETURNS)
def test_a_key_that_outlasts_the_start_is_kept_on_a_return_to_pending(transition, until):
    first = job(until).send("a")

    with transaction.atomic():
        RETURNS[transition](claim_one())

    assert first.status() == TaskStatus.PENDING
    assert job(until).send("a").id == first.id


@pytest.mark.parametrize("transition", ["release", "requeue"])
def test_a_claimed_task_returns_to_pending_with_its_key(transition):
    first = job("started").send("a")
    claim = claim_one(start=0, prefetch=1)
    assert job("started").send("a").id == first.id

    with transaction.atomic():
        Task.objects.release([claim], "w") if transition == "release" else Task.objects.requeue()

    assert first.status() == TaskStatus.PENDING
    assert job("started").send("a").id == first.id


def test_a_failed_task_keeps_its_key_through_a_retry_until_it_is_deleted(drain):
    first = jobs.always_fails.with_options(retry_policy=None).send("a")
    Task.objects.update(max_retries=0)
    drain()
    assert first.status() == TaskStatus.FAILED
    assert jobs.always_fails.send("a").id == first.id

    assert Task.objects.retry() == 1
    assert jobs.always_fails.send("a").id == first.id
    Task.objects.all().delete()
    assert jobs.always_fails.send("a").replayed is False


def test_cancel_by_key_cancels_only_the_live_task_that_holds_the_key():
    first = job("started").with_options(unique_key="k").send("a")
    assert jobs.note.cancel("other") is False
    claim_one()

    assert jobs.note.cancel("k", include_running=True) is False
    second = job("started").with_options(unique_key="k").send("a")
    assert jobs.note.cancel("k", include_running=True) is True
    assert (first.status(), second.status()) == (TaskStatus.RUNNING, TaskStatus.CANCELLED)


def test_retry_leaves_a_task_cancelled_if_another_holds_its_key():
    first = job("done").send("a")
    Task.objects.cancel()
    second = job("done").send("a")

    assert Task.objects.filter(pk=first.id).retry() == 0
    assert (first.status(), second.status()) == (TaskStatus.CANCELLED, TaskStatus.PENDING)


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.django_db(transaction=True)
def test_retention_keeps_a_task_until_its_unique_period_ends(drain):
    throttled = jobs.note.with_options(unique=Unique.throttle("1h", by=("name",)), retention=0)
    first, other = throttled.send("a"), job("done").with_options(retention=0).send("b")

    drain()
    reap()

    assert (first.status(), other.status()) == (TaskStatus.COMPLETED, None)
    assert throttled.send("a").id == first.id
    Task.objects.update(unique_expires_at=F("sent_at"))
    reap()
    assert first.status() is None


def reap():
    call_command("horsies_prune", verbosity=0)
