"""Failures and retries."""

import threading
from datetime import timedelta
from itertools import pairwise

import pytest
from django.db import transaction
from django.db.backends.signals import connection_created
from django.utils import timezone

from horsies_django import RetryPolicy, TaskStatus
from horsies_django.core.compat import TaskResultStatus
from horsies_django.models import Task
from tests.conftest import wait_until
from tests.database import querying_threads
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.workflows.runs import reap

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


def test_a_task_to_be_retried_is_pending_with_its_next_time(drain):
    policy = RetryPolicy.fixed([60, 60], auto_retry_for=["DOWN"], jitter=False)
    handle = tasks.fixed.with_options(retry_policy=policy).send("first")

    drain()

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.retry_count, row.attempt, row.error_code) == (TaskStatus.PENDING, 1, 1, "DOWN")
    assert row.enqueued_at == row.next_retry_at
    assert (row.claimed_at, row.claimed_by_worker_id, row.started_at, row.result) == (None, None, None, None)
    attempt = row.attempts.get()
    assert (attempt.attempt, attempt.outcome, attempt.will_retry, attempt.error_code) == (1, "FAILED", True, "DOWN")
    assert timedelta(seconds=59.99) <= row.next_retry_at - attempt.finished_at <= timedelta(seconds=65)


@pytest.mark.slow
def test_a_task_that_has_ended_after_a_retry_shows_no_time_of_the_next_one(drain):
    policy = RetryPolicy.fixed([60], auto_retry_for=["*"], jitter=False)
    until = timezone.now() + timedelta(hours=1)
    done = tasks.flaky.send("done", 1)
    cancelled = tasks.fail.with_options(retry_policy=policy).send()
    expired = tasks.fail.with_options(retry_policy=policy, good_until=until).send()
    drain()
    cancelled.cancel()
    Task.objects.filter(pk=expired.id).update(good_until=timezone.now())
    reap()

    ended = {handle.info().status: handle.info().next_retry_at for handle in (done, cancelled, expired)}

    assert ended == {TaskStatus.COMPLETED: None, TaskStatus.CANCELLED: None, TaskStatus.EXPIRED: None}


@pytest.mark.slow
@pytest.mark.parametrize("status", [TaskStatus.PENDING, TaskStatus.CLAIMED])
def test_a_task_that_expires_before_its_retry_reports_its_last_error(drain, status):
    policy = RetryPolicy.fixed([60], auto_retry_for=["*"], jitter=False)
    handle = tasks.fail.with_options(retry_policy=policy).send("the disk is full")
    drain()
    row = Task.objects.filter(pk=handle.id)
    row.run_now()
    with transaction.atomic():
        claims = row.claim("worker", start=0, prefetch=1) if status == TaskStatus.CLAIMED else []
    row.update(good_until=timezone.now())

    assert not Task.objects.start(claims, "worker")
    reap()

    error = handle.get(timeout=0).err
    assert (error.error_code, error.message) == (
        "TASK_EXPIRED",
        "good_until passed while the task waited for its retry, after UNHANDLED_EXCEPTION: the disk is full",
    )


@pytest.mark.slow
def test_a_fixed_policy_retries_once_for_each_delay_and_then_fails(worker):
    worker()

    handle = tasks.fixed.send("fixed")

    result = handle.get(timeout=20)
    row = Task.objects.get(pk=handle.id)
    attempts = list(row.attempts.order_by("attempt"))
    assert result.err.error_code == row.error_code == "DOWN"
    assert [(attempt.attempt, attempt.will_retry) for attempt in attempts] == [(1, True), (2, True), (3, False)]
    first, second = (later.started_at - earlier.finished_at for earlier, later in pairwise(attempts))
    assert first >= timedelta(seconds=1)
    assert second >= timedelta(seconds=2)
    assert Entry.objects.count() == 3


def test_max_attempts_retries_any_failure(drain):
    handle = tasks.flaky.send("flaky", 2)

    drain()

    row = Task.objects.get(pk=handle.id)
    assert handle.value(0) == 3
    assert (row.attempt, row.retry_count, row.max_retries) == (3, 2, 2)


def test_a_task_fails_when_no_attempts_are_left(drain):
    handle = tasks.flaky.send("hopeless", 99)

    drain()

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.attempt) == (TaskStatus.FAILED, 3)
    assert row.result["err"]["message"] == "attempt 3"


def test_a_backoff_callable_can_stop_the_retries(drain):
    handle = tasks.choosy.send("choosy")

    drain()

    assert handle.get(0).err.message == "choosy"
    assert Entry.objects.filter(key="choosy").count() == 3


