"""Bodies that run longer than their time limit."""

import random
from datetime import timedelta
from functools import partial

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import TestCase
from django.utils import timezone

from horsies_django import RetryPolicy, TaskStatus
from horsies_django.models import Task, TaskAttempt
from tests.conftest import wait_until
from tests.jobs.models import Entry
from tests.jobs.tasks import ahold, write
from tests.worker.execution import jobs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

BOTH_KINDS = pytest.mark.parametrize("body", [jobs.spin, jobs.aspin], ids=["thread", "coroutine"])
BOTH_LIMITED = pytest.mark.parametrize("body", [jobs.limited, jobs.alimited], ids=["thread", "coroutine"])

#: Parts of log lines about faults of the worker rather than of a task.
STRAY = [
    "Exception in thread",
    "Exception ignored",
    "could not be built",
    "runner died",
    "can't be stopped",
    "database unavailable",
]


def strays(output):
    return [line for line in output.splitlines() if any(text in line for text in STRAY)]


LATER = RetryPolicy.fixed([60], auto_retry_for=["TASK_TIMEOUT"], jitter=False)


def keys():
    return set(Entry.objects.values_list("key", flat=True))


def over_its_limit(body, drain):
    """Run a body with growing timeouts until one passes after the body began: a busy machine needs a longer one."""
    for limit in (0.3, 3, 20):
        Entry.objects.all().delete()
        handle = body.with_options(timeout=limit).send("it")
        drain()
        if "it began" in keys():
            break
    return handle


@BOTH_LIMITED
def test_a_body_over_the_time_limit_is_stopped_and_uses_one_attempt(drain, body):
    handle = body.send()

    drain()

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.error_code, row.attempt, row.retry_count) == (TaskStatus.FAILED, "TASK_TIMEOUT", 1, 0)
    error = handle.get(0).err
    assert error.error_code == "TASK_TIMEOUT"
    assert "0.3 seconds" in error.message
    attempt = row.attempts.get()
    assert (attempt.outcome, attempt.error_code, attempt.will_retry) == ("FAILED", "TASK_TIMEOUT", False)
    assert attempt.worker_id == row.claimed_by_worker_id
    assert timedelta(seconds=0.29) <= attempt.finished_at - attempt.started_at < timedelta(seconds=10)


def test_an_interrupted_body_leaves_nothing_behind_that_hangs_a_traced_one(manage):
    """CPython 3.11 hangs in a traced function while an interrupt counts as pending."""
    limited = jobs.limited.with_options(priority=1).send()
    traced = jobs.traced.send()

    process = manage("horsies_worker", "--drain", "--processes", "1", "--threads", "1", "--no-reaper")

    wait_until(lambda: traced.status() == TaskStatus.COMPLETED, what="the traced body ends")
    assert process.wait() == 0
    assert limited.get(0).err.error_code == "TASK_TIMEOUT"


def test_the_traceback_shows_where_the_body_was_stopped(drain):
    handle = jobs.limited.send()

    drain()

    exception = handle.get(0).err.exception
    assert exception["type"] == "horsies_django.exceptions.TaskTimeLimit"
    assert "in loop" in exception["traceback"]


@pytest.mark.parametrize("body", [jobs.unhurried, jobs.aunhurried], ids=["thread", "coroutine"])
def test_a_body_that_finishes_in_time_is_completed(drain, body):
    handle = body.send(0.1)

    drain()

    assert handle.value(0) == "in time"
    assert TaskAttempt.objects.get().outcome == "COMPLETED"


@BOTH_KINDS
def test_a_send_can_set_its_timeout(drain, body):
    limited, free = body.with_options(timeout=0.2).send(), body.send(0.5)

    drain()

    assert limited.get(0).err.error_code == "TASK_TIMEOUT"
    assert free.value(0) == "in time"


def test_the_timeout_of_a_send_overrides_that_of_the_task(drain):
    longer = jobs.limited.with_options(timeout=30).send(0.6)
    none = jobs.limited.with_options(timeout=None).send(0.6)

    drain()

    assert longer.value(0) == none.value(0) == "in time"


@BOTH_KINDS
def test_the_workers_task_timeout_applies_to_tasks_without_a_timeout(drain, body):
    limited, own = body.send(), body.with_options(timeout=30).send(0.5)

    drain(task_timeout=0.2)

    assert limited.get(0).err.error_code == "TASK_TIMEOUT"
    assert own.value(0) == "in time"


