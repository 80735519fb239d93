"""From a call to its row, and from a handle to its result."""

import datetime
import uuid
from decimal import Decimal

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horsies_django import TASK_TERMINAL_STATES, RetrievalCode, TaskHandle, TaskResult, TaskStatus
from horsies_django.core.ids import uuid7
from horsies_django.core.serialization import clean_text, decode, dumps, encode
from horsies_django.exceptions import TaskFailed
from horsies_django.models import Task
from tests.contract.jobs import Point, collect, echo
from tests.jobs import tasks

RICH = {
    "default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "QUEUES": [], "OPTIONS": {"serializer": "rich"}}
}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "'a'"),
        ((1,), {"d": 4}, "'d'"),
        ((1, 2, 3), {}, "too many positional"),
        ((1,), {"a": 2}, "'a'"),
        (({1, 2},), {}, "'a'"),
        ((1,), {"b": object()}, "'b'"),
        ((float("nan"),), {}, "'a'"),
        ((1,), {"c": {"deep": [float("inf")]}}, "'c'"),
        (("nul \0",), {}, "'a'"),
        (("\ud800",), {}, "'a'"),
        (({"\0": 1},), {}, "'a'"),
        (({(1, 2): 1},), {}, "'a'"),
        ((b"\xff",), {}, "'a'"),
    ],
)
@pytest.mark.parametrize("send", [collect.send, collect.enqueue, lambda *a, **k: collect.schedule(5, *a, **k)])
def test_an_error_names_the_bad_argument_and_nothing_is_inserted(send, args, kwargs, message):
    with pytest.raises((TypeError, ValueError), match=message):
        send(*args, **kwargs)

    assert not Task.objects.exists()


@pytest.mark.django_db
def test_send_many_inserts_all_or_none():
    with pytest.raises(TypeError, match="'nope'"):
        collect.send_many([{"a": 1}, {"a": 1, "nope": 2}])

    assert not Task.objects.exists()
    assert [handle.status() for handle in collect.send_many([{"a": 1}, {"a": 2}])] == ["PENDING", "PENDING"]
    assert collect.send_many([]) == []


@pytest.mark.django_db
def test_send_many_takes_one_insert_per_thousand_calls(django_assert_num_queries):
    if connection.vendor == "sqlite":
        return  # Django splits an INSERT there by the number of its parameters
    with transaction.atomic(), django_assert_num_queries(3):
        collect.send_many({"a": number} for number in range(2_500))


@pytest.mark.django_db
def test_a_send_takes_one_insert(django_assert_num_queries):
    with transaction.atomic(), django_assert_num_queries(1):
        collect.send(1)


@pytest.mark.django_db
def test_the_row_holds_the_call_and_the_databases_time():
    handle = collect.with_options(priority=7, queue_name="q").send(1, c=[5])

    row = Task.objects.get(pk=handle.id)
    assert (row.task_name, row.args, row.kwargs) == (collect.module_path, [1], {"c": [5]})
    assert (row.priority, row.queue_name, row.status) == (7, "q", TaskStatus.PENDING)
    assert row.sent_at == row.enqueued_at
    assert abs(timezone.now() - row.sent_at) < datetime.timedelta(minutes=1)
    assert row.pk.version == 7


@pytest.mark.django_db
@pytest.mark.parametrize("delay", [3600, datetime.timedelta(hours=1)])
def test_schedule_takes_a_delay(delay):
    row = Task.objects.get(pk=collect.schedule(delay, 1).id)

    assert abs(row.enqueued_at - row.sent_at - datetime.timedelta(hours=1)) < datetime.timedelta(seconds=1)
    assert Task.objects.scheduled().get() == row
    assert not Task.objects.due().exists()


@pytest.mark.django_db
def test_schedule_takes_a_time():
    eta = timezone.now() + datetime.timedelta(days=1)

    assert Task.objects.get(pk=collect.schedule(eta, 1).id).enqueued_at == eta


@pytest.mark.parametrize("eta", ["tomorrow", True, None])
def test_schedule_refuses_an_invalid_time(eta):
    with pytest.raises(TypeError, match="allowed: seconds, a timedelta or an aware datetime"):
        collect.schedule(eta, 1)


@pytest.mark.django_db
def test_a_second_send_with_a_unique_key_returns_the_handle_of_the_live_task():
    unique = collect.with_options(unique_key="only one")
    first = unique.send(1)

    assert unique.send(2) == first
    first.cancel()
    assert unique.send(3) != first
    assert not first.retry()  # another task holds its key
    assert Task.objects.count() == 2


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": "LOST"}, "status_is_known"),
        ({"status": "COMPLETED"}, "completed_task_has_completed_at"),
        ({"status": "FAILED"}, "failed_task_has_failed_at"),
        ({"status": "CANCELLED"}, "cancelled_task_has_cancelled_at"),
        ({"status": "EXPIRED"}, "expired_task_has_expired_at"),
        ({"priority": 101}, "priority_is_in_range"),
    ],
)
def test_the_constraints_of_the_database_refuse_an_invalid_row(change, message):
    row = Task.objects.get(pk=collect.send(1).id)

    with pytest.raises(DatabaseError, match=message), transaction.atomic():
        Task.objects.filter(pk=row.pk).update(**change)


# Handles.


