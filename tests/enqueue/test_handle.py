"""A handle reads a task's state and result; ``get()`` returns failures instead of raising them."""

import sys
import threading
import time
import uuid
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.utils import timezone

from horsies_django import TaskError, TaskHandle, TaskResult, TaskStatus
from horsies_django.enqueue.handle import Progress
from horsies_django.exceptions import TaskFailed, WaitTimeout
from horsies_django.models import Task
from tests.conftest import wait_until
from tests.enqueue import jobs

RICH = {
    "default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "QUEUES": [], "OPTIONS": {"serializer": "rich"}}
}


def ended(**values):
    """Return a handle on an ended task whose row another version may have written."""
    values = {"status": "COMPLETED", "completed_at": timezone.now(), **values}
    return TaskHandle(Task.objects.create(task_name="x", **values).pk)


# get() and value().


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_get_returns_wait_timeout_and_leaves_the_task_pending(get, timeout):
    handle = jobs.triple.send(1)

    result = get(handle, timeout)

    assert result.err.error_code == "WAIT_TIMEOUT"
    assert f"{timeout:g} seconds" in result.err.message
    assert result.err.data == {"status": "PENDING"}
    assert handle.status() == TaskStatus.PENDING


def test_get_waits_for_the_whole_timeout(get):
    handle = jobs.triple.send(1)
    start = time.monotonic()

    get(handle, 0.3)

    assert time.monotonic() - start >= 0.3


def test_get_with_a_timeout_of_0_queries_once(transactional_db, django_assert_num_queries):
    handle = jobs.triple.send(1)

    with django_assert_num_queries(1):
        result = handle.get(timeout=0)

    assert result.err.error_code == "WAIT_TIMEOUT"


@pytest.mark.parametrize("timeout", [None, 0, 5])
def test_get_of_an_unknown_id_returns_task_not_found_at_once(get, timeout):
    key = uuid.uuid4()

    result = get(TaskHandle(key), timeout)

    assert result.err.error_code == "TASK_NOT_FOUND"
    assert str(key) in result.err.message


@pytest.mark.parametrize("status", ["COMPLETED", "FAILED", "CANCELLED", "EXPIRED"])
def test_get_of_an_ended_task_without_a_result_returns_result_not_available(get, status):
    handle = ended(status=status, **{f"{status.lower()}_at": timezone.now()})

    result = get(handle, None)

    assert result.err.error_code == "RESULT_NOT_AVAILABLE"
    assert status in result.err.message


@pytest.mark.parametrize(
    ("stored", "typed"),
    [
        (5, False),
        ("err", False),
        ([], False),
        ({}, False),
        ({"error": 1}, False),
        ({"err": None}, False),
        ({"err": {}}, False),
        ({"err": "text"}, False),
        ({"ok": {"$type": "nonsense"}}, True),
        ({"ok": {"$type": "datetime", "value": "yesterday"}}, True),
        ({"ok": {"$type": "timedelta", "value": [1, 2, 3, 4, 5, 6, 7, 8, 9]}}, True),
        ({"ok": {"$type": "decimal", "value": "one"}}, True),
        ({"ok": {"$type": ["a", "list"]}}, True),
        ({"ok": {"$type": "dataclass", "class": "os.system", "value": {"command": "true"}}}, True),
        ({"ok": {"$type": "dataclass", "class": "no.such.module", "value": {}}}, True),
        ({"ok": {"$type": "dataclass", "class": 5, "value": {}}}, True),
        ({"ok": {"$type": "dataclass", "class": "tests.enqueue.jobs.Address", "value": {"town": 1}}}, True),
    ],
    ids=str,
)
def test_get_and_info_return_a_damaged_result_as_an_error(get, settings, stored, typed):
    settings.TASKS = RICH
    handle = ended(result=stored, typed_payload=typed)

    result, info = get(handle, 20), TaskHandle(handle.id).info()

    assert result.err.error_code == info.result.err.error_code == "RESULT_DESERIALIZATION_ERROR"
    assert "can't be read" in result.err.message
    with pytest.raises(TaskFailed, match="RESULT_DESERIALIZATION_ERROR"):
        handle.value(0)


