"""Results, as a backend or a task returns them: their source, states, errors and retries."""

from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from horsies_django import RetryPolicy, TaskHandle, TaskStatus
from horsies_django.core import exceptions
from horsies_django.core.compat import (
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    default_task_backend,
    task_backends,
)
from horsies_django.models import Task
from tests.conftest import wait_until
from tests.enqueue.framework import jobs

pytestmark = pytest.mark.once

READY, RUNNING, FAILED, SUCCESSFUL = (TaskResultStatus[name] for name in ("READY", "RUNNING", "FAILED", "SUCCESSFUL"))


@pytest.fixture(params=["get_result", "aget_result"])
def get_result(request):
    """Get a result from a backend or a task, with ``get_result()`` or ``aget_result()``."""

    def call(source, key):
        method = getattr(source, request.param)
        return method(key) if request.param == "get_result" else async_to_sync(method)(key)

    return call


@pytest.fixture(params=["refresh", "arefresh"])
def refresh(request):
    """Refresh a result, with ``refresh()`` or ``arefresh()``."""

    def call(result):
        method = getattr(result, request.param)
        return method() if request.param == "refresh" else async_to_sync(method)()

    return call


def claim(*, start, worker="dead"):
    """Claim the due tasks for a worker that does not exist."""
    with transaction.atomic():
        Task.objects.claim(worker, start=start, prefetch=1 - start)


# Sources.


@pytest.mark.django_db
def test_get_result_returns_the_enqueued_result(get_result):
    result = jobs.add.enqueue(1, b=2)

    assert get_result(default_task_backend, result.id) == result
    assert get_result(task_backends["default"], result.id) == result
    assert get_result(jobs.add, result.id) == result


VARIANTS = {
    "a priority": lambda: jobs.add.using(priority=5),
    "a queue": lambda: jobs.add.using(queue_name="emails"),
    "a future time": lambda: jobs.add.using(run_after=timezone.now() + timedelta(hours=1)),
    "a past time": lambda: jobs.add.using(run_after=timezone.now() - timedelta(hours=1)),
    "a delay": lambda: jobs.add.using(run_after=timedelta(hours=1)),
    "no delay": lambda: jobs.add.using(run_after=timedelta()),
    "a timeout": lambda: jobs.add.with_options(timeout=5),
    "a unique key": lambda: jobs.add.with_options(unique_key="only"),
    "a deadline": lambda: jobs.add.with_options(good_until=timezone.now() + timedelta(hours=1)),
    "a policy": lambda: jobs.add.with_options(retry_policy=RetryPolicy.fixed([60], auto_retry_for=["*"])),
    "metadata": lambda: jobs.add.with_options(metadata={"team": "mail"}),
    "a retention": lambda: jobs.add.with_options(retention="7d"),
    "a retention by state": lambda: jobs.add.with_options(retention={"completed": None, "failed": 60}),
    "a task of the framework's own class": lambda: jobs.plain,
}


@pytest.mark.django_db
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_get_result_returns_the_options_of_the_enqueued_task(variant):
    result = variant().enqueue(1)

    assert default_task_backend.get_result(result.id) == result


@pytest.mark.django_db
def test_the_task_of_a_result_has_the_original_function():
    result = jobs.add.using(priority=5).enqueue(1)

    assert default_task_backend.get_result(result.id).task.func is jobs.add.func


@pytest.mark.django_db
def test_get_result_accepts_the_id_of_a_handle():
    handle = jobs.add.send(1)

    assert jobs.add.get_result(str(handle.id)).status == READY


@pytest.mark.django_db
@pytest.mark.parametrize(
    "key",
    [
        "123",
        "",
        "-1",
        "x" * 63,
        "a" * 32 + "-",
        "\0",
        "../../etc",
        "98416db2-ca74-4bab-a7f9-0980bd0940a4",
        "A40F43A3-C97B-40C4-880C-5082A530C59F",
        "🐎",
        None,
        7,
    ],
    ids=repr,
)
def test_an_unknown_id_raises_task_result_does_not_exist(get_result, key):
    jobs.add.enqueue(1)

    with pytest.raises(TaskResultDoesNotExist):
        get_result(default_task_backend, key)
    with pytest.raises(TaskResultDoesNotExist):
        get_result(jobs.add, key)


@pytest.mark.django_db
def test_the_result_of_another_task_raises_task_result_mismatch(get_result):
    result = jobs.add.enqueue(1)

    with pytest.raises(TaskResultMismatch, match=r"tests\.enqueue\.framework\.jobs\.add"):
        get_result(jobs.subtract, result.id)


@pytest.mark.django_db
def test_a_changed_copy_of_a_task_can_get_its_results(get_result):
    result = jobs.add.enqueue(1)

    assert get_result(jobs.add.using(priority=9, queue_name="emails"), result.id) == result


@pytest.mark.django_db
def test_a_result_can_be_read_after_its_queue_leaves_the_settings(backend_settings, get_result):
    result = jobs.add.using(queue_name="emails").enqueue(1)
    backend_settings(QUEUES=["default"])

    loaded = get_result(default_task_backend, result.id)

    assert (loaded, loaded.task.queue_name) == (result, "emails")


