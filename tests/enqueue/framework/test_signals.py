"""The framework's three signals: their senders, when and how often they are sent, and receivers that raise."""

import logging
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone

from horsies_django.backend import HorsiesBackend
from horsies_django.core.compat import (
    TaskResultStatus,
    default_task_backend,
    framework_signals,
    task_enqueued,
    task_finished,
    task_started,
)
from horsies_django.models import Task
from tests.enqueue.framework import jobs
from tests.enqueue.framework.conftest import SIGNALS

pytestmark = pytest.mark.once

READY, RUNNING, FAILED, SUCCESSFUL = (TaskResultStatus[name] for name in ("READY", "RUNNING", "FAILED", "SUCCESSFUL"))


def names(received):
    return [signal.name for signal in received]


@pytest.mark.django_db
@pytest.mark.parametrize("method", ["enqueue", "send"])
def test_enqueued_is_sent_once_after_the_insert(received, method):
    rows = []
    task_enqueued.connect(count_rows := lambda **kwargs: rows.append(Task.objects.count()), weak=False)

    result = getattr(jobs.add, method)(1, b=2)

    task_enqueued.disconnect(count_rows)
    (signal,) = received
    assert (signal.name, signal.sender, rows) == ("enqueued", HorsiesBackend, [1])
    assert (signal.result.id, signal.result.status, signal.result.task) == (str(result.id), READY, jobs.add)
    assert signal.result == default_task_backend.get_result(str(result.id))


@pytest.mark.django_db
@pytest.mark.parametrize("method", ["aenqueue", "asend"])
def test_enqueued_is_sent_once_from_a_coroutine(received, method):
    result = async_to_sync(getattr(jobs.add, method))(1)

    (signal,) = received
    assert (signal.name, signal.sender, signal.result.id) == ("enqueued", HorsiesBackend, str(result.id))


@pytest.mark.django_db
def test_enqueued_is_not_sent_for_a_refused_call(received):
    with pytest.raises(TypeError):
        jobs.echo.enqueue({1})

    assert received == []


@pytest.mark.django_db
@pytest.mark.parametrize("method", ["enqueue", "send"])
def test_enqueued_is_not_sent_for_a_call_that_finds_an_existing_task(received, method):
    unique = jobs.add.with_options(unique_key="only")

    first, second = getattr(unique, method)(1), getattr(unique, method)(1)

    assert first.id == second.id
    assert names(received) == ["enqueued"]


def test_a_successful_task_sends_each_signal_once_from_the_backend_class(drain, received):
    result = jobs.add.enqueue(1, b=2)

    drain()

    assert names(received) == ["enqueued", "started", "finished"]
    assert [signal.sender for signal in received] == [HorsiesBackend] * 3
    assert [signal.result.id for signal in received] == [result.id] * 3
    assert [signal.result.status for signal in received] == [READY, RUNNING, SUCCESSFUL]


@pytest.mark.parametrize("job", [jobs.add, jobs.awrite], ids=["sync", "async"])
def test_started_carries_a_running_result_with_its_first_attempt(drain, received, job):
    job.enqueue(1)

    drain()

    (started,) = (signal.result for signal in received if signal.name == "started")
    assert (started.status, started.attempts, len(started.worker_ids)) == (RUNNING, 1, 1)
    assert started.started_at == started.last_attempted_at is not None
    assert (started.finished_at, started.errors) == (None, [])


def test_finished_carries_the_stored_result(drain, received):
    result = jobs.add.enqueue(1, b=2)

    drain()

    (finished,) = (signal.result for signal in received if signal.name == "finished")
    result.refresh()
    assert finished == result
    assert (finished.return_value, finished.is_finished) == (3, True)
    assert finished.finished_at is not None


@pytest.mark.parametrize("job", [jobs.fail, jobs.afail], ids=["sync", "async"])
def test_a_receiver_of_finished_can_read_the_exception_of_a_failed_task(drain, received, job):
    job.enqueue("out of luck")

    drain()

    (finished,) = (signal for signal in received if signal.name == "finished")
    assert finished.sender is HorsiesBackend
    assert (finished.result.status, len(finished.result.errors)) == (FAILED, 1)
    assert (type(finished.exception), str(finished.exception)) == (jobs.Broken, "out of luck")
    assert finished.exception.__traceback__ is not None


def test_a_receiver_of_finished_finds_no_exception_of_a_successful_task(drain, received):
    jobs.fail.using(priority=1).enqueue()
    jobs.add.enqueue(1)

    drain(threads=1)

    finished = [signal for signal in received if signal.name == "finished"]
    assert sorted((signal.result.status, signal.exception is None) for signal in finished) == [
        (FAILED, False),
        (SUCCESSFUL, True),
    ]