@pytest.mark.parametrize(
    "data", [{"$type": "nonsense"}, {"$type": "date", "value": "yesterday"}, {"$type": ["x"]}], ids=str
)
def test_an_error_with_damaged_data_keeps_its_code_and_the_stored_data(get, settings, data):
    settings.TASKS = RICH
    error = {"error_code": "MINE", "message": "m", "data": data}
    handle = ended(status="FAILED", failed_at=timezone.now(), result={"err": error}, typed_payload=True)

    result = get(handle, 0)

    assert result.err == TaskError(error_code="MINE", message="m", data=data)


def test_task_error_can_be_subscripted_with_the_type_of_its_data():
    assert TaskError[int](error_code="MINE", data=1) == TaskError(error_code="MINE", data=1)


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), "5", timedelta(seconds=5)])
def test_get_refuses_an_invalid_timeout(get, timeout):
    handle = TaskHandle(uuid.uuid4())

    with pytest.raises(ValueError, match=r"timeout is .*; allowed: seconds from 0 on, or None"):
        get(handle, timeout)


@pytest.mark.slow
@pytest.mark.sqlite
def test_sync_and_async_methods_return_the_value_of_a_completed_task(drain):
    handle = jobs.triple.send(1)
    drain()

    results = [TaskHandle(handle.id).get(), async_to_sync(TaskHandle(handle.id).aget)()]
    values = [TaskHandle(handle.id).value(0), async_to_sync(TaskHandle(handle.id).avalue)(0)]

    assert results == [TaskResult(ok=[1, 2, 3])] * 2
    assert values == [[1, 2, 3]] * 2


def test_get_returns_the_error_of_a_failed_task_and_value_raises_it(drain):
    handle = jobs.fail.send()
    drain()

    error = handle.get().err
    with pytest.raises(TaskFailed, match="UNHANDLED_EXCEPTION: no luck") as caught:
        handle.value()
    with pytest.raises(TaskFailed, match="UNHANDLED_EXCEPTION: no luck") as awaited:
        async_to_sync(TaskHandle(handle.id).avalue)()

    assert isinstance(error, TaskError)
    assert (error.error_code, error.message, error.data) == ("UNHANDLED_EXCEPTION", "no luck", None)
    assert error.exception["type"] == "builtins.ValueError"
    assert 'raise ValueError("no luck")' in error.exception["traceback"]
    assert caught.value.error == error
    causes = [caught.value.__cause__, awaited.value.__cause__]
    assert [type(cause) for cause in causes] == [ValueError, ValueError]  # the body ran in this process
    assert (caught.value.exception_class, caught.value.exception_class_path) == (ValueError, "builtins.ValueError")


@pytest.mark.once
@pytest.mark.django_db
def test_the_exception_class_of_a_failure_is_found_without_an_import():
    classes = {
        "horsies_django.exceptions.TaskFailed": TaskFailed,
        "tests.enqueue.jobs.Outer.Inner": None,  # not an exception
        "tests.enqueue.jobs.triple.func": None,
        "this.Zen": None,  # this module prints when it is imported, and nothing has imported it
        "nothing": None,
        "": None,
        5: None,
    }
    found = {}
    for path in classes:
        stored = {"error_code": "UNHANDLED_EXCEPTION", "exception": {"type": path, "message": "", "traceback": ""}}
        failed = ended(status="FAILED", completed_at=None, failed_at=timezone.now(), result={"err": stored})
        with pytest.raises(TaskFailed) as caught:
            failed.value(0)
        assert caught.value.__cause__ is None
        found[path] = caught.value.exception_class

    assert found == classes
    assert "this" not in sys.modules


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.django_db
def test_value_raises_wait_timeout_if_pending_and_task_failed_if_unknown():
    handle = jobs.triple.send(1)

    with pytest.raises(TimeoutError) as waited:
        handle.value(0)
    with pytest.raises(TaskFailed) as missed:
        TaskHandle(uuid.uuid4()).value()

    assert type(waited.value) is WaitTimeout
    assert (waited.value.status, waited.value.error.data) == ("PENDING", {"status": "PENDING"})
    assert (waited.value.error.error_code, missed.value.error.error_code) == ("WAIT_TIMEOUT", "TASK_NOT_FOUND")


