"""Many calls at once: all of them or none, with one INSERT per 1,000."""

import datetime
import math
import uuid
from decimal import Decimal

import hypothesis
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from horsies_django import RetryPolicy
from horsies_django.models import Task
from tests.enqueue import jobs
from tests.naming import stable


def rows_per_insert():
    """As many as we say, or as the database has parameters for."""
    fields = Task._meta.concrete_fields
    return min(1_000, connection.ops.bulk_batch_size(fields, [None] * 1_000) or 1_000)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("count", [1, 1_000, 1_001, 2_500])
def test_send_many_is_one_insert_per_thousand_and_one_notification_in_all(count):
    with CaptureQueriesContext(connection) as captured:
        jobs.triple.send_many({"a": number} for number in range(count))

    said = [query["sql"] for query in captured if query["sql"].split()[0] not in ("BEGIN", "COMMIT")]
    inserts = [sql for sql in said if sql.startswith("INSERT")]
    assert len(inserts) == math.ceil(count / rows_per_insert())
    assert len(said) - len(inserts) <= (connection.vendor == "postgresql")
    assert Task.objects.count() == count


@pytest.mark.django_db
def test_on_postgresql_2500_calls_in_a_transaction_are_three_statements(django_assert_num_queries):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has fewer parameters per statement")

    with transaction.atomic(), django_assert_num_queries(3):
        jobs.triple.send_many({"a": number} for number in range(2_500))

    assert Task.objects.count() == 2_500


@pytest.mark.django_db
def test_the_handles_are_in_the_order_of_the_calls_and_so_are_the_ids():
    handles = jobs.triple.send_many({"a": number} for number in range(1_200))

    rows = Task.objects.order_by("pk")

    assert [row.args or row.kwargs for row in rows] == [{"a": number} for number in range(1_200)]
    assert [row.pk for row in rows] == [handle.id for handle in handles]


@pytest.mark.django_db
def test_each_row_has_the_options_of_the_task_and_the_time_of_the_call():
    job = jobs.with_every_option.with_options(priority=9)

    job.send_many([{"a": 1}, {}])

    one, two = Task.objects.order_by("pk")
    assert (one.kwargs, two.kwargs) == ({"a": 1}, {})
    for row in (one, two):
        assert (row.queue_name, row.priority, row.timeout, row.max_retries) == ("slow", 9, 30, 2)
        assert (row.status, row.sent_at) == ("PENDING", row.enqueued_at)


def test_every_one_of_them_is_run(drain):
    handles = jobs.triple.send_many([{"a": 1}, {"a": 2, "b": 3}, {"a": 4, "c": 5}])

    drain()

    assert [handle.value(0) for handle in handles] == [[1, 2, 3], [2, 3, 3], [4, 2, 5]]


def test_they_may_be_for_later(drain):
    eta = timezone.now() + datetime.timedelta(days=1)
    handles = jobs.triple.with_options(run_after=eta).send_many([{"a": 1}, {"a": 2}])

    drain()

    assert [handle.status() for handle in handles] == ["PENDING"] * 2
    assert Task.objects.scheduled().count() == 2


@pytest.mark.django_db
def test_no_calls_are_no_rows_and_no_statements(django_assert_num_queries):
    with django_assert_num_queries(0):
        handles = jobs.triple.send_many([])

    assert handles == []


@pytest.mark.django_db
@pytest.mark.parametrize("place", [0, 1, 1_100])
@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({}, "'a'"),
        ({"a": 1, "nope": 2}, "'nope'"),
        ({"a": float("nan")}, "'a'"),
        ({"a": "\0"}, "'a'"),
        ({"a": 1, "c": {1}}, "'c'"),
        (5, "mapping"),
        ([("a", 1)], "mapping"),
        ({1: 2}, "string"),
    ],
    ids=str,
)
def test_one_call_that_does_not_fit_is_named_and_none_is_inserted(bad, named, place):
    calls = [{"a": number} for number in range(1_200)]
    calls[place] = bad

    with pytest.raises((TypeError, ValueError), match=named):
        jobs.triple.send_many(calls)

    assert Task.objects.count() == 0


@pytest.mark.django_db
def test_an_error_in_the_callers_generator_inserts_none():
    def calls():
        yield {"a": 1}
        raise LookupError("the caller's own")

    with pytest.raises(LookupError, match="the caller's own"):
        jobs.triple.send_many(calls())

    assert Task.objects.count() == 0


