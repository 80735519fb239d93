"""The signals of retry, expiry, cancel and crash: which process sends them, when, and at what cost."""

import sys
import time
from datetime import timedelta

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
from horsies_django.worker.execution import Execution, ExecutionResult
from horsies_django.worker.signal_dispatcher import SignalDispatcher
from tests.conftest import wait_until
from tests.enqueue.framework import jobs as framework_jobs
from tests.worker.signals import jobs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

READY, FAILED = TaskResultStatus.READY, TaskResultStatus.FAILED


def names(received):
    return [one.name for one in received]


def reap():
    call_command("horsies_reaper", once=True, verbosity=0)


def past():
    return timezone.now() - timedelta(hours=1)


# Retry.


@pytest.mark.parametrize("job", [jobs.fail, jobs.afail], ids=["function", "coroutine"])
def test_task_retrying_carries_the_error_and_the_time_of_the_retry(drain, received, job):
    handle = job.send()

    drain()

    (retrying,) = received
    assert (retrying.name, retrying.sender, retrying.result.id) == ("task_retrying", HorsiesBackend, str(handle.id))
    assert (retrying.result.status, len(retrying.result.errors)) == (READY, 1)
    assert retrying.facts["error"] == TaskError(error_code="BROKEN", message="no luck")
    assert retrying.facts["next_retry_at"] == handle.info().next_retry_at
    assert (type(retrying.exception), retrying.thread) == (jobs.Broken, "horsies-signals")


def test_task_retrying_is_sent_once_for_each_retry_before_task_finished(drain, received):
    jobs.fail_thrice.send()

    drain()

    assert names(received) == ["task_retrying", "task_retrying", "task_finished"]


@pytest.mark.once
def test_task_retrying_is_not_sent_when_the_retry_would_be_too_late(drain, received):
    handle = jobs.fail.with_options(good_until=timezone.now() + timedelta(minutes=30)).send()

    drain()

    assert handle.status() == TaskStatus.FAILED
    assert names(received) == ["task_finished"]


@pytest.mark.once
def test_a_snooze_sends_no_signal(drain, received):
    jobs.snooze.send()

    drain()

    assert received == []


@pytest.mark.slow
@pytest.mark.once
def test_a_drain_waits_for_raising_receivers_and_runs_the_tasks_that_they_send(drain):
    sent = []

    def send_another(sender, task_result, **facts):
        if len(sent) < 3:
            time.sleep(0.2)  # a drain that did not wait for this slow receiver would end without its task
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


@pytest.mark.slow
def test_the_reaper_sends_task_expired(received):
    late = [jobs.succeed.with_options(good_until=past()).send() for _ in range(3)]
    jobs.succeed.send()

    reap()
    reap()

    assert names(received) == ["task_expired"] * 3
    assert {one.result.id for one in received} == {str(handle.id) for handle in late}
    (error,) = received[0].result.errors
    assert error.exception_class_path == "horsies_django.exceptions.TaskExpired"


def test_task_expired_of_a_claimed_task_is_sent_after_the_commit(received):
    handle = jobs.succeed.send()
    with transaction.atomic():
        claims = Task.objects.claim("w", start=0, prefetch=1)
        Task.objects.update(good_until=past())

    with transaction.atomic():
        assert Task.objects.start(claims, "w") == set()
        assert received == []

    assert [(one.name, one.result.id) for one in received] == [("task_expired", str(handle.id))]


@pytest.mark.once
def test_a_producer_queues_signals_instead_of_waiting_for_receivers(received):
    jobs.succeed.send().cancel()
    handed = []
    jobs.succeed.send()
    with transaction.atomic():
        claims = Task.objects.claim("w", start=0, prefetch=1)
        Task.objects.update(good_until=past())

    with dispatching_to(handed.append), transaction.atomic():
        Task.objects.start(claims, "w")

    assert names(received) == ["task_cancelled"]
    for job in handed:
        job()
    assert names(received) == ["task_cancelled", "task_expired"]


# Cancel.


def test_task_cancelled_is_sent_after_the_commit(received):
    handle = jobs.succeed.send()

    with transaction.atomic():
        assert handle.cancel()
        assert received == []
    assert not handle.cancel()

    (cancelled,) = received
    assert (cancelled.name, cancelled.sender, cancelled.result.id) == (
        "task_cancelled",
        HorsiesBackend,
        str(handle.id),
    )
    assert cancelled.result.status == FAILED
    (error,) = cancelled.result.errors
    assert error.exception_class_path == "horsies_django.exceptions.TaskCancelled"


def test_a_rolled_back_cancel_sends_no_signal(received):
    handle = jobs.succeed.send()

    with transaction.atomic():
        handle.cancel()
        transaction.set_rollback(True)

    assert (received, handle.status()) == ([], TaskStatus.PENDING)


@pytest.mark.once
def test_a_bulk_cancel_sends_task_cancelled_for_each_task_of_every_batch(received, monkeypatch):
    monkeypatch.setattr(transitions, "BATCH", 3)
    jobs.succeed.send_many({} for _ in range(8))
    with transaction.atomic():
        (running,) = Task.objects.claim("w", start=1)

    assert Task.objects.cancel() == 7
    assert Task.objects.cancel(include_running=True) == 1

    assert names(received) == ["task_cancelled"] * 8
    assert len({one.result.id for one in received}) == 8
    assert received[-1].result.id == str(running.task_id)


