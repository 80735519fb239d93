"""Whatever a body raises or a row contains, its task ends with a documented code and the worker continues."""

import pytest
from django.db import connection

from horsies_django import OperationalCode, TaskStatus
from horsies_django.models import Task, TaskAttempt
from tests.conftest import wait_until
from tests.jobs import tasks

pytestmark = pytest.mark.once


def result_of(handle, limit=20):
    return handle.get(timeout=limit)


@pytest.mark.parametrize(
    ("body", "exception"),
    [
        (tasks.sysexit, "builtins.SystemExit"),
        (tasks.interrupt, "builtins.KeyboardInterrupt"),
        (tasks.asysexit, "builtins.SystemExit"),
        (tasks.ainterrupt, "builtins.KeyboardInterrupt"),
        (tasks.fail, "builtins.ValueError"),
        (tasks.unprintable, "tests.jobs.tasks.Unprintable"),
        (tasks.poison_connection, None),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_an_exception_fails_its_task_and_no_other(drain, body, exception):
    bad, good = body.send(), tasks.write.send("good")

    drain(threads=1)

    error = bad.get(0).err
    assert error.error_code == OperationalCode.UNHANDLED_EXCEPTION
    if exception:
        assert error.exception["type"] == exception
    assert error.exception["traceback"].startswith("Traceback")
    assert good.status() == TaskStatus.COMPLETED


@pytest.mark.slow
def test_a_worker_process_survives_every_bad_body(worker):
    process = worker("--threads", "2")
    bad = [task.send() for task in (tasks.sysexit, tasks.interrupt, tasks.asysexit, tasks.ainterrupt, tasks.fail)]

    results = [result_of(handle) for handle in bad]
    good = result_of(tasks.add.send(20, b=22))

    assert {result.err.error_code for result in results} == {OperationalCode.UNHANDLED_EXCEPTION}
    assert good.ok == 42
    assert process.process.poll() is None


@pytest.mark.slow
def test_an_exception_whose_traceback_can_not_be_printed_fails_its_task_as_any_other(worker):
    worker("--threads", "1")

    error = result_of(tasks.untraceable.send()).err

    assert (error.error_code, error.message) == (OperationalCode.UNHANDLED_EXCEPTION, "why")
    assert error.exception["traceback"] == "<Untraceable that can't be printed>"


def test_a_value_that_json_cannot_hold_is_a_serialization_error(drain):
    handle = tasks.unserialisable.send()

    drain()

    error = handle.get(0).err
    assert error.error_code == OperationalCode.WORKER_SERIALIZATION_ERROR
    assert "set" in error.message
    assert error.exception["type"] == "builtins.TypeError"


@pytest.mark.parametrize(
    "name", ["tests.jobs.tasks.gone", "no.such.module.task", "nodots", "tests.jobs.tasks.not_a_task"]
)
def test_an_unknown_task_name_is_a_resolution_error_at_the_first_attempt(drain, name):
    row = Task.objects.create(task_name=name, max_retries=3, retry_policy=tasks.flaky.stored_policy().as_json())

    drain()

    row.refresh_from_db()
    assert (row.status, row.error_code) == (TaskStatus.FAILED, OperationalCode.WORKER_RESOLUTION_ERROR)
    assert row.attempts.get().will_retry is False


@pytest.mark.parametrize(("column", "value"), [("args", {"a": 1}), ("args", "text"), ("kwargs", [1]), ("kwargs", None)])
def test_damaged_arguments_are_a_serialization_error(drain, column, value):
    row = Task.objects.create(task_name=tasks.add.module_path, args=[1])
    Task.objects.filter(pk=row.pk).update(**{column: "null" if value is None else value})

    drain()

    row.refresh_from_db()
    assert (row.status, row.error_code) == (TaskStatus.FAILED, OperationalCode.WORKER_SERIALIZATION_ERROR)


def test_truncated_json_arguments_fail_their_task_and_no_other(drain):
    if connection.vendor != "sqlite":
        return  # PostgreSQL's jsonb can't hold such a text
    damaged, sound = tasks.add.send(1), tasks.add.send(2)
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA ignore_check_constraints = 1")
        cursor.execute("UPDATE horsies_tasks SET args = '[1, ' WHERE id = %s", [damaged.id.hex])
        cursor.execute("PRAGMA ignore_check_constraints = 0")

    drain()

    assert sound.value(0) == 3
    assert Task.objects.only("status", "error_code").get(pk=damaged.id).error_code == "WORKER_SERIALIZATION_ERROR"


@pytest.mark.parametrize("text", ["a\0b", "lone \ud800 surrogate", "\0", "x" * 200_000])
def test_hostile_error_texts_are_stored_safely(drain, text):
    row = Task.objects.create(task_name=tasks.fail.module_path)
    # Such a text can't be an argument, so the body decodes it.
    Task.objects.filter(pk=row.pk).update(
        task_name="tests.worker.unstorable_results.fail_with", args=[text.encode("utf-8", "surrogatepass").hex()]
    )

    drain()

    row.refresh_from_db()
    assert row.status == TaskStatus.FAILED
    assert row.error_code == OperationalCode.UNHANDLED_EXCEPTION
    attempt = row.attempts.get()
    assert "\0" not in attempt.error_message + attempt.traceback
    assert len(attempt.traceback) < 40_000


@pytest.mark.parametrize("kind", ["nan", "infinity", "nul", "surrogate", "nested nan", "key"])
def test_unstorable_results_fail_with_a_serialization_error(drain, kind):
    from tests.worker.unstorable_results import return_unstorable

    bad, good = return_unstorable.send(kind), tasks.add.send(1)

    drain(threads=1)

    assert bad.get(0).err.error_code == OperationalCode.WORKER_SERIALIZATION_ERROR
    assert good.value(0) == 2


@pytest.mark.slow
def test_a_body_that_ends_its_process_is_a_worker_crash_and_the_worker_continues(worker):
    process = worker()
    crashed = tasks.hard_exit.send("once")

    result = result_of(crashed)
    good = result_of(tasks.add.send(1))

    assert result.err.error_code == OperationalCode.WORKER_CRASHED
    attempt = TaskAttempt.objects.get(task_id=crashed.id)
    assert (attempt.outcome, attempt.will_retry) == ("WORKER_FAILURE", False)
    assert good.ok == 2
    wait_until(lambda: process.process.poll() is None)