def test_the_settings_can_set_task_timeout(drain, settings):
    options = {"worker": {"task_timeout": 0.2}}
    settings.TASKS = {"default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "OPTIONS": options}}
    handle = jobs.spin.send()

    drain()

    assert handle.get(0).err.error_code == "TASK_TIMEOUT"


def test_the_environment_variable_sets_task_timeout(manage):
    handle = jobs.spin.send()

    assert manage("horsies_worker", "--drain", HORSIES_WORKER_TASK_TIMEOUT="0.2").wait() == 0

    assert handle.get(0).err.error_code == "TASK_TIMEOUT"


def test_the_task_timeout_flag_overrides_the_environment_variable(worker):
    worker("--task-timeout", "0.2", HORSIES_WORKER_TASK_TIMEOUT="60")

    assert jobs.spin.send().get(timeout=20).err.error_code == "TASK_TIMEOUT"


@pytest.mark.django_db(transaction=False)
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "soon", True], ids=repr)
def test_an_invalid_timeout_is_refused_when_the_task_is_sent(value):
    with pytest.raises(Exception, match="timeout"):
        jobs.spin.with_options(timeout=value).send()
    assert not Task.objects.exists()


def test_a_timeout_is_retried_if_the_policy_lists_it(drain, worker):
    # The retry comes in a minute, so that even a slow drain does not run it.
    handle = jobs.slow_once.with_options(retry_policy=LATER).send("once")

    drain()

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.retry_count, row.error_code) == (TaskStatus.PENDING, 1, "TASK_TIMEOUT")
    attempt = row.attempts.get()
    assert (attempt.outcome, attempt.error_code, attempt.will_retry) == ("FAILED", "TASK_TIMEOUT", True)
    Task.objects.update(enqueued_at=timezone.now(), timeout=30)  # now due, with a long timeout
    worker()
    assert handle.value(timeout=20) == 2
    outcomes = TaskAttempt.objects.order_by("attempt").values_list("attempt", "error_code", "will_retry")
    assert list(outcomes) == [(1, "TASK_TIMEOUT", True), (2, "", False)]


def test_a_timeout_is_not_retried_if_the_policy_does_not_list_it(drain):
    policy = RetryPolicy.fixed([1], auto_retry_for=["UNHANDLED_EXCEPTION", "WORKER_CRASHED"])
    handle = jobs.limited.with_options(retry_policy=policy).send()

    drain()

    assert handle.get(0).err.error_code == "TASK_TIMEOUT"
    assert TaskAttempt.objects.get().will_retry is False


def test_a_timeout_error_of_the_body_is_not_a_task_timeout(drain):
    handle = jobs.own_timeout.with_options(timeout=30).send()

    drain()

    assert handle.get(0).err.error_code == "UNHANDLED_EXCEPTION"


def test_a_timed_out_thread_cleans_up_and_except_exception_does_not_catch_the_timeout(drain):
    handle = over_its_limit(jobs.tidy, drain)

    assert handle.get(0).err.error_code == "TASK_TIMEOUT"
    assert keys() == {"it began", "it TaskTimeLimit", "it cleaned up"}


def test_a_timed_out_coroutine_cleans_up(drain):
    handle = over_its_limit(jobs.atidy, drain)

    assert handle.get(0).err.error_code == "TASK_TIMEOUT"
    assert keys() == {"it began", "it CancelledError", "it cleaned up"}


def test_a_timed_out_atomic_task_leaves_no_effects(drain):
    handle = jobs.slow_atomic.send("atomic")

    drain()

    assert handle.get(0).err.error_code == "TASK_TIMEOUT"
    assert not keys()


def test_other_bodies_of_the_runner_continue_after_a_timeout(worker, tmp_path):
    process = worker("--threads", "3")
    siblings = [jobs.hold.send("thread", str(tmp_path / "gate")), ahold.send("coroutine", str(tmp_path / "gate"))]
    wait_until(lambda: len(keys()) == 2)
    late = [jobs.limited.send(), jobs.alimited.send()]

    assert {handle.get(timeout=20).err.error_code for handle in late} == {"TASK_TIMEOUT"}

    assert [handle.status() for handle in siblings] == [TaskStatus.RUNNING] * 2
    (tmp_path / "gate").touch()
    assert [handle.value(timeout=20) for handle in siblings] == ["thread", "coroutine"]
    assert TaskAttempt.objects.count() == 4
    assert TaskAttempt.objects.values("pid").distinct().count() == 1
    assert not strays(process.output)