@pytest.mark.django_db
def test_a_unique_key_cannot_be_given_to_many():
    job = jobs.triple.with_options(unique_key="k")

    with pytest.raises(ValueError, match="unique_key is for one"):
        job.send_many([{"a": 1}])

    assert Task.objects.count() == 0


# More than it looks at before it begins.

MANY = 10_500


@pytest.mark.once
@pytest.mark.django_db
def test_a_mistake_far_down_a_generator_inserts_none_and_leaves_the_callers_transaction_usable():
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
def test_a_generator_that_raises_inserts_none_wherever_it_does(count):
    def calls():
        yield from ({"a": number} for number in range(count))
        raise LookupError("the caller's own")

    with pytest.raises(LookupError, match="the caller's own"):
        jobs.triple.send_many(calls())

    assert Task.objects.count() == 0


@pytest.mark.once
@pytest.mark.django_db(transaction=True)
def test_a_long_generator_is_not_read_to_its_end_before_the_first_is_inserted():
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
def test_many_calls_in_a_transaction_that_is_rolled_back_leave_nothing():
    with transaction.atomic():
        jobs.triple.send_many({"a": number} for number in range(MANY))
        inside = Task.objects.count()
        transaction.set_rollback(True)

    assert (inside, Task.objects.count()) == (MANY, 0)


@pytest.mark.django_db
def test_calls_that_are_large_each_are_all_there():
    texts = [letter * 1_500_000 for letter in "abcdefg"]

    handles = jobs.triple.send_many({"a": text} for text in texts)

    rows = Task.objects.in_bulk([handle.id for handle in handles])
    assert [rows[handle.id].kwargs == {"a": text} for handle, text in zip(handles, texts, strict=True)] == [True] * 7


# One of many is as one alone.

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
#: What is another for each row, or the moment at which it was sent.
ITS_OWN = {"id", "sent_at", "enqueued_at", "run_after"}


def columns(row):
    """Everything that is in a row but times."""
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields} | dict.fromkeys(ITS_OWN)


def times(row):
    """The times that were asked for, counted from when it was sent."""
    return [at and (at - row.sent_at).total_seconds() for at in (row.enqueued_at, row.run_after)]


def assert_same(one, other):
    assert columns(one) == columns(other)
    assert times(one) == pytest.approx(times(other), abs=60)


@pytest.mark.django_db
@given(kwargs=st.fixed_dictionaries({"a": VALUES}, optional={"b": VALUES, "c": VALUES}), options=OPTIONS)
@hypothesis.settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_row_that_send_many_writes_is_the_row_that_send_writes(kwargs, options):
    job = jobs.triple.with_options(**options)

    with transaction.atomic():
        alone, (one, other) = job.send(**kwargs), job.send_many([kwargs, kwargs])

    rows = Task.objects.in_bulk([alone.id, one.id, other.id])
    assert_same(rows[alone.id], rows[one.id])
    assert_same(rows[one.id], rows[other.id])


@pytest.mark.django_db
@pytest.mark.parametrize("job", [jobs.triple, jobs.with_every_option, jobs.with_attempts, jobs.acoroutine], ids=stable)
def test_the_row_is_the_same_for_each_kind_of_task(job):
    kwargs = {} if job is jobs.with_attempts else {"a": 1}

    with transaction.atomic():
        alone, (one,) = job.send(**kwargs), job.send_many([kwargs])

    rows = Task.objects.in_bulk([alone.id, one.id])
    assert_same(rows[alone.id], rows[one.id])


@pytest.mark.django_db
def test_rich_values_are_tagged_in_the_same_way(settings):
    backend = {"BACKEND": "horsies_django.backend.HorsiesBackend", "QUEUES": [], "OPTIONS": {"serializer": "rich"}}
    settings.TASKS = {"default": backend}
    value = [datetime.date(2026, 1, 2), Decimal("1.10"), uuid.UUID(int=7), jobs.Address("x"), {"$type": "trap"}]

    alone, (one,) = jobs.triple.send(a=value), jobs.triple.send_many([{"a": value}])

    rows = Task.objects.in_bulk([alone.id, one.id])
    assert_same(rows[alone.id], rows[one.id])
    assert rows[one.id].typed_payload
    assert rows[one.id].kwargs["a"][0] == {"$type": "date", "value": "2026-01-02"}