def test_a_result_of_none_is_stored_and_returned(drain):
    handle = jobs.identity.send(None)
    drain()

    result = handle.get(0)

    assert (result.is_ok(), result.ok, handle.value(0)) == (True, None, None)
    assert Task.objects.get().result == {"ok": None}


@pytest.mark.slow
def test_get_returns_when_the_task_has_ended_in_another_process(worker, get):
    worker()
    handle = jobs.triple.send(7)

    result = get(handle, 20)

    assert result == TaskResult(ok=[7, 2, 3])


def test_get_without_a_timeout_waits_until_the_task_ends(transactional_db):
    handle, found = jobs.triple.send(1), []

    def wait():
        try:
            found.append(TaskHandle(handle.id).get())
        finally:
            connection.close()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    handle.cancel()
    wait_until(lambda: found, what="get() returned")
    thread.join(10)

    assert found[0].err.error_code == "TASK_CANCELLED"


# The cache of a handle.


def test_a_handle_caches_a_final_result(drain, django_assert_num_queries):
    handle = jobs.triple.send(1)
    drain()
    first = handle.get()
    Task.objects.all().delete()

    with django_assert_num_queries(0):
        again = handle.get()

    assert again == first == TaskResult(ok=[1, 2, 3])


def test_a_handle_does_not_cache_wait_timeout_or_task_not_found(drain):
    handle, unsent = jobs.triple.send(1), TaskHandle(uuid.uuid4())
    before = [handle.get(0).err.error_code, unsent.get(0).err.error_code]
    Task.objects.create(pk=unsent.id, task_name=jobs.triple.module_path, args=[2])

    drain()

    assert before == ["WAIT_TIMEOUT", "TASK_NOT_FOUND"]
    assert [handle.value(0), unsent.value(0)] == [[1, 2, 3], [2, 2, 3]]


def test_a_handle_forgets_its_cached_result_after_a_retry(drain):
    handle = jobs.fail.send()
    drain()
    assert handle.get().is_err()

    retried = handle.retry()

    assert retried
    assert handle.get(0).err.error_code == "WAIT_TIMEOUT"


# status() and info().


def test_the_status_of_a_handle_follows_the_task(drain):
    handle, missing = jobs.triple.send(1), TaskHandle(uuid.uuid4())
    before = [handle.status(), async_to_sync(handle.astatus)()]

    drain()

    assert before == [TaskStatus.PENDING] * 2
    assert [handle.status(), async_to_sync(handle.astatus)()] == [TaskStatus.COMPLETED] * 2
    assert isinstance(handle.status(), TaskStatus)
    assert [missing.status(), async_to_sync(missing.astatus)()] == [None, None]


def test_info_is_a_snapshot_of_the_row(drain):
    handle = jobs.with_every_option.send(5)
    waiting = handle.info()
    drain(queues="slow")

    done = async_to_sync(handle.ainfo)()

    assert (waiting.id, waiting.name) == (handle.id, "tests.enqueue.jobs.with_every_option")
    assert (waiting.status, waiting.attempt, waiting.retry_count, waiting.max_retries) == ("PENDING", 0, 0, 2)
    assert (waiting.queue_name, waiting.priority) == ("slow", 3)
    assert {waiting.claimed_at, waiting.started_at, waiting.completed_at, waiting.worker_id, waiting.result} == {None}
    assert (done.status, done.attempt, done.result) == ("COMPLETED", 1, TaskResult(ok=5))
    assert done.sent_at == waiting.sent_at <= done.started_at <= done.completed_at
    assert done.worker_id
    assert (done.error_code, done.failed_at, done.next_retry_at) == (None, None, None)


