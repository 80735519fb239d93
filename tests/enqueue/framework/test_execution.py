"""What a worker does with a task, as the framework's own immediate backend would."""

from datetime import timedelta

import pytest
from django.core.exceptions import SuspiciousOperation
from django.utils import timezone

from horsies_django import TaskHandle, TaskStatus
from horsies_django.core.compat import FrameworkTask, TaskResultMismatch, TaskResultStatus, default_task_backend
from horsies_django.models import Task
from tests.conftest import wait_until
from tests.enqueue.framework import jobs
from tests.jobs.models import Entry
from tests.naming import stable

pytestmark = pytest.mark.once

FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL


def run(drain, task, *args, **kwargs):
    """Enqueue a call, run what is due, and return the result."""
    result = task.enqueue(*args, **kwargs)
    drain()
    result.refresh()
    return result


# Values.


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("bytes", "café"),
        ("tuple", [1, [2, 3]]),
        ("range", [0, 1, 2]),
        ("dict", {"a": [1], "2": None, "true": 1.5}),
    ],
)
def test_a_return_value_is_converted_to_plain_json(drain, what, value):
    result = run(drain, jobs.give, what)

    assert (result.status, result.return_value) == (SUCCESSFUL, value)


@pytest.mark.parametrize("what", ["set", "uuid", "decimal", "object"])
def test_a_return_value_of_a_type_unknown_to_json_fails_the_task(drain, what):
    result = run(drain, jobs.give, what)

    assert (result.status, result._return_value, result.attempts) == (FAILED, None, 1)
    assert [error.exception_class for error in result.errors] == [TypeError]
    assert "\nTypeError: Unsupported type" in result.errors[0].traceback


@pytest.mark.parametrize("what", ["bad bytes", "nan", "nul"])
def test_a_return_value_that_cannot_be_stored_fails_the_task(drain, what):
    result = run(drain, jobs.give, what)

    assert (result.status, result._return_value) == (FAILED, None)
    assert [error.exception_class for error in result.errors] == [ValueError]


def test_the_body_gets_the_arguments_as_plain_json(drain):
    result = run(drain, jobs.echo, (1, 2), b"text", key={3: (4,)})

    assert result.return_value == {"args": [[1, 2], "text"], "kwargs": {"key": {"3": [4]}}}


def test_a_body_that_changes_its_arguments_does_not_change_the_stored_ones(drain):
    result = run(drain, jobs.grow, [1])

    got = default_task_backend.get_result(result.id)
    assert got.return_value == [1, "more"]
    assert got.args == [[1]]


# Context.


@pytest.mark.parametrize("job", [jobs.look, jobs.alook], ids=["sync", "async"])
def test_the_context_shows_the_running_attempt(drain, job):
    result = run(drain, job, 1, key=[2])

    assert result.return_value == {
        "attempt": 1,
        "attempts": 1,
        "id": result.id,
        "status": "RUNNING",
        "is_finished": False,
        "workers": 1,
        "started": True,
        "attempted": True,
        "finished": False,
        "errors": 0,
        "args": [1],
        "kwargs": {"key": [2]},
        "path": job.module_path,
    }


def test_the_context_shows_the_number_of_the_attempt_and_earlier_errors(drain):
    result = run(drain, jobs.look_at_last)

    seen = result.return_value
    assert (seen["attempt"], seen["attempts"], seen["workers"], seen["errors"]) == (3, 3, 3, 2)


# Ways to run.


def test_a_coroutine_runs_and_may_use_the_database(drain):
    result = run(drain, jobs.awrite, "from a coroutine")

    assert (result.status, result.return_value) == (SUCCESSFUL, "from a coroutine")
    assert Entry.objects.filter(key="from a coroutine").exists()


def test_a_task_of_djangos_decorator_runs(drain):
    assert run(drain, jobs.made_by_django, 21).return_value == 42


def test_a_task_of_the_frameworks_own_class_runs(drain):
    assert not isinstance(jobs.plain, type(jobs.add))
    assert type(jobs.plain) is FrameworkTask

    result = run(drain, jobs.plain, 14)

    assert result.return_value == 42
    assert jobs.plain.get_result(result.id) == result


def test_tasks_of_higher_priority_run_first(drain):
    for priority in (-5, 0, 100, 5, -100):
        jobs.write.using(priority=priority).enqueue(str(priority))

    drain(threads=1, prefetch=0)

    assert list(Entry.objects.order_by("pk").values_list("key", flat=True)) == ["100", "5", "0", "-5", "-100"]


@pytest.mark.parametrize("job", [jobs.write, jobs.awrite], ids=["sync", "async"])
@pytest.mark.parametrize("run_after", [timedelta(hours=1), "datetime"], ids=["a delay", "a moment"])
def test_a_task_does_not_run_before_run_after(drain, job, run_after):
    moment = timezone.now() + timedelta(hours=1) if run_after == "datetime" else run_after

    result = run(drain, job.using(run_after=moment), "later")

    assert (result.status, result.attempts, result.started_at) == (TaskResultStatus.READY, 0, None)
    assert not Entry.objects.exists()


