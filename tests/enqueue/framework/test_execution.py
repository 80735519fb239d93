"""A worker executes tasks as the framework's immediate backend does."""

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
    ("name", "value"),
    [
        ("bytes", "café"),
        ("tuple", [1, [2, 3]]),
        ("range", [0, 1, 2]),
        ("dict", {"a": [1], "2": None, "true": 1.5}),
    ],
)
def test_a_return_value_is_converted_to_plain_json(drain, name, value):
    result = run(drain, jobs.give, name)

    assert (result.status, result.return_value) == (SUCCESSFUL, value)


@pytest.mark.parametrize("name", ["set", "uuid", "decimal", "object"])
def test_a_return_value_of_a_type_unknown_to_json_fails_the_task(drain, name):
    result = run(drain, jobs.give, name)

    assert (result.status, result._return_value, result.attempts) == (FAILED, None, 1)
    assert [error.exception_class for error in result.errors] == [TypeError]
    assert "\nTypeError: Unsupported type" in result.errors[0].traceback


@pytest.mark.parametrize("name", ["bad bytes", "nan", "nul"])
def test_a_return_value_that_cannot_be_stored_fails_the_task(drain, name):
    result = run(drain, jobs.give, name)

    assert (result.status, result._return_value) == (FAILED, None)
    assert [error.exception_class for error in result.errors] == [ValueError]


def test_the_body_gets_the_arguments_as_plain_json(drain):
    result = run(drain, jobs.echo, (1, 2), b"text", key={3: (4,)})

    assert result.return_value == {"args": [[1, 2], "text"], "kwargs": {"key": {"3": [4]}}}


def test_a_body_that_changes_its_arguments_does_not_change_the_stored_ones(drain):
    result = run(drain, jobs.change_arguments, [1])

    loaded = default_task_backend.get_result(result.id)
    assert loaded.return_value == [1, "more"]
    assert loaded.args == [[1]]


# Context.


@pytest.mark.parametrize("job", [jobs.show_context, jobs.ashow_context], ids=["sync", "async"])
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
    result = run(drain, jobs.show_last_context)

    seen = result.return_value
    assert (seen["attempt"], seen["attempts"], seen["workers"], seen["errors"]) == (3, 3, 3, 2)


# Kinds of tasks, and their order.


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
@pytest.mark.parametrize("run_after", [timedelta(hours=1), "datetime"], ids=["a delay", "a time"])
def test_a_task_does_not_run_before_run_after(drain, job, run_after):
    run_at = timezone.now() + timedelta(hours=1) if run_after == "datetime" else run_after

    result = run(drain, job.using(run_after=run_at), "later")

    assert (result.status, result.attempts, result.started_at) == (TaskResultStatus.READY, 0, None)
    assert not Entry.objects.exists()


@pytest.mark.parametrize(
    "run_after",
    [timedelta(milliseconds=50), timedelta(), "past"],
    ids=["a delay", "no delay", "a past time"],
)
def test_a_task_runs_once_run_after_has_passed(drain, run_after):
    run_at = timezone.now() - timedelta(hours=1) if run_after == "past" else run_after
    result = jobs.write.using(run_after=run_at).enqueue("now")

    wait_until(lambda: drain() or Entry.objects.exists(), what="the task runs")

    result.refresh()
    assert (result.status, result.attempts) == (SUCCESSFUL, 1)


# Failing bodies.


@pytest.mark.parametrize(
    ("job", "kind"), [(jobs.exit_process, SystemExit), (jobs.interrupt, KeyboardInterrupt)], ids=stable
)
def test_a_body_that_tries_to_exit_the_process_fails_and_the_next_task_runs(drain, job, kind):
    result, following = job.enqueue(), jobs.add.enqueue(1, b=2)

    drain()

    result.refresh()
    following.refresh()
    assert result.status == FAILED
    assert [error.exception_class for error in result.errors] == [kind]
    assert following.return_value == 3


def test_a_database_error_in_a_body_leaves_the_connection_usable(drain):
    results = [jobs.run_bad_query.using(priority=1).enqueue(), jobs.write.enqueue("after it")]

    drain(threads=1)

    for result in results:
        result.refresh()
    assert [result.status for result in results] == [FAILED, SUCCESSFUL]
    assert Entry.objects.filter(key="after it").exists()


# Rows whose task cannot be imported.


NOT_IMPORTABLE = {
    "a missing name": "tests.enqueue.framework.jobs.gone",
    "a missing module": "tests.enqueue.framework.gone.job",
    "a missing package": "gone.completely.job",
    "a broken module": "tests.enqueue.framework.broken_module.job",
    "a bare name": "gone",
    "an empty path": "",
    "only dots": "...",
    "a relative path": "..jobs.add",
}


@pytest.mark.parametrize("path", NOT_IMPORTABLE.values(), ids=NOT_IMPORTABLE)
def test_a_task_that_cannot_be_imported_fails_and_the_next_task_runs(drain, path):
    missing = Task.objects.create(task_name=path, args=[1])
    following = jobs.add.enqueue(1, b=2)

    drain()

    following.refresh()
    assert following.return_value == 3
    assert TaskHandle(missing.pk).status() == TaskStatus.FAILED
    assert TaskHandle(missing.pk).get(0).err.error_code == "WORKER_RESOLUTION_ERROR"


@pytest.mark.django_db
@pytest.mark.parametrize("path", NOT_IMPORTABLE.values(), ids=NOT_IMPORTABLE)
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


NOT_TASKS = {
    "a function": "tests.enqueue.framework.jobs.not_a_task",
    "the function of a task": "tests.enqueue.framework.jobs.write.func",
    "an object that looks like a task": "tests.enqueue.framework.jobs.looks_like_a_task",
    "a class": "tests.enqueue.framework.jobs.NotATask",
    "a method of a task": "tests.enqueue.framework.jobs.write.call",
    "a dangerous function": "subprocess.check_output",
}


@pytest.mark.parametrize("path", NOT_TASKS.values(), ids=NOT_TASKS)
def test_an_object_that_is_not_a_task_is_never_called(drain, path):
    row = Task.objects.create(task_name=path, args=["true"])

    drain()

    result = default_task_backend.get_result(str(row.pk))
    assert result.status == FAILED
    assert [issubclass(error.exception_class, ImportError | SuspiciousOperation) for error in result.errors] == [True]
    assert not Entry.objects.exists()
