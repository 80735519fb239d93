"""Retry, expiry, cancel and crash: who tells of them, when, and that nobody pays for what nobody hears."""

import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from horsies_django import OperationalCode, OutcomeCode, TaskError, TaskStatus, Workflow
from horsies_django.backend import HorsiesBackend
from horsies_django.core import signals
from horsies_django.core.compat import TaskResultStatus, default_task_backend
from horsies_django.enqueue.send_signals import dispatching_to
from horsies_django.models import Task, transitions
from horsies_django.models.attempt import AttemptError
from horsies_django.models.claims import Completion, WorkerInfo
from horsies_django.worker.execution import Execution
from horsies_django.worker.execution_result import ExecutionResult
from horsies_django.worker.signal_dispatcher import SignalDispatcher
from tests.conftest import wait_until
from tests.enqueue.framework import jobs as framework_jobs
from tests.worker.signals import jobs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

READY, FAILED = TaskResultStatus.READY, TaskResultStatus.FAILED


def names(heard):
    return [one.name for one in heard]


def reap():
    call_command("horsies_reaper", once=True, verbosity=0)


def past():
    return timezone.now() - timedelta(hours=1)


# Retry.


@pytest.mark.parametrize("job", [jobs.fail, jobs.afail], ids=["function", "coroutine"])
def test_a_retry_is_told_with_its_error_and_the_next_time(drain, heard, job):
    handle = job.send()

    drain()

    (retrying,) = heard
    assert (retrying.name, retrying.sender, retrying.result.id) == ("task_retrying", HorsiesBackend, str(handle.id))
    assert (retrying.result.status, len(retrying.result.errors)) == (READY, 1)
    assert retrying.facts["error"] == TaskError(error_code="BROKEN", message="no luck")
    assert retrying.facts["next_retry_at"] == handle.info().next_retry_at
    assert (type(retrying.exception), retrying.thread) == (jobs.Broken, "horsies-signals")


def test_each_retry_is_told_once_and_then_the_end(drain, heard):
    jobs.fail_thrice.send()

    drain()

    assert names(heard) == ["task_retrying", "task_retrying", "task_finished"]


@pytest.mark.once
def test_a_retry_that_would_come_too_late_is_none(drain, heard):
    handle = jobs.fail.with_options(good_until=timezone.now() + timedelta(minutes=30)).send()

    drain()

    assert handle.status() == TaskStatus.FAILED
    assert names(heard) == ["task_finished"]


@pytest.mark.once
def test_a_snooze_is_no_retry(drain, heard):
    jobs.snooze.send()

    drain()

    assert heard == []


@pytest.mark.once
def test_a_drain_waits_for_receivers_and_runs_what_they_send_whatever_they_raise(drain):
    sent = []

    def send_another(sender, task_result, **facts):
        if len(sent) < 3:
            time.sleep(0.2)  # a slow receiver: a drain that did not wait for it would have found nothing and left
            sent.append(jobs.succeed.send())
            sys.exit("from a receiver")

    signals.task_finished.connect(send_another)
    try:
        jobs.succeed.send()
        drain()
    finally:
        signals.task_finished.disconnect(send_another)

    assert [handle.status() for handle in sent] == [TaskStatus.COMPLETED] * 3


# Expiry.


def test_expiry_is_told_by_the_reaper(heard):
    late = [jobs.succeed.with_options(good_until=past()).send() for _ in range(3)]
    jobs.succeed.send()

    reap()
    reap()

    assert names(heard) == ["task_expired"] * 3
    assert {one.result.id for one in heard} == {str(handle.id) for handle in late}
    (error,) = heard[0].result.errors
    assert error.exception_class_path == "horsies_django.exceptions.TaskExpired"


def test_expiry_of_a_task_that_a_worker_had_claimed_is_told_after_the_commit(heard):
    handle = jobs.succeed.send()
    with transaction.atomic():
        claims = Task.objects.claim("w", start=0, prefetch=1)
        Task.objects.update(good_until=past())

    with transaction.atomic():
        assert Task.objects.start(claims, "w") == set()
        assert heard == []

    assert [(one.name, one.result.id) for one in heard] == [("task_expired", str(handle.id))]


