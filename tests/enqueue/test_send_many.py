"""``send_many()`` inserts all calls or none, with one INSERT per 1,000."""

import asyncio
import datetime
import math
import uuid
from decimal import Decimal

import hypothesis
import pytest
from asgiref.sync import async_to_sync
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from horsies_django import RetryPolicy
from horsies_django.models import Task
from tests.enqueue import jobs
from tests.naming import stable


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("count", [1, 1_000, 1_001, 2_500])
def test_send_many_is_one_insert_per_thousand_calls_and_one_notification(count):
    with CaptureQueriesContext(connection) as captured:
        jobs.triple.send_many({"a": number} for number in range(count))

    statements = [query["sql"] for query in captured if query["sql"].split()[0] not in ("BEGIN", "COMMIT")]
    inserts = [sql for sql in statements if sql.startswith("INSERT")]
    assert len(inserts) == math.ceil(count / 1_000)
    assert len(statements) - len(inserts) <= (connection.vendor == "postgresql")
    assert Task.objects.count() == count


@pytest.mark.django_db
def test_send_many_of_2500_calls_in_a_transaction_is_three_statements(django_assert_num_queries):
    with transaction.atomic(), django_assert_num_queries(3):
        jobs.triple.send_many({"a": number} for number in range(2_500))

    assert Task.objects.count() == 2_500


@pytest.mark.django_db
def test_send_many_returns_handles_and_ids_in_the_order_of_the_calls():
    handles = jobs.triple.send_many({"a": number} for number in range(1_200))

    rows = Task.objects.order_by("pk")

    assert [row.args or row.kwargs for row in rows] == [{"a": number} for number in range(1_200)]
    assert [row.pk for row in rows] == [handle.id for handle in handles]


@pytest.mark.django_db
def test_send_many_gives_each_row_the_tasks_options_and_the_time():
    job = jobs.with_every_option.with_options(priority=9)

    job.send_many([{"a": 1}, {}])

    one, two = Task.objects.order_by("pk")
    assert (one.kwargs, two.kwargs) == ({"a": 1}, {})
    for row in (one, two):
        assert (row.queue_name, row.priority, row.timeout, row.max_retries) == ("slow", 9, 30, 2)
        assert (row.status, row.sent_at) == ("PENDING", row.enqueued_at)


def test_every_task_of_send_many_runs(drain):
    handles = jobs.triple.send_many([{"a": 1}, {"a": 2, "b": 3}, {"a": 4, "c": 5}])

    drain()

    assert [handle.value(0) for handle in handles] == [[1, 2, 3], [2, 3, 3], [4, 2, 5]]


def test_send_many_with_run_after_defers_every_task(drain):
    eta = timezone.now() + datetime.timedelta(days=1)
    handles = jobs.triple.with_options(run_after=eta).send_many([{"a": 1}, {"a": 2}])

    drain()

    assert [handle.status() for handle in handles] == ["PENDING"] * 2
    assert Task.objects.scheduled().count() == 2


@pytest.mark.django_db
def test_send_many_of_no_calls_runs_no_statement(django_assert_num_queries):
    with django_assert_num_queries(0):
        handles = jobs.triple.send_many([])

    assert handles == []


@pytest.mark.django_db
@pytest.mark.parametrize("index", [0, 1, 1_100])
@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({}, "'a'"),
        ({"a": 1, "nope": 2}, "'nope'"),
        ({"a": float("nan")}, "'a'"),
        ({"a": "\0"}, "'a'"),
        ({"a": 1, "c": {1}}, "'c'"),
        (5, "of type int; allowed: a mapping"),
        ([("a", 1)], "of type list; allowed: a mapping"),
        (Task(id=uuid.UUID(int=1)), "of type Task; allowed: a mapping"),
        ({1: 2}, "string"),
    ],
    ids=str,
)
def test_send_many_names_one_bad_call_and_inserts_nothing(bad, named, index):
    calls = [{"a": number} for number in range(1_200)]
    calls[index] = bad

    with pytest.raises((TypeError, ValueError), match=named):
        jobs.triple.send_many(calls)

    assert Task.objects.count() == 0


@pytest.mark.django_db
def test_an_error_in_the_callers_generator_inserts_nothing():
    def calls():
        yield {"a": 1}
        raise LookupError("the caller's own")

    with pytest.raises(LookupError, match="the caller's own"):
        jobs.triple.send_many(calls())

    assert Task.objects.count() == 0