@pytest.mark.once
def test_cancels_by_key_and_of_a_workflow_send_task_cancelled(received):
    jobs.succeed.with_options(unique_key="one").send()
    flow = Workflow("flow", {"one": jobs.succeed.node()(), "other": jobs.succeed.node()()}).start()

    assert jobs.succeed.cancel("one")
    assert flow.cancel()

    assert names(received) == ["task_cancelled"] * 3
    assert [one.result.task.unique_key for one in received] == ["one", None, None]


@pytest.mark.once
def test_a_cancel_without_receivers_needs_no_extra_statements():
    def statements():
        handle = jobs.succeed.send()
        with CaptureQueriesContext(connection) as captured:
            assert handle.cancel()
        return [query["sql"].split()[0] for query in captured if "NOTIFY" not in query["sql"].upper()]

    without_receiver = statements()
    signals.task_cancelled.connect(listen := lambda **facts: None, weak=False)
    with_receiver = statements()

    signals.task_cancelled.disconnect(listen)
    assert without_receiver.count("UPDATE") == 1
    assert len(with_receiver) > len(without_receiver) + 1  # it selects the ids, then reads the rows


# Crash.


def report_end(claim, ended):
    """Have a worker report an end of its claim."""
    dispatcher = SignalDispatcher("default")
    dispatcher.enqueue_results(
        [ExecutionResult(Execution(claim, default_task_backend.config, WorkerInfo("w", "host", 1)), ended)]
    )
    dispatcher.close(5.0)


@pytest.fixture
def task_of_a_dead_worker():
    """Return a function that sends a task and leaves it running under a dead worker."""

    def lose(job):
        handle = job.send("key") if job is jobs.die_once else job.send()
        with transaction.atomic():
            Task.objects.claim("dead", start=1)
        Task.objects.filter(pk=handle.id).update(started_at=past())
        return handle

    return lose


def test_a_crash_without_a_retry_sends_task_crashed_and_task_finished(received, task_of_a_dead_worker):
    handle = task_of_a_dead_worker(jobs.succeed)

    reap()

    assert names(received) == ["task_crashed", "task_finished"]
    crashed = received[0]
    assert (crashed.sender, crashed.result.id, crashed.result.status) == (HorsiesBackend, str(handle.id), FAILED)
    assert (crashed.facts["will_retry"], crashed.facts["error"].error_code) == (False, OperationalCode.WORKER_CRASHED)


def test_a_crash_with_a_retry_sends_task_crashed_and_task_retrying(received, task_of_a_dead_worker):
    task_of_a_dead_worker(jobs.die_once)

    reap()

    assert names(received) == ["task_crashed", "task_retrying"]
    assert received[0].facts["will_retry"] is True
    assert received[1].facts["error"].error_code == OperationalCode.WORKER_CRASHED


@pytest.mark.slow
def test_a_retry_by_a_worker_that_lost_its_claim_sends_no_signal(received):
    jobs.die_once.send("key")
    with transaction.atomic():
        (claim,) = Task.objects.claim("w", start=1)
    Task.objects.update(started_at=past())
    reap()
    late = Completion(claim.task_id, claim.claim, "null", AttemptError("BROKEN", "no luck"), delay=1.0)

    report_end(claim, late)

    assert names(received) == ["task_crashed", "task_retrying"]


@pytest.mark.parametrize("how", ["crashed", "cancelled"])
def test_an_end_by_a_worker_that_lost_its_claim_sends_no_signal(received, how):
    handle = jobs.succeed.send()
    with transaction.atomic():
        (claim,) = Task.objects.claim("w", start=1)
    if how == "crashed":
        Task.objects.update(started_at=past())
        reap()
    else:
        handle.cancel(include_running=True)

    report_end(claim, Completion(claim.task_id, claim.claim, '{"ok":null}'))

    assert names(received) == {"crashed": ["task_crashed", "task_finished"], "cancelled": ["task_cancelled"]}[how]


@pytest.mark.slow
def test_the_processes_of_a_real_worker_send_each_signal_once(worker, tmp_path):
    file = tmp_path / "signals"
    file.touch()
    listening = {"DJANGO_SETTINGS_MODULE": "tests.worker.signals.settings", "SIGNALS_FILE": str(file)}
    worker("--threads", "1", "--prefetch", "1", TEST_CHECK_MS="200", **listening)

    def lines():
        return sorted(line.replace("task_", "", 1) for line in file.read_text().splitlines())

    expired = jobs.succeed.with_options(good_until=past()).send()
    retried = jobs.fail.send()
    wait_until(lambda: len(lines()) >= 2)  # a runner that is killed loses its queued signals
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


@pytest.mark.slow
def test_raising_receivers_change_no_task(drain, received):
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
    assert sorted(names(received)) == ["task_cancelled", "task_expired", "task_retrying"]
    assert retried.info().retry_count == 1
    assert cancelled.get(0).err.error_code == OutcomeCode.TASK_CANCELLED
    assert expired.get(0).err.error_code == OutcomeCode.TASK_EXPIRED


@pytest.mark.once
def test_a_receiver_with_a_custom_backend_as_sender_gets_only_its_signals(settings):
    received = []

    def listen(task_result, **facts):
        received.append(task_result.id)

    signals.task_cancelled.connect(listen, sender=framework_jobs.OwnBackend)
    jobs.succeed.send().cancel()
    settings.TASKS = {"default": {**settings.TASKS["default"], "BACKEND": "tests.enqueue.framework.jobs.OwnBackend"}}
    own = jobs.succeed.send()
    own.cancel()

    signals.task_cancelled.disconnect(listen, sender=framework_jobs.OwnBackend)
    assert received == [str(own.id)]