@pytest.mark.once
def test_a_pump_hands_over_what_is_to_be_told_and_waits_for_no_receiver(heard):
    jobs.succeed.send().cancel()
    handed = []
    jobs.succeed.send()
    with transaction.atomic():
        claims = Task.objects.claim("w", start=0, prefetch=1)
        Task.objects.update(good_until=past())

    with dispatching_to(handed.append), transaction.atomic():
        Task.objects.start(claims, "w")

    assert names(heard) == ["task_cancelled"]
    for job in handed:
        job()
    assert names(heard) == ["task_cancelled", "task_expired"]


# Cancel.


def test_a_cancel_is_told_once_it_is_committed(heard):
    handle = jobs.succeed.send()

    with transaction.atomic():
        assert handle.cancel()
        assert heard == []
    assert not handle.cancel()

    (cancelled,) = heard
    assert (cancelled.name, cancelled.sender, cancelled.result.id) == (
        "task_cancelled",
        HorsiesBackend,
        str(handle.id),
    )
    assert cancelled.result.status == FAILED
    (error,) = cancelled.result.errors
    assert error.exception_class_path == "horsies_django.exceptions.TaskCancelled"


def test_a_cancel_that_is_rolled_back_is_not_told(heard):
    handle = jobs.succeed.send()

    with transaction.atomic():
        handle.cancel()
        transaction.set_rollback(True)

    assert (heard, handle.status()) == ([], TaskStatus.PENDING)


@pytest.mark.once
def test_many_are_cancelled_in_batches_and_only_what_may_be(heard, monkeypatch):
    monkeypatch.setattr(transitions, "BATCH", 3)
    jobs.succeed.send_many({} for _ in range(8))
    with transaction.atomic():
        (running,) = Task.objects.claim("w", start=1)

    assert Task.objects.cancel() == 7
    assert Task.objects.cancel(include_running=True) == 1

    assert names(heard) == ["task_cancelled"] * 8
    assert len({one.result.id for one in heard}) == 8
    assert heard[-1].result.id == str(running.task_id)


@pytest.mark.once
def test_a_cancel_by_key_and_that_of_a_workflow_are_told_too(heard):
    jobs.succeed.with_options(unique_key="one").send()
    flow = Workflow("flow", {"one": jobs.succeed.node()(), "other": jobs.succeed.node()()}).start()

    assert jobs.succeed.cancel("one")
    assert flow.cancel()

    assert names(heard) == ["task_cancelled"] * 3
    assert [one.result.task.unique_key for one in heard] == ["one", None, None]


@pytest.mark.once
def test_a_cancel_that_nobody_hears_asks_of_nothing_for_it():
    def statements():
        handle = jobs.succeed.send()
        with CaptureQueriesContext(connection) as captured:
            assert handle.cancel()
        return [query["sql"].split()[0] for query in captured if "NOTIFY" not in query["sql"].upper()]

    unheard = statements()
    signals.task_cancelled.connect(listen := lambda **facts: None, weak=False)
    heard = statements()

    signals.task_cancelled.disconnect(listen)
    assert unheard.count("UPDATE") == 1
    assert len(heard) > len(unheard) + 1  # which they are, and what they have become


# Crash.


def announce(claim, ended):
    """Have a worker tell what it takes for the end of its claim."""
    dispatcher = SignalDispatcher("default")
    dispatcher.enqueue_results(
        [ExecutionResult(Execution(claim, default_task_backend.config, WorkerInfo("w", "host", 1)), ended)]
    )
    dispatcher.close(5.0)


@pytest.fixture
def lost():
    """Have a worker that is gone for good with what it ran."""

    def lose(job):
        handle = job.send("key") if job is jobs.die_once else job.send()
        with transaction.atomic():
            Task.objects.claim("dead", start=1)
        Task.objects.filter(pk=handle.id).update(started_at=past())
        return handle

    return lose


def test_a_crash_with_no_retry_is_told_with_the_end_of_the_task(heard, lost):
    handle = lost(jobs.succeed)

    reap()

    assert names(heard) == ["task_crashed", "task_finished"]
    crashed = heard[0]
    assert (crashed.sender, crashed.result.id, crashed.result.status) == (HorsiesBackend, str(handle.id), FAILED)
    assert (crashed.facts["will_retry"], crashed.facts["error"].error_code) == (False, OperationalCode.WORKER_CRASHED)


