"""The control exceptions that a body may raise: Retry, Snooze and Discard."""

from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db.models import F
from django.utils import timezone

from horsies_django import Discard, Retry, RetryPolicy, Snooze, TaskFailed, TaskStatus
from horsies_django.models import Task, TaskAttempt
from tests.conftest import wait_until
from tests.jobs.models import Entry
from tests.worker.execution import jobs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

BOTH_RETRIES = pytest.mark.parametrize("body", [jobs.raises_retry, jobs.araises_retry], ids=["thread", "coroutine"])


def attempts(handle):
    rows = TaskAttempt.objects.filter(task=handle.id).order_by("attempt")
    return list(rows.values_list("attempt", "outcome", "error_code", "will_retry"))


def delay_of(handle):
    """Seconds from the end of the only attempt to the next one."""
    row = Task.objects.get(pk=handle.id)
    return (row.next_retry_at - row.attempts.get().finished_at).total_seconds()


def failed(number, code, will_retry):
    return (number, "FAILED", code, will_retry)


# Retry.


@BOTH_RETRIES
def test_a_raised_retry_leads_to_another_attempt_that_may_succeed(drain, body):
    handle = body.send("key", 1)

    drain()

    assert handle.value(0) == 2
    row = Task.objects.get(pk=handle.id)
    assert (row.attempt, row.retry_count) == (2, 1)
    assert attempts(handle) == [failed(1, "TASK_RETRY", True), (2, "COMPLETED", "", False)]


@BOTH_RETRIES
def test_a_task_without_a_policy_is_retried_twice(drain, body):
    handle = body.send("key")

    drain()

    assert Entry.objects.count() == 3
    error = handle.get(0).err
    assert (error.error_code, error.exception["type"]) == ("TASK_RETRY", "horsies_django.exceptions.Retry")
    assert attempts(handle) == [failed(n, "TASK_RETRY", n < 3) for n in (1, 2, 3)]


def test_a_send_with_one_attempt_is_not_retried(drain):
    thrice = jobs.raises_retry_with_backoff
    handles = [
        body.with_options(**options).send(**arguments)
        for body, arguments in ((jobs.raises_retry, {"key": "key"}), (thrice, {}))
        for options in ({"max_attempts": 1}, {"retry_policy": None})
    ]

    drain()

    assert [attempts(handle) for handle in handles] == [[failed(1, "TASK_RETRY", False)]] * 4


def test_the_message_of_a_retry_is_stored(drain):
    handle = jobs.raises_retry.send("key")

    drain()

    assert handle.get(0).err.message == "not yet: 3"
    texts = TaskAttempt.objects.order_by("attempt").values_list("error_message", flat=True)
    assert list(texts) == ["not yet: 1", "not yet: 2", "not yet: 3"]


@pytest.mark.parametrize(
    ("kind", "code", "name"), [("connection", "DOWN", "ConnectionResetError"), ("value", "TASK_RETRY", "ValueError")]
)
def test_a_retry_raised_from_an_error_reports_that_error(drain, caplog, kind, code, name):
    handle = jobs.raises_retry_because_of.send(kind)

    drain()

    assert attempts(handle) == [failed(n, code, n < 3) for n in (1, 2, 3)]
    error, last = handle.get(0).err, TaskAttempt.objects.get(attempt=3)
    assert (error.error_code, error.message, error.exception["type"]) == (code, "no luck", f"builtins.{name}")
    assert (last.exception_class, last.error_message) == (f"builtins.{name}", "no luck")
    assert last.location == f"{jobs.raises_retry_because_of.module_path}"
    assert "Retry" not in error.exception["traceback"]
    assert caplog.records[-1].exc_info[0].__name__ == name
    with pytest.raises(TaskFailed) as failure:
        handle.value(0)
    assert type(failure.value.__cause__).__name__ == name


def test_a_retry_that_is_raised_while_an_error_is_handled_reports_itself(drain):
    handle = jobs.raises_retry_while_handling.send()

    drain()

    error = handle.get(0).err
    assert (error.error_code, error.message) == ("TASK_RETRY", "later")


def test_a_raised_retry_needs_no_code_in_the_policy_but_counts_against_max_retries(drain):
    policy = RetryPolicy.fixed([60], auto_retry_for=["SOMETHING_ELSE"])
    handle = jobs.raises_retry.with_options(retry_policy=policy).send("key")

    drain()

    assert attempts(handle) == [failed(1, "TASK_RETRY", True), failed(2, "TASK_RETRY", False)]
    assert handle.get(0).err.error_code == "TASK_RETRY"


