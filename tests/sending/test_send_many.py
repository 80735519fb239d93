"""Many calls at once: all of them or none, with one INSERT per 1,000."""

import datetime
import math

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from horsies_django.models import Task
from tests.sending import jobs


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