def test_a_timeout_before_the_body_begins_affects_no_other_task(worker):
    """The shortest timeout passes while the row is still being read or the thread starts."""
    process = worker("--threads", "4")
    short = [jobs.spin.with_options(timeout=0.001).send(5) for _ in range(20)]
    short += [jobs.aspin.with_options(timeout=0.001).send(5) for _ in range(20)]
    good = [write.send(str(number)) for number in range(20)]

    assert {handle.get(timeout=30).err.error_code for handle in short} == {"TASK_TIMEOUT"}

    assert {handle.get(timeout=20).is_ok() for handle in good} == {True}
    assert TaskAttempt.objects.values("pid").distinct().count() == 1
    assert not strays(process.output)


@pytest.mark.slow
@pytest.mark.parametrize("body", [jobs.doze, jobs.aspin], ids=["thread", "coroutine"])
def test_a_timeout_at_the_very_end_of_a_body_interrupts_no_other_task(worker, body):
    """The exception reaches a thread asynchronously: it must interrupt this body or nothing."""
    process = worker("--threads", "16")
    limit = 0.1
    seconds = [limit + random.uniform(-0.006, 0.004) for _ in range(280)]
    seconds += [limit / 10, limit * 10] * 10  # on a slow machine the others may all be late
    sends = [body.with_options(timeout=limit).send(each) for each in seconds]

    codes = [None if (result := handle.get(timeout=60)).is_ok() else result.err.error_code for handle in sends]

    assert set(codes) <= {None, "TASK_TIMEOUT"}
    assert {None, "TASK_TIMEOUT"} <= set(codes), "no body or every body timed out: this tests nothing"
    print(f"{codes.count(None)} in time, {codes.count('TASK_TIMEOUT')} not")
    after = write.send_many({"key": str(number)} for number in range(100))
    assert {handle.get(timeout=30).is_ok() for handle in after} == {True}
    assert Entry.objects.count() == 100
    assert TaskAttempt.objects.count() == 400
    assert TaskAttempt.objects.values("pid").distinct().count() == 1
    assert not strays(process.output)


@pytest.mark.slow
def test_a_thread_that_times_out_in_a_transaction_can_use_the_database_again(worker):
    """The exception may come anywhere in the begin or end of a transaction."""
    threads = 4 if connection.vendor == "postgresql" else 2
    process = worker("--threads", str(threads))
    stopped = [jobs.transact.with_options(timeout=0.05).send() for _ in range(12 * threads)]
    assert {handle.get(timeout=60).err.error_code for handle in stopped} == {"TASK_TIMEOUT"}

    after = write.send_many({"key": str(number)} for number in range(50))

    results = [handle.get(timeout=30) for handle in after]
    assert [result.err for result in results if result.is_err()] == []
    assert Entry.objects.count() == 50
    assert not strays(process.output)


class InsideATestCase(TestCase):
    """Bodies run in the thread of the test."""

    def test_timeouts_apply_in_an_inline_drain(self):
        late, alate = jobs.limited.send(), jobs.alimited.send()
        good, agood = jobs.unhurried.send(0.05), jobs.aunhurried.send(0.05)
        retried = jobs.slow_once.with_options(retry_policy=LATER).send("once")

        call_command("horsies_worker", drain=True, verbosity=0)

        assert late.get(0).err.error_code == alate.get(0).err.error_code == "TASK_TIMEOUT"
        assert good.value(0) == agood.value(0) == "in time"
        assert Task.objects.retrying().get().pk == retried.id
        # There is no entry if the insert timed out.
        assert list(Entry.objects.values_list("key", flat=True)) in (["once"], [])

    def test_a_timed_out_body_cleans_up_in_an_inline_drain(self):
        handle = over_its_limit(jobs.tidy, partial(call_command, "horsies_worker", drain=True, verbosity=0))

        assert handle.get(0).err.error_code == "TASK_TIMEOUT"
        assert keys() == {"it began", "it TaskTimeLimit", "it cleaned up"}