def test_a_raised_retry_uses_all_of_a_larger_max_retries(drain):
    policy = RetryPolicy.exponential(max_retries=5, auto_retry_for=["SOMETHING_ELSE"])
    handle = jobs.raises_retry.with_options(retry_policy=policy).send("key")

    drain()

    assert len(attempts(handle)) == 6
    assert handle.status() == TaskStatus.FAILED


def test_retry_after_none_waits_for_the_policys_delay(drain):
    policy = RetryPolicy.fixed([50, 70], auto_retry_for=["SOMETHING_ELSE"], jitter=False)
    handle = jobs.raises_retry.with_options(retry_policy=policy).send("key", after=None)

    drain()

    assert 50 <= delay_of(handle) < 60


def test_retry_after_none_waits_for_the_tasks_backoff(drain):
    handle = jobs.raises_retry_with_backoff.send()

    drain()

    assert 40 <= delay_of(handle) < 50


def test_retry_after_none_without_a_policy_waits_about_two_seconds():
    handle = jobs.raises_retry.send("key", after=None)

    call_command("horsies_worker", once=True, verbosity=0)  # a slow drain would run the next attempt too

    assert 1.5 <= delay_of(handle) < 5


def test_retry_after_overrides_the_policys_delay(drain):
    policy = RetryPolicy.fixed([50], auto_retry_for=["*"], jitter=False)
    handle = jobs.raises_retry.with_options(retry_policy=policy).send("key", after=300)

    drain()

    row = Task.objects.get(pk=handle.id)
    assert 300 <= delay_of(handle) < 310
    assert row.enqueued_at == row.next_retry_at
    assert Task.objects.retrying().get() == row
    assert not Task.objects.scheduled().exists()


def test_a_raised_retry_later_than_good_until_fails_the_task(drain):
    soon = timezone.now() + timedelta(seconds=60)
    too_late = jobs.raises_retry.with_options(good_until=soon).send("too late", after=120)
    in_time = jobs.raises_retry.with_options(good_until=soon).send("in time", after=30)

    drain()

    assert (too_late.status(), in_time.status()) == (TaskStatus.FAILED, TaskStatus.PENDING)
    assert too_late.get(0).err.error_code == "TASK_RETRY"
    assert attempts(too_late) == [failed(1, "TASK_RETRY", False)]
    assert attempts(in_time) == [failed(1, "TASK_RETRY", True)]


def test_a_manual_retry_resets_the_retry_count(drain):
    handle = jobs.raises_retry.send("key", 4)
    drain()
    assert handle.status() == TaskStatus.FAILED

    handle.retry()
    drain()

    assert handle.value(0) == 5
    assert [number for number, *_ in attempts(handle)] == [1, 2, 3, 4, 5]


# Snooze.


def test_repeated_snoozes_use_no_attempt(drain):
    handle = jobs.raises_snooze.send("key", 10)

    drain()

    assert handle.value(0) == [11, 1]
    assert set(Entry.objects.values_list("key", flat=True)) == {"key attempt 1"}
    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.attempt, row.retry_count) == (TaskStatus.COMPLETED, 1, 0)
    assert attempts(handle) == [(1, "COMPLETED", "", False)]


def test_a_coroutine_can_snooze(drain):
    handle = jobs.araises_snooze.send("key")

    drain()

    assert handle.value(0) == 3
    assert attempts(handle) == [(1, "COMPLETED", "", False)]


def test_a_snoozed_task_is_scheduled_like_one_that_never_ran(drain):
    before = timezone.now()
    handle = jobs.raises_snooze.send("key", 1, 90)

    drain()

    row = Task.objects.scheduled().get()
    assert row.pk == handle.id
    assert not Task.objects.retrying().exists()
    assert (row.status, row.attempt, row.retry_count, row.attempts.count()) == (TaskStatus.PENDING, 0, 0, 0)
    assert (row.claimed_at, row.claimed_by_worker_id, row.started_at) == (None, None, None)
    assert (row.next_retry_at, row.result, row.error_code) == (None, None, None)
    assert row.enqueued_at - before > timedelta(seconds=89)
    assert row.enqueued_at - timezone.now() <= timedelta(seconds=90)


def test_a_snooze_after_a_retry_keeps_the_retry_count(drain):
    handle = jobs.fails_snoozes_ends.send("key")

    drain()

    assert handle.value(0) == [3, 2]
    row = Task.objects.get(pk=handle.id)
    assert (row.attempt, row.retry_count) == (2, 1)
    assert attempts(handle) == [failed(1, "UNHANDLED_EXCEPTION", True), (2, "COMPLETED", "", False)]