def test_info_of_a_failed_task_has_its_code_and_error(drain):
    handle = jobs.mapped.send()
    drain()

    info = handle.info()

    assert (info.status, info.error_code, info.result.err.error_code) == ("FAILED", "LOST", "LOST")
    assert (info.completed_at, info.failed_at is None) == (None, False)


@pytest.mark.django_db
def test_info_of_an_unknown_id_is_none():
    handle = TaskHandle(uuid.uuid4())

    info = handle.info()

    assert info is None


@pytest.mark.django_db
@pytest.mark.parametrize("status", ["COMPLETED", "FAILED", "CANCELLED", "EXPIRED"])
def test_info_of_an_ended_task_without_a_result_has_no_value(status):
    handle = ended(status=status, **{f"{status.lower()}_at": timezone.now()})

    info = handle.info()

    assert info.result is None or info.result.err.error_code == "RESULT_NOT_AVAILABLE"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("stored", "progress"),
    [
        (None, None),
        ({"done": 1, "total": 4, "message": "a quarter"}, Progress(done=1, total=4, message="a quarter")),
        ({"done": 0.5, "total": None, "message": ""}, Progress(done=0.5)),
        ({"done": "1", "total": 4, "message": ""}, None),
        ({"done": 1}, None),
        ([1, 2], None),
        (7, None),
    ],
    ids=str,
)
def test_info_has_the_progress_or_none_if_it_is_damaged(stored, progress):
    handle = jobs.triple.send(1)
    Task.objects.update(progress=stored)

    info = handle.info()

    assert info.progress == progress


@pytest.mark.django_db
def test_info_says_when_a_task_was_cancelled_or_expired():
    cancelled, expired = jobs.triple.send(1), jobs.triple.send(2)
    cancelled.cancel()
    Task.objects.filter(pk=expired.id).update(status="EXPIRED", expired_at=timezone.now())

    infos = cancelled.info(), expired.info()

    assert [(info.cancelled_at is None, info.expired_at is None) for info in infos] == [(False, True), (True, False)]


# cancel() and retry().


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("method", ["cancel", "acancel"])
def test_cancel_ends_a_pending_task_once(method):
    handle = jobs.triple.send(1)
    cancel = handle.cancel if method == "cancel" else async_to_sync(handle.acancel)

    answers = [cancel(), cancel()]

    assert answers == [True, False]
    assert handle.status() == TaskStatus.CANCELLED
    assert handle.get(0).err.error_code == "TASK_CANCELLED"


@pytest.mark.django_db
def test_cancel_ends_a_running_task_only_with_include_running():
    handle = jobs.triple.send(1)
    Task.objects.update(status="RUNNING", started_at=timezone.now(), claimed_at=timezone.now())

    answers = [handle.cancel(), handle.cancel(include_running=True)]

    assert answers == [False, True]
    assert handle.status() == TaskStatus.CANCELLED


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("method", ["retry", "aretry"])
def test_retry_restarts_a_cancelled_task_but_not_a_pending_one(method):
    handle = jobs.triple.send(1)
    retry = handle.retry if method == "retry" else async_to_sync(handle.aretry)

    answers = [retry(), handle.cancel(), retry(), retry()]

    assert answers == [False, True, True, False]
    assert handle.status() == TaskStatus.PENDING


@pytest.mark.django_db
def test_cancel_and_retry_of_an_unknown_id_return_false():
    handle = TaskHandle(uuid.uuid4())

    answers = (handle.cancel(), handle.cancel(include_running=True), handle.retry())

    assert answers == (False, False, False)


# The handle itself.


def test_a_handle_can_be_rebuilt_from_the_text_of_its_id():
    key = uuid.uuid4()

    handles = {TaskHandle(key), TaskHandle(str(key)), TaskHandle(key.hex)}

    assert len(handles) == 1
    assert TaskHandle(key) != TaskHandle(uuid.uuid4())
    assert TaskHandle(key) != TaskHandle(key, backend="other")


def test_a_handle_refuses_a_text_that_is_not_an_id():
    text = "not an id"

    with pytest.raises(ValueError, match=r"badly formed|not an id"):
        TaskHandle(text)