@pytest.mark.django_db
def test_refreshing_a_deleted_task_raises_task_result_does_not_exist(refresh):
    result = jobs.add.enqueue(1)
    Task.objects.all().delete()

    with pytest.raises(TaskResultDoesNotExist):
        refresh(result)


# Refreshing and repeated reads.


def test_refreshing_loads_the_current_state(drain, refresh):
    result = jobs.add.enqueue(1, b=2)
    enqueued_at = result.enqueued_at
    drain()
    assert result.status == READY

    refresh(result)

    assert (result.status, result.is_finished, result.return_value) == (SUCCESSFUL, True, 3)
    assert (result.attempts, len(result.worker_ids), result.errors) == (1, 1, [])
    assert result.enqueued_at == enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at
    assert result == default_task_backend.get_result(result.id)


def test_get_result_returns_an_equal_result_each_time(drain, get_result):
    result = jobs.fail.enqueue()
    drain()

    first, second = get_result(jobs.fail, result.id), get_result(jobs.fail, result.id)

    assert first == second
    assert first.id == result.id
    assert (first.task, first.args, first.kwargs) == (result.task, result.args, result.kwargs)


# States.


@pytest.mark.django_db
def test_a_task_has_no_return_value_before_it_starts():
    result = jobs.add.enqueue(1)

    with pytest.raises(ValueError, match=r"^Task has not finished yet$"):
        _ = result.return_value


def test_get_result_shows_a_running_task_as_running(drain):
    result = jobs.get_own_result.enqueue()

    drain()

    result.refresh()
    assert result.return_value == {"status": "RUNNING", "value": "Task has not finished yet", "same": True}


def test_a_failed_task_has_no_return_value(drain):
    result = jobs.fail.enqueue()

    drain()

    result.refresh()
    assert (result.status, result.is_finished) == (FAILED, True)
    with pytest.raises(ValueError, match=r"^Task failed$"):
        _ = result.return_value


def test_none_is_a_valid_return_value(drain):
    result = jobs.give.enqueue("None")

    drain()

    result.refresh()
    assert (result.status, result.return_value) == (SUCCESSFUL, None)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("start", "status", "seen"), [(0, TaskStatus.CLAIMED, READY), (1, TaskStatus.RUNNING, RUNNING)]
)
def test_a_claimed_task_is_ready_until_its_body_starts(start, status, seen):
    result = jobs.add.enqueue(1)
    claim(start=start, worker="some worker")

    result.refresh()

    assert TaskHandle(result.id).status() == status
    assert (result.status, result.is_finished) == (seen, False)
    assert result.worker_ids == ["some worker"] * start
    assert (result.started_at is not None) == (result.last_attempted_at is not None) == bool(start)


@pytest.mark.django_db
def test_every_task_state_maps_to_one_of_the_frameworks_four():
    result = jobs.add.enqueue(1)

    for status in TaskStatus:
        now = timezone.now()
        Task.objects.update(status=status, completed_at=now, failed_at=now, cancelled_at=now, expired_at=now)
        result.refresh()
        assert result.status in TaskResultStatus
        assert isinstance(result.status, TaskResultStatus)
        assert result.is_finished == status.is_terminal
        assert (result.finished_at is not None) == status.is_terminal


# Errors.


def only_error(result):
    result.refresh()
    (error,) = result.errors
    return error


@pytest.mark.parametrize("job", [jobs.fail, jobs.afail], ids=["sync", "async"])
def test_an_error_has_the_path_of_its_class_and_a_full_traceback(drain, job):
    result = job.enqueue("out of luck")

    drain()

    error = only_error(result)
    assert error.exception_class_path == "tests.enqueue.framework.jobs.Broken"
    assert error.exception_class is jobs.Broken
    assert error.traceback.startswith("Traceback (most recent call last):\n")
    assert error.traceback.endswith("tests.enqueue.framework.jobs.Broken: out of luck\n")
    assert f"in {job.name}\n" in error.traceback


def test_an_error_of_a_nested_class_has_its_qualified_name(drain):
    result = jobs.fail_nested.enqueue()

    drain()

    error = only_error(result)
    assert error.exception_class_path == "tests.enqueue.framework.jobs.Outer.Nested"
    assert error.traceback.endswith("tests.enqueue.framework.jobs.Outer.Nested: deep\n")


def test_a_builtin_error_has_a_path_in_builtins(drain):
    result = jobs.add.enqueue(1, b="2")

    drain()

    error = only_error(result)
    assert error.exception_class_path == "builtins.TypeError"
    assert error.exception_class is TypeError
    assert error.traceback.splitlines()[-1].startswith("TypeError: unsupported operand")


def test_a_returned_error_has_the_class_task_failed(drain):
    result = jobs.return_error.enqueue()

    drain()

    error = only_error(result)
    assert result.status == FAILED
    assert error.exception_class is exceptions.TaskFailed
    assert error.traceback == "horsies_django.exceptions.TaskFailed: the server is away\n"


