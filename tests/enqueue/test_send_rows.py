"""``send_many()`` of a queryset reads its rows while it inserts the calls."""

import contextlib
import os
import subprocess
import sys

import pytest
from asgiref.sync import async_to_sync
from django.db import DataError, IntegrityError, connection, connections, transaction
from django.db.models import Case, Exists, F, OuterRef, TextField, Value, When
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.test.utils import CaptureQueriesContext

from horsies_django import Unique
from horsies_django.models import Task, TaskItem
from horsies_django.testing import captured
from tests.conftest import ROOT, database_url
from tests.database import is_postgres
from tests.enqueue import jobs
from tests.enqueue.grouping.jobs import three
from tests.jobs import limited, tasks
from tests.jobs.models import Entry

pytestmark = pytest.mark.django_db(transaction=True)

#: More rows than send_many() reads before it inserts the first.
MANY = 10_500

TRANSACTIONS = {"autocommit": contextlib.nullcontext, "atomic": transaction.atomic}


@pytest.fixture(params=TRANSACTIONS)
def in_transaction(request):
    """A context manager: a transaction, or none."""
    return TRANSACTIONS[request.param]


@pytest.fixture
def other():
    """The alias of another connection to the same database."""
    connections["other"] = connections.create_connection("default")
    connections["other"].alias = "other"
    yield "other"
    connections["other"].close()
    del connections["other"]


def store(count):
    Entry.objects.bulk_create(Entry(key=f"k{number}", pid=number) for number in range(count))


def open_cursors(alias="default"):
    """Return how many cursors the connection has open on the server."""
    if not is_postgres():
        return 0
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_cursors WHERE name LIKE '_django%'")
        return cursor.fetchone()[0]


def kwargs_of(handles):
    rows = Task.objects.in_bulk([handle.id for handle in handles])
    return [rows[handle.id].kwargs for handle in handles]


@pytest.mark.slow
@pytest.mark.sqlite
def test_send_many_of_a_queryset_sends_a_task_for_each_row_in_their_order(in_transaction):
    store(2_500)
    rows = Entry.objects.order_by("-pid").values(a=F("key"), b=F("pid"))

    with in_transaction():
        handles = jobs.triple.send_many(rows)

    assert kwargs_of(handles) == [{"a": f"k{number}", "b": number} for number in reversed(range(2_500))]
    assert rows._result_cache is None
    assert open_cursors() == 0


@pytest.mark.slow
def test_a_queryset_of_another_database_is_read_there(in_transaction, other):
    store(MANY)
    rows = Entry.objects.using(other).order_by("pid").values(a=F("pid"))

    with in_transaction(), CaptureQueriesContext(connections[other]) as queries:
        handles = jobs.triple.send_many(rows)

    assert len(queries) == 1
    assert len(handles) == Task.objects.count() == MANY
    assert handles[-1].info() is not None
    assert open_cursors(other) == 0


def test_an_evaluated_queryset_is_not_read_again():
    store(3)
    rows = Entry.objects.values(a=F("pid"))
    assert len(rows) == 3

    with CaptureQueriesContext(connection) as queries:
        jobs.triple.send_many(rows)

    assert not any(query["sql"].startswith("SELECT") and "jobs_entry" in query["sql"] for query in queries)
    assert Task.objects.count() == 3


def test_a_queryset_without_rows_sends_nothing():
    assert jobs.triple.send_many(Entry.objects.values("key")) == []
    assert jobs.triple.send_many(Entry.objects.none().values("key")) == []


def test_rows_of_a_queryset_join_groups(in_transaction):
    store(7)
    Entry.objects.update(key="a")

    with in_transaction():
        handles = three.send_many(Entry.objects.order_by("pid").values("key", value=F("pid")))

    assert [handles.index(handle) for handle in handles] == [0, 0, 0, 3, 3, 3, 6]
    assert TaskItem.objects.count() == 7


@pytest.mark.slow
def test_rows_of_a_queryset_may_be_calls_of_a_unique_task(in_transaction):
    store(MANY)
    job = jobs.triple.with_options(unique=Unique(by=("a",)))
    rows = Entry.objects.order_by("-pid").values(a=F("pid") % 3_500)

    with in_transaction():
        handles = job.send_many(rows)

    assert [handle.replayed for handle in handles] == [False] * 3_500 + [True] * 7_000
    assert kwargs_of(handles[:3]) == [{"a": 3_499}, {"a": 3_498}, {"a": 3_497}]
    assert Task.objects.count() == 3_500


@pytest.mark.slow
def test_rows_of_a_queryset_may_be_calls_of_a_limited_task(in_transaction):
    store(MANY)

    user = Case(When(pid__lt=MANY - 5, then=Value("ann")), default=Value("ben"))

    with in_transaction():
        limited.two_per_user.send_many(Entry.objects.values(user=user))

    assert Task.objects.count() == MANY
    assert Task.objects.filter(blocked=False).count() == 4


@pytest.mark.slow
def test_tasks_may_be_sent_for_rows_of_the_table_of_tasks(in_transaction):
    jobs.triple.send_many({"a": number} for number in range(MANY))

    with in_transaction():
        handles = jobs.triple.send_many(Task.objects.order_by("pk").values(a=F("kwargs__a")))

    assert len(handles) == MANY
    assert Task.objects.count() == 2 * MANY


