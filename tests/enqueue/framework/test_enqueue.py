"""The result that enqueueing returns, and the row that it inserts."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.utils import timezone

from horsies_django.core.compat import FrameworkTaskResult, TaskResultStatus, default_task_backend, normalize_json
from horsies_django.models import Task
from tests.enqueue.framework import jobs


@pytest.fixture(params=["enqueue", "aenqueue"])
def enqueue(request):
    """Enqueue with ``enqueue()`` or ``aenqueue()``."""

    def call(task, /, *args, **kwargs):
        method = getattr(task, request.param)
        return method(*args, **kwargs) if request.param == "enqueue" else async_to_sync(method)(*args, **kwargs)

    return call


@pytest.mark.django_db
def test_a_new_result_is_ready_and_has_no_attempts(enqueue):
    before = timezone.now() - timedelta(seconds=5)

    result = enqueue(jobs.add, 1, b=2)

    assert isinstance(result, FrameworkTaskResult)
    assert (result.task, result.status, result.backend) == (jobs.add, TaskResultStatus.READY, "default")
    assert (result.args, result.kwargs) == ([1], {"b": 2})
    assert (result.errors, result.worker_ids, result.attempts) == ([], [], 0)
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert result.is_finished is False
    assert before < result.enqueued_at < timezone.now() + timedelta(seconds=5)
    assert result.enqueued_at.utcoffset() == timedelta()


@pytest.mark.django_db
def test_each_call_gets_its_own_id_of_less_than_64_characters(enqueue):
    first, second = enqueue(jobs.add, 1), enqueue(jobs.add, 1)

    assert isinstance(first.id, str)
    assert 0 < len(first.id) < 64
    assert first.id != second.id


@pytest.mark.django_db
def test_each_call_inserts_one_row(enqueue):
    result = enqueue(jobs.add, 1, b=2)

    row = Task.objects.get()
    assert str(row.pk) == result.id
    assert (row.task_name, row.args, row.kwargs) == ("tests.enqueue.framework.jobs.add", [1], {"b": 2})


@pytest.mark.django_db
def test_the_backend_takes_the_argument_names_of_the_framework():
    result = default_task_backend.enqueue(task=jobs.add, args=[1], kwargs={"b": 2})
    other = async_to_sync(default_task_backend.aenqueue)(task=jobs.add, args=(1,), kwargs={"b": 2})

    assert default_task_backend.get_result(result_id=result.id) == result
    assert async_to_sync(default_task_backend.aget_result)(result_id=other.id) == other


@pytest.mark.django_db
def test_a_task_may_have_arguments_with_any_name(enqueue):
    names = {"args": 1, "kwargs": 2, "task": 3, "priority": 4, "run_after": 5, "backend": 6, "context": 7}

    result = enqueue(jobs.echo, **names)

    assert Task.objects.get(pk=result.id).kwargs == names


@pytest.mark.django_db
def test_the_options_of_using_are_stored(enqueue):
    run_after = datetime(2040, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)

    result = enqueue(jobs.add.using(priority=-5, queue_name="emails", run_after=run_after), 1)

    row = Task.objects.get(pk=result.id)
    assert (row.priority, row.queue_name, row.enqueued_at) == (-5, "emails", run_after)
    assert (result.task.priority, result.task.queue_name, result.task.run_after) == (-5, "emails", run_after)


@pytest.mark.django_db
def test_a_delay_counts_from_the_time_of_enqueueing(enqueue):
    result = enqueue(jobs.add.using(run_after=timedelta(hours=1)), 1)

    row = Task.objects.get(pk=result.id)
    assert timedelta(minutes=59) < row.enqueued_at - row.sent_at < timedelta(minutes=61)


PLAIN = {
    "bytes": (b"caf\xc3\xa9", "café"),
    "a tuple": ((1, (2, 3)), [1, [2, 3]]),
    "a range": (range(3), [0, 1, 2]),
    "a tuple in a dict": ({"a": (1,)}, {"a": [1]}),
    "bytes as a key": ({b"a": 1}, {"a": 1}),
    "numbers as keys": ({1: 1, 2.5: 2}, {"1": 1, "2.5": 2}),
    "other keys": ({True: 1, None: 2}, {"true": 1, "null": 2}),
    "scalars": ([1, -1.5, True, None, "text", ""], [1, -1.5, True, None, "text", ""]),
    "not ASCII": ("naïve 🐎", "naïve 🐎"),
    "empty": ([{}, [], ()], [{}, [], []]),
    "a large number": (2**63, 2**63),
}


@pytest.mark.django_db
@pytest.mark.parametrize(("given", "stored"), PLAIN.values(), ids=PLAIN)
def test_arguments_are_converted_to_plain_json_on_enqueueing(enqueue, given, stored):
    result = enqueue(jobs.echo, given, key=given)

    assert (result.args, result.kwargs) == ([stored], {"key": stored})
    assert default_task_backend.get_result(result.id) == result
    assert [type(item) for item in result.args] == [type(item) for item in normalize_json([stored])]


UNSUPPORTED = {
    "a set": {1},
    "a datetime": datetime(2030, 1, 1, tzinfo=UTC),
    "a timedelta": timedelta(1),
    "a UUID": UUID(int=1),
    "a Decimal": Decimal(1),
    "an object": object(),
    "a class": int,
    "a generator": (item for item in ()),
    "a nested set": {"a": [{"b": {1}}]},
}


@pytest.mark.django_db
@pytest.mark.parametrize("value", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_a_type_unknown_to_json_is_refused_and_inserts_no_row(enqueue, value):
    with pytest.raises(TypeError, match="Unsupported type"):
        enqueue(jobs.echo, value)
    with pytest.raises(TypeError, match="Unsupported type"):
        enqueue(jobs.echo, key=value)

    assert not Task.objects.exists()


BAD_VALUES = {
    "bytes that are not UTF-8": b"\xff",
    "NaN": float("nan"),
    "infinity": [float("inf")],
    "a NUL": "a\0b",
    "a NUL in a key": {"a\0b": 1},
    "a lone surrogate": "\ud800",
}


@pytest.mark.django_db
@pytest.mark.parametrize("value", BAD_VALUES.values(), ids=BAD_VALUES)
def test_a_value_that_cannot_be_stored_is_refused_and_inserts_no_row(enqueue, value):
    with pytest.raises(ValueError, match="Unsupported value"):
        enqueue(jobs.echo, value)

    assert not Task.objects.exists()


@pytest.mark.django_db
def test_a_refused_call_leaves_the_callers_transaction_usable():
    with transaction.atomic():
        with pytest.raises(TypeError, match="Unsupported type"):
            jobs.echo.enqueue({1})
        result = jobs.echo.enqueue(1)

    assert [str(row.pk) for row in Task.objects.all()] == [result.id]


@pytest.mark.django_db
def test_later_changes_to_an_argument_do_not_change_the_call():
    items = [1]

    result = jobs.echo.enqueue(items)
    items.append(2)

    assert result.args == [[1]]
    assert default_task_backend.get_result(result.id).args == [[1]]


@pytest.mark.django_db(transaction=True)
def test_a_rollback_of_the_callers_transaction_removes_the_row(enqueue):
    with transaction.atomic():
        result = enqueue(jobs.add, 1)
        assert Task.objects.filter(pk=result.id).exists()
        transaction.set_rollback(True)

    assert not Task.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_commit_of_the_callers_transaction_keeps_the_row(enqueue):
    with transaction.atomic():
        result = enqueue(jobs.add, 1)

    assert Task.objects.filter(pk=result.id).exists()
    assert default_task_backend.get_result(result.id) == result


@pytest.mark.django_db(transaction=True)
def test_a_rollback_of_an_inner_block_removes_only_its_own_calls():
    with transaction.atomic():
        outer = jobs.add.enqueue(1)
        with transaction.atomic():
            jobs.add.enqueue(2)
            transaction.set_rollback(True)

    assert [str(row.pk) for row in Task.objects.all()] == [outer.id]


@pytest.mark.django_db(transaction=True)
def test_enqueueing_needs_no_transaction(enqueue):
    assert not connection.in_atomic_block

    result = enqueue(jobs.add, 1)

    assert Task.objects.filter(pk=result.id).exists()


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_call_is_not_run(drain):
    with transaction.atomic():
        jobs.write.enqueue("rolled back")
        transaction.set_rollback(True)
    kept = jobs.write.enqueue("kept")

    drain()

    kept.refresh()
    assert kept.status == TaskResultStatus.SUCCESSFUL
    assert list(jobs.Entry.objects.values_list("key", flat=True)) == ["kept"]


@pytest.mark.django_db
@pytest.mark.parametrize("job", [jobs.add, jobs.add.using(priority=3)], ids=["task", "copy"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"defaults": {"timeout": 60, "max_attempts": 3, "backoff": 5}, "retention": {"completed": "7d"}},
        {"serializer": "rich"},
    ],
    ids=["plain", "defaults", "rich"],
)
def test_the_result_of_enqueue_equals_that_of_the_stored_task(backend_settings, enqueue, job, options):
    backend_settings(OPTIONS=options)

    results = [enqueue(job, [1], b={"c": None}) for _ in range(2)]

    assert [default_task_backend.get_result(result.id) for result in results] == results