@pytest.mark.parametrize(("fails", "status"), [(2, SUCCESSFUL), (3, FAILED)])
def test_finished_is_sent_for_the_final_attempt_only(drain, received, fails, status):
    jobs.flaky.enqueue("some", fails=fails)

    drain()

    assert names(received) == ["enqueued", *["started"] * 3, "finished"]
    assert [signal.result.attempts for signal in received if signal.name == "started"] == [1, 2, 3]
    assert (received[-1].result.status, received[-1].result.attempts) == (status, 3)


def test_finished_is_not_sent_while_a_task_waits_for_its_retry(drain, received):
    jobs.fail_and_wait.enqueue()

    drain()

    assert names(received) == ["enqueued", "started"]


def test_finished_is_sent_for_a_task_whose_code_is_missing(drain, received):
    row = Task.objects.create(task_name="tests.enqueue.framework.jobs.gone")

    drain()

    (finished,) = (signal for signal in received if signal.name == "finished")
    assert (finished.result.id, finished.result.status) == (str(row.pk), FAILED)


@pytest.mark.django_db(transaction=True)
def test_finished_is_sent_for_a_task_of_a_dead_worker(received, reap):
    result = jobs.add.enqueue(1)
    with transaction.atomic():
        Task.objects.claim("dead", start=1)
    Task.objects.update(started_at=timezone.now() - timedelta(hours=1))

    reap()

    result.refresh()
    assert result.status == FAILED
    assert names(received) == ["enqueued", "finished"]


@pytest.fixture(params=[RuntimeError, SystemError, ValueError], ids=lambda kind: kind.__name__)
def raising(request):
    """Connect a receiver that raises to every signal."""

    def receive(**kwargs):
        raise request.param("a receiver")

    for signal in SIGNALS.values():
        signal.connect(receive, weak=False)
    yield
    for signal in SIGNALS.values():
        signal.disconnect(receive)


@pytest.mark.slow
def test_receivers_that_raise_do_not_disturb_enqueueing_or_execution(drain, raising, received):
    result, failing = jobs.add.enqueue(1, b=2), jobs.fail.enqueue()
    async_to_sync(jobs.awrite.aenqueue)("in spite of it")
    handle = jobs.add.send(3, b=4)

    drain()

    result.refresh()
    failing.refresh()
    assert (result.return_value, failing.status, handle.value(0)) == (3, FAILED, 7)
    assert jobs.Entry.objects.filter(key="in spite of it").exists()
    assert sorted(names(received)) == ["enqueued"] * 4 + ["finished"] * 4 + ["started"] * 4


def test_a_custom_backend_is_the_sender_of_all_three_signals(drain, received, backend_settings):
    backend_settings(BACKEND="tests.enqueue.framework.jobs.OwnBackend")
    jobs.add.enqueue(1)

    drain()

    assert [(signal.name, signal.sender) for signal in received] == [
        ("enqueued", jobs.OwnBackend),
        ("started", jobs.OwnBackend),
        ("finished", jobs.OwnBackend),
    ]


def test_a_receiver_for_a_custom_backend_gets_signals_of_its_tasks_only(drain, backend_settings):
    received = []

    def receive(task_result, **kwargs):
        received.append((task_result.args, task_result.status))

    for signal in SIGNALS.values():
        signal.connect(receive, sender=jobs.OwnBackend)

    jobs.add.enqueue(1)
    drain()
    backend_settings(BACKEND="tests.enqueue.framework.jobs.OwnBackend")
    jobs.add.enqueue(2)
    drain()

    for signal in SIGNALS.values():
        signal.disconnect(receive, sender=jobs.OwnBackend)
    assert received == [([2], READY), ([2], RUNNING), ([2], SUCCESSFUL)]


LOGGER = framework_signals.logger.name


@pytest.mark.django_db
def test_the_framework_logs_each_enqueued_task(caplog):
    caplog.set_level(logging.DEBUG, LOGGER)

    result = jobs.add.enqueue(1)

    messages = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert messages == [f"Task id={result.id} path=tests.enqueue.framework.jobs.add enqueued backend=default"]


def test_a_worker_logs_its_own_lines_instead_of_the_frameworks(drain, caplog):
    caplog.set_level(logging.INFO)
    result = jobs.add.enqueue(1)

    drain()

    lines = [(record.name, record.getMessage()) for record in caplog.records if result.id in record.getMessage()]
    assert {name for name, _ in lines} == {"horsies_django.worker"}
    assert [line.split(" id=")[0] for _, line in lines] == ["task started", "task completed"]


def test_the_frameworks_receivers_are_connected_again_after_a_worker(drain):
    jobs.add.enqueue(1)

    drain()

    for signal, receiver in [
        (task_enqueued, framework_signals.log_task_enqueued),
        (task_started, framework_signals.log_task_started),
        (task_finished, framework_signals.log_task_finished),
    ]:
        assert signal.disconnect(receiver)
        signal.connect(receiver)