@pytest.mark.slow
@pytest.mark.sqlite
def test_tasks_may_be_sent_for_rows_without_tasks(in_transaction):
    store(MANY)
    keyed = Task.objects.annotate(key=Cast(KT("kwargs__a"), TextField()))
    tasks_of_row = keyed.filter(key=Cast(OuterRef("pid"), TextField()))

    with in_transaction():
        handles = jobs.triple.send_many(Entry.objects.filter(~Exists(tasks_of_row)).values(a=F("pid")))

    assert len(handles) == MANY
    assert jobs.triple.send_many(Entry.objects.none().values(a=F("pid"))) == []


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("rows", [3, MANY])
def test_an_error_in_the_last_row_inserts_nothing_and_leaves_the_transaction_usable(rows, in_transaction):
    store(rows)
    values = Entry.objects.order_by("pid").values(a=Case(When(pid=rows - 1, then=None), default="pid"))

    with in_transaction():
        kept = jobs.triple.send(1)
        with pytest.raises(TypeError, match="'a' is None"):
            tasks.add.send_many(values)
        assert open_cursors() == 0
        other = jobs.triple.send(2)

    assert {row.pk for row in Task.objects.all()} == {kept.id, other.id}


@pytest.mark.slow
@pytest.mark.sqlite
def test_an_error_of_the_query_inserts_nothing_and_leaves_the_transaction_usable(in_transaction):
    store(MANY)
    rows = Entry.objects.order_by("-pid").values(a=Value(1) / F("pid"))

    with in_transaction():
        kept = jobs.triple.send(1)
        # SQLite divides by zero without an error.
        with pytest.raises(DataError, match="division by zero") if is_postgres() else contextlib.nullcontext():
            jobs.triple.send_many(rows)
        assert open_cursors() == 0
        other = jobs.triple.send(2)

    if is_postgres():
        assert {row.pk for row in Task.objects.all()} == {kept.id, other.id}


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("rows", [100, MANY])
def test_an_insert_that_fails_inserts_nothing_and_leaves_the_transaction_usable(rows, in_transaction, refusing_13):
    store(rows)

    with in_transaction():
        kept = jobs.triple.send(1)
        with pytest.raises(IntegrityError, match="refuses"):
            jobs.triple.send_many(Entry.objects.order_by("-pid").values(a=F("pid")))
        assert open_cursors() == 0
        other = jobs.triple.send(2)

    assert {row.pk for row in Task.objects.all()} == {kept.id, other.id}


@pytest.mark.slow
@pytest.mark.sqlite
def test_asend_many_reads_a_queryset_in_the_thread_that_inserts(in_transaction):
    store(2_500)
    rows = Entry.objects.values(a=F("pid"))

    with in_transaction():
        handles = async_to_sync(jobs.triple.asend_many)(rows)

    assert len(handles) == Task.objects.count() == 2_500
    assert rows._result_cache is None


def test_a_rollback_of_the_caller_removes_the_tasks_of_asend_many():
    store(3)

    with transaction.atomic():
        async_to_sync(jobs.triple.asend_many)(Entry.objects.values(a=F("pid")))
        transaction.set_rollback(True)

    assert Task.objects.count() == 0


def test_captured_calls_of_a_queryset_are_listed_and_no_task_is_stored():
    store(2)

    with captured() as calls:
        handles = jobs.triple.send_many(Entry.objects.order_by("pid").values(a=F("pid")))

    assert [call.kwargs for call in calls] == [{"a": 0}, {"a": 1}]
    assert [call.handle for call in calls] == handles
    assert Task.objects.count() == 0


def send_captured(rows):
    with captured():
        jobs.triple.send_many(rows)


SENDS = {
    "send_many": jobs.triple.send_many,
    "asend_many": async_to_sync(jobs.triple.asend_many),
    "gather": three.send_many,
    "unique": jobs.triple.with_options(unique=Unique()).send_many,
    "captured": send_captured,
}


@pytest.fixture(params=SENDS)
def send(request):
    """Each way to send for many rows."""
    return SENDS[request.param]


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        (Entry.objects.all(), "ModelIterable"),
        (Entry.objects.values_list("key"), "ValuesListIterable"),
        (Entry.objects.values_list("key", flat=True), "FlatValuesListIterable"),
        (Entry.objects.values_list("key", named=True), "NamedValuesListIterable"),
    ],
    ids=["instances", "tuples", "flat", "named"],
)
def test_a_queryset_whose_rows_are_no_dicts_is_refused_without_a_query(rows, kind, send, django_assert_num_queries):
    with django_assert_num_queries(0), pytest.raises(TypeError) as caught:
        send(rows)

    problem = f"send_many() got a queryset of Entry ({kind})"
    assert str(caught.value) == f"{problem}; allowed: one with .values(), which yields dicts."


@pytest.mark.parametrize(
    "bad", [Entry(key="secret"), ("key", "secret"), "secret", None], ids=["row", "tuple", "text", "none"]
)
def test_a_call_that_is_no_mapping_is_named_by_its_place_and_nothing_is_sent(bad, send):
    call = {"key": "a"} if send == three.send_many else {"a": 1}

    with pytest.raises(TypeError, match=f"call 3 is of type {type(bad).__name__}; allowed: a mapping") as caught:
        send([call, call, call, bad])

    assert "secret" not in str(caught.value)
    assert Task.objects.count() == 0


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak memory of one process")
@pytest.mark.parametrize(
    ("few", "many"), [(50_000, 300_000), pytest.param(100_000, 1_000_000, marks=pytest.mark.nightly)]
)
def test_sending_for_a_million_rows_takes_no_more_memory_than_their_handles(few, many):
    numbers = f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {few + many})"
    with connection.cursor() as cursor:
        cursor.execute(f"{numbers} INSERT INTO jobs_entry (id, key, pid, at) SELECT n, 'k' || n, n, 0 FROM numbers")

    done = subprocess.run(
        [sys.executable, "-m", "tests.enqueue.sending_rows", str(few), str(many)],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database_url()},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr == ""
    peak_of_few, peak_of_many = map(int, done.stdout.split())
    assert peak_of_many - peak_of_few < 17 * many + 4_000_000
