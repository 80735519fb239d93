"""Why a failed task was not retried, in one sentence, after real attempts."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.utils import timezone

from horsies_django import RetryPolicy
from horsies_django.models import Task, TaskAttempt
from horsies_django.ops.diagnosis import why_not_retried
from horsies_django.ops.diagnosis.retries import describe_retry_policy
from horsies_django.reaper.crashed import recover_all
from tests.jobs import tasks
from tests.ops import failing_jobs as jobs

pytestmark = pytest.mark.once


def policy(*codes, **options):
    return RetryPolicy.constant(1, max_retries=2, auto_retry_for=codes, **options)


def with_policy(task, *codes):
    return task.with_options(retry_policy=policy(*codes))


def soon():
    return timezone.now() + timedelta(seconds=50)


def late(task):
    """Return the task with a deadline before its first retry."""
    return task.with_options(
        retry_policy=RetryPolicy.constant(3_600, max_retries=2, auto_retry_for=["*"]), good_until=soon()
    )


CASES = [
    (lambda: tasks.fail.send(), "max_attempts is 1"),
    (lambda: tasks.fail.with_options(max_attempts=1).send(), "max_attempts is 1"),
    (lambda: tasks.flaky.send("k", 9), "3 of 3 attempts used"),
    (lambda: jobs.ask_again.send(), "3 of 3 attempts used"),
    (lambda: jobs.ask_again_because_of_an_error.send(), "3 of 3 attempts used"),
    (lambda: jobs.discard.send(), "Discard was raised"),
    (lambda: with_policy(jobs.discard, "*").send(), "Discard was raised"),
    (
        lambda: with_policy(jobs.decline, "DOWN", "builtins.KeyError").send(),
        "its retry policy covers DOWN, builtins.KeyError, not Declined.",
    ),
    (
        lambda: with_policy(jobs.decline_with_code, "DOWN").send(),
        "its retry policy covers DOWN, not Declined (DECLINED).",
    ),
    (lambda: with_policy(jobs.return_error, "DOWN").send(), "its retry policy covers DOWN, not SOLD_OUT."),
    (lambda: late(jobs.decline).send(), "the next attempt would start after its deadline"),
    (lambda: jobs.give_up.send(), "its backoff function returned no delay"),
    (
        lambda: jobs.give_up.with_options(good_until=soon()).send(),
        "its backoff function returned no delay or the next attempt would start after its deadline",
    ),
]


@pytest.mark.parametrize(("send", "reason"), CASES)
def test_the_sentence_says_what_prevented_a_retry(drain, send, reason):
    handle = send()
    drain()

    row = Task.objects.get(pk=handle.id)
    attempt = row.attempts.order_by("-attempt").first()

    assert row.status == "FAILED"
    assert why_not_retried(row, attempt).startswith(f"Not retried: {reason}")


def test_an_error_that_no_attempt_can_fix_is_named(drain):
    handle = with_policy(jobs.decline, "*").send()
    Task.objects.update(kwargs={"gone": 1})
    drain()

    row = Task.objects.get(pk=handle.id)

    assert why_not_retried(row, row.attempts.get()) == "Not retried: another attempt can't fix ARGUMENT_TYPE_MISMATCH."


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("codes", "found"), [(["DOWN"], "Not retried: its retry policy covers DOWN, not WORKER_CRASHED."), (["*"], "")]
)
def test_a_crash_is_retried_only_if_the_policy_covers_it(codes, found):
    handle = with_policy(jobs.give_up, *codes).send()
    rows = Task.objects.filter(pk=handle.id)
    rows.update(status="RUNNING", claim=1, attempt=1, claimed_by_worker_id="w", claimed_at=Now(), started_at=Now())
    recover_all(rows)

    row = rows.get()
    assert row.status == ("FAILED" if found else "PENDING")
    assert why_not_retried(row, row.attempts.get()) == found


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("columns", "exception_class", "reason"),
    [
        ({"error_code": "WORKER_ROW_UNREADABLE"}, "", "its row can't be read"),
        ({"retry_policy": {"odd": 1}}, "", "the stored retry policy is invalid"),
        ({"retry_policy": policy("a.Gone").as_json()}, "b.Gone", "its retry policy covers a.Gone, not Gone"),
        ({"retry_policy": policy("b.Gone").as_json()}, "b.Gone", ""),
        ({"retry_policy": policy("builtins.LookupError").as_json()}, "builtins.KeyError", ""),
        (
            {"retry_policy": policy("a.Gone").as_json(), "good_until": "2020-01-01T00:00:00Z"},
            "b.Gone",
            "its retry policy covers a.Gone, not Gone or the next attempt would start after its deadline",
        ),
    ],
)
def test_what_the_row_does_not_tell_for_certain_is_not_claimed(columns, exception_class, reason):
    values = {"error_code": "UNHANDLED_EXCEPTION", "max_retries": 2, **columns}
    row = Task(task_name="gone.task", status="FAILED", attempt=1, **values)

    found = why_not_retried(row, TaskAttempt(outcome="FAILED", attempt=1, exception_class=exception_class))

    assert found == (f"Not retried: {reason}." if reason else "")


def test_a_policy_of_a_row_with_billions_of_retries_is_described_at_once():
    task = Task(retry_policy=policy("*").as_json(), max_retries=2**31 - 1)

    assert describe_retry_policy(task).startswith("Up to 2147483648 attempts.")


@pytest.mark.parametrize("status", ["PENDING", "RUNNING", "COMPLETED", "CANCELLED", "EXPIRED"])
def test_a_task_that_has_not_failed_needs_no_reason(status):
    assert why_not_retried(Task(status=status), None) == ""


def test_a_module_with_attributes_of_its_own_making_is_not_asked_for_the_class(monkeypatch):
    def load(name):
        raise ImportError(f"{name} needs an extra")

    monkeypatch.setattr(jobs, "__getattr__", load, raising=False)
    task = Task(
        status="FAILED",
        attempt=1,
        max_retries=2,
        error_code="UNHANDLED_EXCEPTION",
        retry_policy=policy("builtins.KeyError").as_json(),
    )

    reason = why_not_retried(task, TaskAttempt(attempt=1, exception_class=f"{jobs.__name__}.Lazy", outcome="FAILED"))

    assert "Lazy" in reason