@pytest.mark.django_db
def test_send_many_refuses_a_unique_key():
    job = jobs.triple.with_options(unique_key="k")

    with pytest.raises(ValueError, match="unique_key is for one"):
        job.send_many([{"a": 1}])

    assert Task.objects.count() == 0


# More calls than send_many() checks before it inserts the first.

MANY = 10_500


@pytest.mark.once
@pytest.mark.django_db
def test_a_late_bad_call_inserts_nothing_and_leaves_the_transaction_usable():
    def calls():
        yield from ({"a": number} for number in range(MANY))
        yield {"a": float("nan")}

    with transaction.atomic():
        kept = jobs.triple.send(1)
        with pytest.raises(ValueError, match="'a'"):
            jobs.triple.send_many(calls())
        other = jobs.triple.send(2)

    assert {row.pk for row in Task.objects.all()} == {kept.id, other.id}


@pytest.mark.once
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("count", [0, 10, MANY])
def test_a_generator_that_raises_at_any_position_inserts_nothing(count):
    def calls():
        yield from ({"a": number} for number in range(count))
        raise LookupError("the caller's own")

    with pytest.raises(LookupError, match="the caller's own"):
        jobs.triple.send_many(calls())

    assert Task.objects.count() == 0


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.django_db(transaction=True)
def test_send_many_inserts_rows_before_a_long_generator_ends():
    inserted = []

    def calls():
        for number in range(MANY):
            yield {"a": number}
        inserted.append(Task.objects.count())

    handles = jobs.triple.send_many(calls())

    assert 0 < inserted[0] < MANY
    assert [row.pk for row in Task.objects.order_by("pk").only("pk")] == [handle.id for handle in handles]
    assert len({handle.id for handle in handles}) == MANY


@pytest.mark.once
@pytest.mark.django_db(transaction=True)
def test_a_rollback_removes_all_rows_of_send_many():
    with transaction.atomic():
        jobs.triple.send_many({"a": number} for number in range(MANY))
        inside = Task.objects.count()
        transaction.set_rollback(True)

    assert (inside, Task.objects.count()) == (MANY, 0)


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.django_db
def test_send_many_stores_several_large_calls():
    texts = [letter * 1_500_000 for letter in "abcdefg"]

    handles = jobs.triple.send_many({"a": text} for text in texts)

    rows = Task.objects.in_bulk([handle.id for handle in handles])
    assert [rows[handle.id].kwargs == {"a": text} for handle, text in zip(handles, texts, strict=True)] == [True] * 7


@pytest.mark.parametrize("index", [0, 1_100])
def test_a_call_that_the_database_refuses_inserts_nothing(refusing_13, index):
    calls = [{"a": 0}] * 2_500
    calls[index] = {"a": 13}

    with pytest.raises(IntegrityError, match="refuses"):
        jobs.triple.send_many(calls)

    assert Task.objects.count() == 0
    assert jobs.triple.send_many([{"a": 1}])[0].status() == "PENDING"


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_generator_may_use_the_database_while_calls_are_inserted(transactional_db):
    seen = []

    def calls():
        for number in range(MANY):
            if number % 7_000 == 0:
                seen.append(jobs.triple.send(number).status())
            yield {"a": number}

    handles = jobs.triple.send_many(calls())

    assert seen == ["PENDING"] * len(seen)
    assert Task.objects.count() == len(handles) + len(seen)


# An async iterable.


async def numbers(count, error=None):
    call = {}
    for number in range(count):
        await asyncio.sleep(0)
        call["a"] = number  # the same dict again
        yield call
    if error is not None:
        raise error


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.django_db(transaction=True)
def test_asend_many_takes_an_async_iterable():
    handles = async_to_sync(jobs.triple.asend_many)(numbers(1_500))

    rows = Task.objects.in_bulk([handle.id for handle in handles])
    assert [rows[handle.id].kwargs for handle in handles] == [{"a": number} for number in range(1_500)]


