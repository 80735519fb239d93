"""Getting a result back: by whom, in which state, with which errors."""

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
    """Ask a backend or a task for a result, by either verb."""

    def call(where, key):
        verb = getattr(where, request.param)
        return verb(key) if request.param == "get_result" else async_to_sync(verb)(key)

    return call


@pytest.fixture(params=["refresh", "arefresh"])
def refresh(request):
    """Refresh a result, by either verb."""

    def call(result):
        verb = getattr(result, request.param)
        return verb() if request.param == "refresh" else async_to_sync(verb)()

    return call


def claim(*, start, worker="dead"):
    """Put what is due into the hands of a worker that is not there."""
    with transaction.atomic():
        Task.objects.claim(worker, start=start, prefetch=1 - start)


# By whom.


@pytest.mark.django_db
def test_what_was_enqueued_is_what_is_got_back(get_result):
    result = jobs.add.enqueue(1, b=2)

    assert get_result(default_task_backend, result.id) == result
    assert get_result(task_backends["default"], result.id) == result
    assert get_result(jobs.add, result.id) == result


VARIANTS = {
    "a priority": lambda: jobs.add.using(priority=5),
    "a queue": lambda: jobs.add.using(queue_name="emails"),
    "a time to come": lambda: jobs.add.using(run_after=timezone.now() + timedelta(hours=1)),
    "a time that has passed": lambda: jobs.add.using(run_after=timezone.now() - timedelta(hours=1)),
    "a delay": lambda: jobs.add.using(run_after=timedelta(hours=1)),
    "no delay": lambda: jobs.add.using(run_after=timedelta()),
    "a timeout": lambda: jobs.add.with_options(timeout=5),
    "a unique key": lambda: jobs.add.with_options(unique_key="only"),
    "a deadline": lambda: jobs.add.with_options(good_until=timezone.now() + timedelta(hours=1)),
    "a policy": lambda: jobs.add.with_options(retry_policy=RetryPolicy.fixed([60], auto_retry_for=["*"])),
    "metadata": lambda: jobs.add.with_options(metadata={"team": "mail"}),
    "a retention": lambda: jobs.add.with_options(retention="7d"),
    "a retention by state": lambda: jobs.add.with_options(retention={"completed": None, "failed": 60}),
    "another's task": lambda: jobs.plain,
}


@pytest.mark.django_db
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_what_was_enqueued_with_options_is_what_is_got_back(variant):
    result = variant().enqueue(1)

    assert default_task_backend.get_result(result.id) == result


@pytest.mark.django_db
def test_the_task_of_a_result_calls_the_very_same_function():
    result = jobs.add.using(priority=5).enqueue(1)

    assert default_task_backend.get_result(result.id).task.func is jobs.add.func


@pytest.mark.django_db
def test_an_id_that_was_sent_as_a_handle_is_a_result_too():
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
def test_an_id_that_names_nothing_is_a_result_that_does_not_exist(get_result, key):
    jobs.add.enqueue(1)

    with pytest.raises(TaskResultDoesNotExist):
        get_result(default_task_backend, key)
    with pytest.raises(TaskResultDoesNotExist):
        get_result(jobs.add, key)


@pytest.mark.django_db
def test_the_result_of_another_task_is_a_mismatch(get_result):
    result = jobs.add.enqueue(1)

    with pytest.raises(TaskResultMismatch, match=r"tests\.enqueue\.framework\.jobs\.add"):
        get_result(jobs.subtract, result.id)


@pytest.mark.django_db
def test_a_result_can_be_got_through_a_changed_copy_of_its_task(get_result):
    result = jobs.add.enqueue(1)

    assert get_result(jobs.add.using(priority=9, queue_name="emails"), result.id) == result


@pytest.mark.django_db
def test_a_result_outlives_the_queue_it_was_sent_to(backend_settings, get_result):
    result = jobs.add.using(queue_name="emails").enqueue(1)
    backend_settings(QUEUES=["default"])

    got = get_result(default_task_backend, result.id)

    assert (got, got.task.queue_name) == (result, "emails")


@pytest.mark.django_db
def test_a_deleted_row_is_a_result_that_does_not_exist(refresh):
    result = jobs.add.enqueue(1)
    Task.objects.all().delete()

    with pytest.raises(TaskResultDoesNotExist):
        refresh(result)


# Refreshing.


def test_refreshing_brings_what_has_happened_since(drain, refresh):
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


def test_what_is_got_back_later_is_the_same_each_time(drain, get_result):
    result = jobs.fail.enqueue()
    drain()

    first, second = get_result(jobs.fail, result.id), get_result(jobs.fail, result.id)

    assert first == second
    assert first.id == result.id
    assert (first.task, first.args, first.kwargs) == (result.task, result.args, result.kwargs)


# States.