@pytest.mark.parametrize("job", [tasks.choosy_by_context, tasks.achoosy_by_context])
def test_a_backoff_may_take_the_context_and_return_a_timedelta(drain, job):
    tasks.backoff_contexts.clear()
    handle = job.send()

    drain()

    assert handle.get(0).err.message == "choosy"
    first, second = tasks.backoff_contexts
    assert (first.attempt, second.attempt, second.max_attempts) == (1, 2, 5)
    errors = [[error.exception_class for error in context.task_result.errors] for context in (first, second)]
    assert errors == [[RuntimeError], [RuntimeError, ValueError]]
    assert second.task_result.id == str(handle.id)
    assert second.task_result.status == TaskResultStatus.FAILED


@pytest.mark.parametrize("job", [tasks.choosy_by_context, tasks.achoosy_by_context])
def test_a_backoff_is_not_called_if_the_attempt_failed_before_its_context_was_read(drain, job):
    def refuse(**_):
        if threading.current_thread().name.startswith(("horsies-slot", "horsies-coroutine")):
            raise LookupError("no secret for this connection")

    tasks.backoff_contexts.clear()
    handle = job.send()
    connection_created.connect(refuse)
    try:
        drain()
    finally:
        connection_created.disconnect(refuse)

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.retry_count, row.attempts.get().error_message) == (
        TaskStatus.PENDING,
        1,
        "no secret for this connection",
    )
    assert tasks.backoff_contexts == []


def test_a_retry_after_good_until_is_not_scheduled(drain):
    policy = RetryPolicy.fixed([60], auto_retry_for=["UNHANDLED_EXCEPTION"])
    soon = timezone.now() + timedelta(seconds=20)
    handle = tasks.fail.with_options(retry_policy=policy, good_until=soon).send()

    drain()

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.error_code, row.retry_count) == (TaskStatus.FAILED, "UNHANDLED_EXCEPTION", 0)
    assert row.attempts.get().will_retry is False


def test_a_retry_before_good_until_is_scheduled(drain):
    policy = RetryPolicy.fixed([60], auto_retry_for=["UNHANDLED_EXCEPTION"])
    handle = tasks.fail.with_options(retry_policy=policy, good_until=timezone.now() + timedelta(minutes=5)).send()

    drain()

    assert Task.objects.retrying().get().pk == handle.id


def test_a_code_that_the_policy_does_not_list_is_not_retried(drain):
    policy = RetryPolicy.fixed([1], auto_retry_for=["SOMETHING_ELSE"])
    handle = tasks.fail.with_options(retry_policy=policy).send()

    drain()

    assert handle.status() == TaskStatus.FAILED


@pytest.mark.parametrize(
    ("name", "code"), [("down", "DOWN"), ("very", "DOWN"), ("key", "LOST"), ("other", "UNHANDLED_EXCEPTION")]
)
def test_an_exception_gets_the_code_of_its_class_or_nearest_base(drain, name, code):
    handle = tasks.mapped.send(name)

    drain()

    assert handle.get(0).err.error_code == code


def test_a_returned_error_fails_the_task(drain):
    handle = tasks.returns_error.send("MINE")

    drain()

    error = handle.get(0).err
    assert handle.status() == TaskStatus.FAILED
    assert (error.error_code, error.message, error.data) == ("MINE", "as a value", {"n": 1})


@pytest.mark.slow
def test_a_manual_retry_resets_the_retry_count_and_keeps_the_attempts(drain):
    handle = tasks.flaky.send("again", 4)
    drain()
    assert handle.status() == TaskStatus.FAILED

    assert handle.retry()
    drain()

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.attempt, row.retry_count) == (TaskStatus.COMPLETED, 5, 1)
    assert list(row.attempts.order_by("attempt").values_list("attempt", flat=True)) == [1, 2, 3, 4, 5]
    assert not handle.retry()


def test_a_context_has_the_attempt_number_and_the_earlier_errors(drain):
    handle = tasks.attempt_ids.send()

    drain()

    assert handle.value(0) == [2, str(handle.id), 1]


def test_the_context_of_a_first_attempt_reads_no_attempts(drain):
    with querying_threads("horsies_task_attempts") as names:
        handle = tasks.attempt.send()
        drain()

    assert handle.value(0) == 1
    assert names == []


@pytest.mark.slow
def test_a_manual_retry_wakes_an_idle_worker(worker):
    handle = tasks.add.send(1)
    handle.cancel()
    worker()

    assert handle.retry()

    wait_until(lambda: handle.status() == TaskStatus.COMPLETED)