@pytest.mark.django_db(transaction=True)
def test_an_async_iterable_that_raises_inserts_nothing():
    with pytest.raises(LookupError, match="the caller's own"):
        async_to_sync(jobs.triple.asend_many)(numbers(1_500, LookupError("the caller's own")))

    assert Task.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_an_async_iterable_may_wait_for_other_code_that_uses_the_database():
    async def send_all():
        queue = asyncio.Queue()

        async def fill():
            for _ in range(3):
                await queue.put({"a": await Task.objects.acount()})
            await queue.put(None)

        async def calls():
            while (call := await queue.get()) is not None:
                yield call

        handles, _ = await asyncio.gather(jobs.triple.asend_many(calls()), fill())
        return handles

    assert len(async_to_sync(send_all)()) == Task.objects.count() == 3


# send_many() writes the same rows as send().

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
    | st.sampled_from(["'", '"', "\\", "%s", "{}", "{a,b}", "NULL", "\\x00", "$1", "\u2028", "\t\n", "é🐎"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab$%\"\\'", max_size=3), inner, max_size=3),
    max_leaves=8,
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers(-100, 100),
        "queue_name": st.sampled_from(["default", "other", "it's", 'a "q"', "50 %"]),
        "run_after": st.sampled_from([datetime.timedelta(0), datetime.timedelta(hours=1)])
        | st.datetimes(datetime.datetime(2020, 1, 1), datetime.datetime(2040, 1, 1), timezones=st.just(datetime.UTC)),
        "good_until": st.datetimes(
            datetime.datetime(2041, 1, 1), datetime.datetime(9997, 12, 31), timezones=st.just(datetime.UTC)
        ),
        "retention": st.sampled_from([None, 0, 3_600, "7d", "inherit", {"completed": 0, "failed": "7d"}]),
        "timeout": st.floats(0.5, 1e6),
        "metadata": st.dictionaries(st.text("ab%"), st.integers() | st.text("%'\\é")),
        "retry_policy": st.just(RetryPolicy.fixed([60, 120], auto_retry_for=["DOWN", "50 %"])),
    },
)
#: Columns that differ between two rows of the same call.
DIFFERING = {"id", "sent_at", "enqueued_at", "run_after"}


def columns(row):
    """Return the columns that two rows of the same call share."""
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields} | dict.fromkeys(
        DIFFERING
    )


def times(row):
    """Return the requested times, in seconds from the send."""
    return [at and (at - row.sent_at).total_seconds() for at in (row.enqueued_at, row.run_after)]


def assert_same(one, other):
    assert columns(one) == columns(other)
    assert times(one) == pytest.approx(times(other), abs=60)


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.django_db
@given(kwargs=st.fixed_dictionaries({"a": VALUES}, optional={"b": VALUES, "c": VALUES}), options=OPTIONS)
@hypothesis.settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_send_many_writes_the_same_row_as_send(kwargs, options):
    job = jobs.triple.with_options(**options)

    with transaction.atomic():
        alone, (one, other) = job.send(**kwargs), job.send_many([kwargs, kwargs])

    rows = Task.objects.in_bulk([alone.id, one.id, other.id])
    assert_same(rows[alone.id], rows[one.id])
    assert_same(rows[one.id], rows[other.id])


@pytest.mark.django_db
@pytest.mark.parametrize("job", [jobs.triple, jobs.with_every_option, jobs.with_attempts, jobs.acoroutine], ids=stable)
def test_send_many_writes_the_same_row_as_send_for_each_kind_of_task(job):
    kwargs = {} if job is jobs.with_attempts else {"a": 1}

    with transaction.atomic():
        alone, (one,) = job.send(**kwargs), job.send_many([kwargs])

    rows = Task.objects.in_bulk([alone.id, one.id])
    assert_same(rows[alone.id], rows[one.id])


@pytest.mark.django_db
def test_send_many_tags_rich_values_as_send_does(settings):
    backend = {"BACKEND": "horsies_django.backend.HorsiesBackend", "QUEUES": [], "OPTIONS": {"serializer": "rich"}}
    settings.TASKS = {"default": backend}
    value = [datetime.date(2026, 1, 2), Decimal("1.10"), uuid.UUID(int=7), jobs.Address("x"), {"$type": "trap"}]

    alone, (one,) = jobs.triple.send(a=value), jobs.triple.send_many([{"a": value}])

    rows = Task.objects.in_bulk([alone.id, one.id])
    assert_same(rows[alone.id], rows[one.id])
    assert rows[one.id].typed_payload
    assert rows[one.id].kwargs["a"][0] == {"$type": "date", "value": "2026-01-02"}