@pytest.mark.django_db
def test_get_returns_an_error_code_if_there_is_no_result():
    handle = collect.send(1)
    kept_none = Task.objects.create(task_name="x", status="COMPLETED", completed_at=timezone.now())

    assert handle.get(0).err.error_code == handle.get(0.05).err.error_code == RetrievalCode.WAIT_TIMEOUT
    assert TaskHandle(uuid.uuid4()).get().err.error_code == RetrievalCode.TASK_NOT_FOUND
    assert TaskHandle(kept_none.pk).get().err.error_code == RetrievalCode.RESULT_NOT_AVAILABLE
    assert TaskHandle(uuid.uuid4()).status() is None
    assert TaskHandle(uuid.uuid4()).info() is None
    with pytest.raises(ValueError, match="timeout is -1"):
        handle.get(-1)


def test_a_handle_returns_the_result_the_value_and_the_info(drain):
    good, bad = collect.send(1), tasks.fail.send("why")
    drain()

    assert good.get() == TaskResult(ok=[1, 2, 3])
    assert good.value() == [1, 2, 3]
    with pytest.raises(TaskFailed, match="why") as caught:
        bad.value()
    assert caught.value.error.error_code == "UNHANDLED_EXCEPTION"
    info = TaskHandle(str(good.id)).info()
    assert (info.status, info.attempt, info.result) == (TaskStatus.COMPLETED, 1, TaskResult(ok=[1, 2, 3]))
    assert bad.info().error_code == "UNHANDLED_EXCEPTION"


@pytest.mark.django_db(transaction=True)
async def _use_async_methods():
    handle = await collect.asend(1)
    later = await collect.aschedule(60, 1)
    many = await collect.asend_many([{"a": 1}])
    assert [await sent.astatus() for sent in (handle, later, *many)] == ["PENDING"] * 3
    assert (await handle.aget(0)).err.error_code == RetrievalCode.WAIT_TIMEOUT
    assert (await handle.ainfo()).name == collect.module_path
    assert await handle.acancel()
    with pytest.raises(TaskFailed):
        await handle.avalue()
    assert await handle.aretry()


@pytest.mark.django_db(transaction=True)
def test_sends_and_handles_have_async_methods():
    from asgiref.sync import async_to_sync

    async_to_sync(_use_async_methods)()


def test_a_result_has_exactly_one_of_ok_and_err():
    for bad in ({}, {"ok": 1, "err": 2}):
        with pytest.raises(TypeError, match="exactly one"):
            TaskResult(**bad)
    assert TaskResult(ok=None).is_ok()
    assert TaskResult(ok=None).unwrap() is None


def test_none_is_stored_and_read_back_as_none(drain):
    handle = echo.send(None)

    drain()

    assert Task.objects.get(pk=handle.id).result == {"ok": None}
    assert handle.get(0) == TaskResult(ok=None)


# Values.

RICH_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
    | st.datetimes(timezones=st.just(datetime.UTC))
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.uuids()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.builds(Point, st.integers(), st.lists(st.integers())),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["a", "$type", "value", "class"]), inner),
    max_leaves=12,
)


@given(RICH_VALUES)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_rich_value_is_unchanged_after_encoding_and_decoding(value):
    import json

    stored = json.loads(dumps(encode(value, typed=True, where="it")))

    assert decode(stored, typed=True) == value


@given(st.text(st.characters(), max_size=50))
@settings(deadline=None)
def test_encode_refuses_an_invalid_text_and_clean_text_makes_it_valid(text):
    try:
        encode(text, typed=False, where="it")
    except ValueError:
        assert "\0" in text or any("\ud800" <= character <= "\udfff" for character in text)
    else:
        assert "\0" not in text
        text.encode()
    assert "\0" not in clean_text(text)
    clean_text(text).encode()


@pytest.mark.parametrize(
    "value",
    [
        datetime.datetime(2026, 3, 29, 2, 30, tzinfo=datetime.UTC),
        datetime.date(2026, 1, 1),
        uuid.UUID(int=7),
        Decimal("1.10"),
        Point(1, [2]),
        {"$type": "date", "value": "a trap"},
    ],
    ids=repr,
)
def test_arguments_and_results_keep_rich_values(drain, settings, value):
    settings.TASKS = RICH
    handle = echo.send(value)

    drain()

    assert handle.value(0) == value
    assert echo.get_result(handle.id).return_value == value
    assert echo.get_result(handle.id).args == [value]


@pytest.mark.parametrize("tagged", [{"$type": "nonsense"}, {"$type": "dataclass", "class": "os.system", "value": {}}])
def test_an_argument_with_an_unknown_type_tag_fails_the_task(drain, settings, tagged):
    settings.TASKS = RICH
    row = Task.objects.create(task_name=echo.module_path, args=[tagged], typed_payload=True)

    drain()

    row.refresh_from_db()
    assert (row.status, row.error_code) == (TaskStatus.FAILED, "WORKER_SERIALIZATION_ERROR")


# States and ids.


def test_state_names_equal_their_values_and_four_states_are_terminal():
    assert [state.value for state in TaskStatus] == [state.name for state in TaskStatus]
    assert [state for state in TaskStatus if not state.is_terminal] == ["PENDING", "CLAIMED", "RUNNING"]
    assert isinstance(TASK_TERMINAL_STATES, frozenset)
    assert {"COMPLETED", "FAILED", "CANCELLED", "EXPIRED"} == TASK_TERMINAL_STATES


def test_ids_are_unique_and_ascend_within_each_thread():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        batches = list(pool.map(lambda _: [uuid7() for _ in range(2_000)], range(4)))

    assert all(batch == sorted(batch) for batch in batches)
    assert len({key for batch in batches for key in batch}) == 8_000
    assert {(key.version, key.variant) for key in batches[0]} == {(7, uuid.RFC_4122)}