@pytest.mark.django_db
def test_a_cancelled_task_has_failed_with_task_cancelled():
    result = jobs.add.enqueue(1)
    TaskHandle(result.id).cancel()

    error = only_error(result)

    assert (result.status, result.is_finished, result.attempts) == (FAILED, True, 0)
    assert result.finished_at is not None
    assert error.exception_class is exceptions.TaskCancelled
    assert error.traceback == "horsies_django.exceptions.TaskCancelled: The task was cancelled.\n"
    with pytest.raises(ValueError, match=r"^Task failed$"):
        _ = result.return_value


@pytest.mark.django_db
def test_a_task_cancelled_while_it_runs_lists_the_worker_of_its_attempt():
    result = jobs.add.enqueue(1)
    claim(start=1, worker="some worker")
    TaskHandle(result.id).cancel(include_running=True)

    error = only_error(result)

    assert (result.status, result.worker_ids) == (FAILED, ["some worker"])
    assert error.exception_class is exceptions.TaskCancelled


@pytest.mark.django_db(transaction=True)
def test_an_expired_task_has_failed_with_task_expired(reap):
    soon = timezone.now() + timedelta(milliseconds=20)
    result = jobs.add.with_options(good_until=soon).enqueue(1)

    wait_until(lambda: reap() or TaskHandle(result.id).status() == TaskStatus.EXPIRED, what="the task expires")

    error = only_error(result)
    assert (result.status, result.is_finished, result.attempts) == (FAILED, True, 0)
    assert result.finished_at is not None
    assert error.exception_class is exceptions.TaskExpired
    assert error.traceback.startswith("horsies_django.exceptions.TaskExpired: ")
    assert error.traceback.endswith("\n")


@pytest.mark.django_db(transaction=True)
def test_a_task_of_a_dead_worker_has_failed_with_worker_crashed(reap):
    result = jobs.add.enqueue(1)
    claim(start=1)
    Task.objects.update(started_at=timezone.now() - timedelta(hours=1))

    reap()

    error = only_error(result)
    assert (result.status, result.worker_ids) == (FAILED, ["dead"])
    assert error.exception_class is exceptions.WorkerCrashed
    assert error.traceback.startswith("horsies_django.exceptions.WorkerCrashed: The worker died")
    assert error.traceback.endswith("\n")


@pytest.mark.parametrize(
    "name", ["TaskFailed", "TaskCancelled", "TaskExpired", "WorkerCrashed", "TaskNotResolved"], ids=str
)
def test_every_error_class_of_horsies_can_be_imported(name):
    kind = import_string(f"horsies_django.exceptions.{name}")

    assert issubclass(kind, Exception)
    assert f"{kind.__module__}.{kind.__qualname__}" == f"horsies_django.exceptions.{name}"


# Retries.


def test_a_retried_task_has_an_error_and_a_worker_for_each_attempt(drain):
    result = jobs.flaky.enqueue("all fail", fails=3)

    drain()

    result.refresh()
    assert (result.status, result.attempts) == (FAILED, 3)
    assert result.attempts == len(result.worker_ids)
    assert [error.traceback.splitlines()[-1] for error in result.errors] == [
        f"tests.enqueue.framework.jobs.Broken: attempt {number}" for number in (1, 2, 3)
    ]


def test_a_successful_retry_keeps_the_earlier_errors(drain):
    result = jobs.flaky.enqueue("two fail", fails=2)

    drain()

    result.refresh()
    assert (result.status, result.return_value, result.attempts) == (SUCCESSFUL, 3, 3)
    assert [error.traceback.splitlines()[-1] for error in result.errors] == [
        f"tests.enqueue.framework.jobs.Broken: attempt {number}" for number in (1, 2)
    ]


def test_started_at_is_the_first_attempt_and_last_attempted_at_the_latest(drain):
    result = jobs.flaky.enqueue("times", fails=2)

    drain()

    result.refresh()
    starts = list(Task.objects.get(pk=result.id).attempts.order_by("attempt").values_list("started_at", flat=True))
    assert len(starts) == 3
    assert (result.started_at, result.last_attempted_at) == (starts[0], starts[2])
    assert result.enqueued_at <= result.started_at < result.last_attempted_at <= result.finished_at


def test_a_task_that_waits_for_its_retry_is_ready_and_shows_the_first_attempt(drain):
    result = jobs.fail_and_wait.enqueue()
    enqueued_at = result.enqueued_at

    drain()

    result.refresh()
    assert (result.status, result.is_finished, result.attempts, len(result.errors)) == (READY, False, 1, 1)
    assert result.started_at == result.last_attempted_at is not None
    assert (result.finished_at, result.enqueued_at) == (None, enqueued_at)
    assert default_task_backend.get_result(result.id).task == jobs.fail_and_wait
    with pytest.raises(ValueError, match=r"^Task has not finished yet$"):
        _ = result.return_value


def test_a_manual_retry_makes_a_task_ready_and_keeps_its_history(drain):
    result = jobs.fail.enqueue()
    drain()
    TaskHandle(result.id).retry()

    result.refresh()

    assert (result.status, result.is_finished, result.finished_at) == (READY, False, None)
    assert (result.attempts, len(result.errors)) == (1, 1)
    assert default_task_backend.get_result(result.id).task == jobs.fail