def test_a_crash_with_a_retry_is_told_with_that(heard, lost):
    lost(jobs.die_once)

    reap()

    assert names(heard) == ["task_crashed", "task_retrying"]
    assert heard[0].facts["will_retry"] is True
    assert heard[1].facts["error"].error_code == OperationalCode.WORKER_CRASHED


def test_a_retry_by_a_worker_that_was_taken_for_dead_meanwhile_is_not_told(heard):
    jobs.die_once.send("key")
    with transaction.atomic():
        (claim,) = Task.objects.claim("w", start=1)
    Task.objects.update(started_at=past())
    reap()
    late = Completion(claim.task_id, claim.claim, "null", AttemptError("BROKEN", "no luck"), delay=1.0)

    announce(claim, late)

    assert names(heard) == ["task_crashed", "task_retrying"]


@pytest.mark.parametrize("how", ["crashed", "cancelled"])
def test_an_end_that_nobody_wants_any_more_is_told_by_whoever_made_another_of_it(heard, how):
    handle = jobs.succeed.send()
    with transaction.atomic():
        (claim,) = Task.objects.claim("w", start=1)
    if how == "crashed":
        Task.objects.update(started_at=past())
        reap()
    else:
        handle.cancel(include_running=True)

    announce(claim, Completion(claim.task_id, claim.claim, '{"ok":null}'))

    assert names(heard) == {"crashed": ["task_crashed", "task_finished"], "cancelled": ["task_cancelled"]}[how]


@pytest.mark.slow
def test_what_happens_in_a_real_worker_is_told_by_whoever_brought_it_about(worker, tmp_path):
    said = tmp_path / "said"
    said.touch()
    listening = {"DJANGO_SETTINGS_MODULE": "tests.worker.signals.settings", "SIGNALS_FILE": str(said)}
    worker("--threads", "1", "--prefetch", "1", TEST_CHECK_MS="200", **listening)

    def lines():
        return sorted(line.replace("task_", "", 1) for line in Path(said).read_text().splitlines())

    expired = jobs.succeed.with_options(good_until=past()).send()
    retried = jobs.fail.send()
    wait_until(lambda: len(lines()) >= 2)  # what a runner has to tell goes with it when it is killed
    dead, again = jobs.die.send(), jobs.die_once.send("once")

    expected = sorted(
        [
            f"expired {expired.id} {{}}",
            f"crashed {dead.id} {{'will_retry': False}}",
            f"finished {dead.id} {{}}",
            f"crashed {again.id} {{'will_retry': True}}",
            f"retrying {again.id} {{}}",
            f"finished {again.id} {{}}",
            f"retrying {retried.id} {{}}",
        ]
    )
    wait_until(lambda: len(lines()) >= len(expected), limit=60, what="seven signals")
    assert lines() == expected


# Receivers.


def test_receivers_that_raise_break_nothing(drain, heard):
    def receive(**kwargs):
        raise SystemError("a receiver")

    ours = [signals.task_retrying, signals.task_expired, signals.task_cancelled, signals.task_crashed]
    for signal in ours:
        signal.connect(receive, weak=False)
    retried, cancelled = jobs.fail.send(), jobs.succeed.send()
    expired = jobs.succeed.with_options(good_until=past()).send()

    cancelled.cancel()
    drain()
    reap()

    for signal in ours:
        signal.disconnect(receive)
    assert sorted(names(heard)) == ["task_cancelled", "task_expired", "task_retrying"]
    assert retried.info().retry_count == 1
    assert cancelled.get(0).err.error_code == OutcomeCode.TASK_CANCELLED
    assert expired.get(0).err.error_code == OutcomeCode.TASK_EXPIRED


@pytest.mark.once
def test_who_listens_to_a_backend_of_the_projects_own_hears_its_tasks_alone(settings):
    heard = []

    def listen(task_result, **facts):
        heard.append(task_result.id)

    signals.task_cancelled.connect(listen, sender=framework_jobs.OwnBackend)
    jobs.succeed.send().cancel()
    settings.TASKS = {"default": {**settings.TASKS["default"], "BACKEND": "tests.enqueue.framework.jobs.OwnBackend"}}
    own = jobs.succeed.send()
    own.cancel()

    signals.task_cancelled.disconnect(listen, sender=framework_jobs.OwnBackend)
    assert heard == [str(own.id)]