@pytest.mark.parametrize(
    "run_after",
    [timedelta(milliseconds=50), timedelta(), "past"],
    ids=["a delay", "no delay", "a moment that has passed"],
)
def test_a_task_runs_once_run_after_has_passed(drain, run_after):
    moment = timezone.now() - timedelta(hours=1) if run_after == "past" else run_after
    result = jobs.write.using(run_after=moment).enqueue("now")

    wait_until(lambda: drain() or Entry.objects.exists(), what="it has run")

    result.refresh()
    assert (result.status, result.attempts) == (SUCCESSFUL, 1)


# Bodies that go wrong.


@pytest.mark.parametrize(("job", "kind"), [(jobs.leave, SystemExit), (jobs.interrupt, KeyboardInterrupt)], ids=stable)
def test_a_body_that_tries_to_exit_the_process_fails_and_the_next_task_runs(drain, job, kind):
    result, following = job.enqueue(), jobs.add.enqueue(1, b=2)

    drain()

    result.refresh()
    following.refresh()
    assert result.status == FAILED
    assert [error.exception_class for error in result.errors] == [kind]
    assert following.return_value == 3


def test_a_database_error_in_a_body_leaves_the_connection_usable(drain):
    results = [jobs.ask_nonsense.using(priority=1).enqueue(), jobs.write.enqueue("after it")]

    drain(threads=1)

    for result in results:
        result.refresh()
    assert [result.status for result in results] == [FAILED, SUCCESSFUL]
    assert Entry.objects.filter(key="after it").exists()


# Rows that name no task.


GONE = {
    "a name that is gone": "tests.enqueue.framework.jobs.gone",
    "a module that is gone": "tests.enqueue.framework.gone.job",
    "a package that is gone": "gone.completely.job",
    "a module that is broken": "tests.enqueue.framework.broken_module.job",
    "no path": "gone",
    "an empty path": "",
    "dots": "...",
    "relative": "..jobs.add",
}


@pytest.mark.parametrize("path", GONE.values(), ids=GONE)
def test_a_task_that_cannot_be_imported_fails_and_the_next_task_runs(drain, path):
    lost = Task.objects.create(task_name=path, args=[1])
    following = jobs.add.enqueue(1, b=2)

    drain()

    following.refresh()
    assert following.return_value == 3
    assert TaskHandle(lost.pk).status() == TaskStatus.FAILED
    assert TaskHandle(lost.pk).get(0).err.error_code == "WORKER_RESOLUTION_ERROR"


@pytest.mark.django_db
@pytest.mark.parametrize("path", GONE.values(), ids=GONE)
def test_the_result_of_a_task_without_code_can_still_be_read(path):
    row = Task.objects.create(task_name=path, args=[1], kwargs={"b": 2}, priority=5, queue_name="emails")

    result = default_task_backend.get_result(str(row.pk))

    assert (result.status, result.args, result.kwargs) == (TaskResultStatus.READY, [1], {"b": 2})
    assert (result.task.priority, result.task.queue_name) == (5, "emails")
    assert isinstance(result.task, FrameworkTask)
    with pytest.raises(ImportError):
        result.task.call()


@pytest.mark.django_db
def test_the_result_of_a_task_without_code_has_its_name_and_fits_no_other_task():
    row = Task.objects.create(task_name="tests.enqueue.framework.jobs.gone")

    result = default_task_backend.get_result(str(row.pk))

    assert (result.task.name, result.task.module_path) == ("gone", "tests.enqueue.framework.jobs.gone")
    with pytest.raises(TaskResultMismatch):
        jobs.add.get_result(result.id)


def test_the_error_class_of_a_task_without_code_can_be_imported(drain):
    row = Task.objects.create(task_name="tests.enqueue.framework.jobs.gone")

    drain()

    result = default_task_backend.get_result(str(row.pk))
    assert (result.status, result.attempts) == (FAILED, 1)
    assert [issubclass(error.exception_class, Exception) for error in result.errors] == [True]


NO_TASKS = {
    "a function": "tests.enqueue.framework.jobs.not_a_task",
    "the function of a task": "tests.enqueue.framework.jobs.write.func",
    "something that looks like a task": "tests.enqueue.framework.jobs.looks_like_a_task",
    "a class": "tests.enqueue.framework.jobs.NotATask",
    "a method of a task": "tests.enqueue.framework.jobs.write.call",
    "something dangerous": "subprocess.check_output",
}


@pytest.mark.parametrize("path", NO_TASKS.values(), ids=NO_TASKS)
def test_an_object_that_is_not_a_task_is_never_called(drain, path):
    row = Task.objects.create(task_name=path, args=["true"])

    drain()

    result = default_task_backend.get_result(str(row.pk))
    assert result.status == FAILED
    assert [issubclass(error.exception_class, ImportError | SuspiciousOperation) for error in result.errors] == [True]
    assert not Entry.objects.exists()