@pytest.mark.django_db
def test_there_is_no_return_value_before_a_task_has_begun():
    result = jobs.add.enqueue(1)

    with pytest.raises(ValueError, match=r"^Task has not finished yet$"):
        _ = result.return_value


def test_a_running_task_is_seen_as_running_from_outside(drain):
    result = jobs.look_from_outside.enqueue()

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


def test_none_is_a_return_value_like_any_other(drain):
    result = jobs.give.enqueue("None")

    drain()

    result.refresh()
    assert (result.status, result.return_value) == (SUCCESSFUL, None)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("start", "status", "seen"), [(0, TaskStatus.CLAIMED, READY), (1, TaskStatus.RUNNING, RUNNING)]
)
def test_a_task_that_a_worker_holds_is_ready_until_its_body_begins(start, status, seen):
    result = jobs.add.enqueue(1)
    claim(start=start, worker="some worker")

    result.refresh()

    assert TaskHandle(result.id).status() == status
    assert (result.status, result.is_finished) == (seen, False)
    assert result.worker_ids == ["some worker"] * start
    assert (result.started_at is not None) == (result.last_attempted_at is not None) == bool(start)


@pytest.mark.django_db
def test_every_state_of_ours_is_one_of_the_frameworks_four():
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
def test_an_error_has_the_path_of_its_class_and_a_traceback_that_ends_with_the_message(drain, job):
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


def test_an_error_of_python_is_a_builtin(drain):
    result = jobs.add.enqueue(1, b="2")

    drain()

    error = only_error(result)
    assert error.exception_class_path == "builtins.TypeError"
    assert error.exception_class is TypeError
    assert error.traceback.splitlines()[-1].startswith("TypeError: unsupported operand")


def test_an_error_that_was_returned_has_a_class_too(drain):
    result = jobs.fail_as_a_value.enqueue()

    drain()

    error = only_error(result)
    assert result.status == FAILED
    assert error.exception_class is exceptions.TaskFailed
    assert error.traceback == "horsies_django.exceptions.TaskFailed: the server is away\n"


@pytest.mark.django_db
def test_a_cancelled_task_has_failed_with_a_class_that_says_so():
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
def test_a_task_that_is_cancelled_while_it_runs_counts_the_attempt():
    result = jobs.add.enqueue(1)
    claim(start=1, worker="some worker")
    TaskHandle(result.id).cancel(include_running=True)

    error = only_error(result)

    assert (result.status, result.worker_ids) == (FAILED, ["some worker"])
    assert error.exception_class is exceptions.TaskCancelled


@pytest.mark.django_db(transaction=True)
def test_an_expired_task_has_failed_with_a_class_that_says_so(reap):
    soon = timezone.now() + timedelta(milliseconds=20)
    result = jobs.add.with_options(good_until=soon).enqueue(1)

    wait_until(lambda: reap() or TaskHandle(result.id).status() == TaskStatus.EXPIRED, what="it expires")

    error = only_error(result)
    assert (result.status, result.is_finished, result.attempts) == (FAILED, True, 0)
    assert result.finished_at is not None
    assert error.exception_class is exceptions.TaskExpired
    assert error.traceback.startswith("horsies_django.exceptions.TaskExpired: ")
    assert error.traceback.endswith("\n")


@pytest.mark.django_db(transaction=True)
def test_a_task_that_was_lost_with_its_worker_has_failed_with_a_class_that_says_so(reap):
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
def test_a_class_that_stands_in_for_an_exception_can_be_imported(name):
    kind = import_string(f"horsies_django.exceptions.{name}")

    assert issubclass(kind, Exception)
    assert f"{kind.__module__}.{kind.__qualname__}" == f"horsies_django.exceptions.{name}"


# Retries.


def test_after_retries_there_is_an_error_and_a_worker_for_each_attempt(drain):
    result = jobs.flaky.enqueue("all fail", fails=3)

    drain()

    result.refresh()
    assert (result.status, result.attempts) == (FAILED, 3)
    assert result.attempts == len(result.worker_ids)
    assert [error.traceback.splitlines()[-1] for error in result.errors] == [
        f"tests.enqueue.framework.jobs.Broken: attempt {number}" for number in (1, 2, 3)
    ]


def test_after_a_retry_that_succeeds_the_earlier_errors_are_kept(drain):
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


def test_between_two_attempts_a_task_is_ready_and_shows_what_has_been(drain):
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


def test_a_task_that_is_retried_by_hand_is_ready_again_and_keeps_its_history(drain):
    result = jobs.fail.enqueue()
    drain()
    TaskHandle(result.id).retry()

    result.refresh()

    assert (result.status, result.is_finished, result.finished_at) == (READY, False, None)
    assert (result.attempts, len(result.errors)) == (1, 1)
    assert default_task_backend.get_result(result.id).task == jobs.fail