def test_a_task_that_snoozes_past_its_good_until_expires(drain):
    handle = jobs.raises_snooze.with_options(good_until=timezone.now() + timedelta(seconds=60)).send("key", 1, 120)
    drain()
    assert handle.status() == TaskStatus.PENDING

    Task.objects.update(good_until=F("sent_at"))
    drain(no_reaper=False)

    assert handle.status() == TaskStatus.EXPIRED
    assert Entry.objects.count() == 1
    assert attempts(handle) == []


@pytest.mark.slow
def test_an_idle_worker_wakes_for_a_snoozed_and_for_a_retried_task(worker):
    worker()
    snoozed, retried = jobs.raises_snooze.send("snoozed", 1, 1), jobs.raises_retry.send("retried", 1, 1)

    assert snoozed.value(timeout=20) == [2, 1]
    assert retried.value(timeout=20) == 2


def test_a_snoozed_task_can_be_cancelled(drain):
    handle = jobs.raises_snooze.send("key", 1, 90)
    drain()

    assert handle.cancel() is True

    assert wait_until(handle.status) == TaskStatus.CANCELLED


# Discard.


@pytest.mark.parametrize("body", [jobs.raises_discard, jobs.araises_discard], ids=["thread", "coroutine"])
def test_a_discarded_task_fails_at_once_even_with_retries_left(drain, body):
    handle = body.send("key")

    drain()

    error = handle.get(0).err
    row = Task.objects.get(pk=handle.id)
    assert (error.error_code, error.message) == ("TASK_DISCARDED", "no longer needed")
    assert (row.status, row.error_code, row.retry_count) == (TaskStatus.FAILED, "TASK_DISCARDED", 0)
    assert attempts(handle) == [failed(1, "TASK_DISCARDED", False)]
    assert Entry.objects.count() == 1


def test_a_policy_that_lists_task_discarded_does_not_retry_it(drain):
    policy = RetryPolicy.fixed([1], auto_retry_for=["TASK_DISCARDED", "*"])
    handle = jobs.raises_discard.with_options(retry_policy=policy).send("key")

    drain()

    assert attempts(handle) == [failed(1, "TASK_DISCARDED", False)]
    assert handle.retry() is True


# All control exceptions.


def test_a_control_exception_rolls_the_effects_of_an_atomic_task_back(drain):
    retry, snooze, discard = (jobs.raises_atomically.send("key", name) for name in ("retry", "snooze", "discard"))

    drain()

    assert (retry.status(), attempts(retry)) == ("PENDING", [failed(1, "TASK_RETRY", True)])
    assert (snooze.status(), attempts(snooze)) == ("PENDING", [])
    assert (discard.status(), attempts(discard)) == ("FAILED", [failed(1, "TASK_DISCARDED", False)])
    assert not Entry.objects.exists()


BAD = [-1, -0.001, float("nan"), float("inf"), 366 * 86_400, 10**400, True, "5", [5], timedelta(days=-1)]


@pytest.mark.django_db(transaction=False)
@pytest.mark.parametrize("value", BAD, ids=lambda value: repr(value)[:20])
def test_an_invalid_delay_is_refused_by_the_constructor(value):
    with pytest.raises(ValueError, match=r"Retry\(after=\) got .* allowed: seconds from 0 to a year"):
        Retry(after=value)
    with pytest.raises(ValueError, match=r"Snooze\(after=\) got .* allowed: seconds from 0 to a year"):
        Snooze(value)


def test_a_body_that_raises_with_an_invalid_delay_fails_with_value_error(drain):
    handles = [jobs.raises_invalid_delay.send(name, -5) for name in ("retry", "snooze")]

    drain()

    for error in (handle.get(0).err for handle in handles):
        assert (error.error_code, error.exception["type"]) == ("UNHANDLED_EXCEPTION", "builtins.ValueError")
        assert "got -5" in error.message


@pytest.mark.django_db(transaction=False)
def test_the_smallest_and_largest_delays_are_allowed():
    assert (Retry().after, Retry(after=0).after, Retry(after=timedelta(minutes=1)).after) == (None, 0.0, 60.0)
    assert (Snooze(0).after, Snooze(after=timedelta(days=365)).after) == (0.0, 31_536_000.0)
    assert str(Retry()) == "The task asked for another attempt."
    assert str(Discard()) == "The task gave up."
