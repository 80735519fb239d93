"""The cost of a send: its statements, and its client CPU compared with ``create()`` of the same row."""

import time
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from horsies_django.db import notifications
from horsies_django.models import Task
from tests.enqueue import jobs

SENDS = {
    "send": lambda: jobs.triple.send(1, c=5),
    "asend": lambda: async_to_sync(jobs.triple.asend)(1, c=5),
    "schedule": lambda: jobs.triple.schedule(60, 1, c=5),
    "enqueue": lambda: jobs.triple.enqueue(1, c=5),
    "aenqueue": lambda: async_to_sync(jobs.triple.aenqueue)(1, c=5),
    "a unique key": lambda: jobs.triple.with_options(unique_key="k").send(1, c=5),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("method", SENDS)
def test_a_send_outside_a_transaction_is_one_insert_that_also_notifies(method):
    with CaptureQueriesContext(connection) as captured:
        SENDS[method]()

    (only,) = (query["sql"] for query in captured)
    assert only.startswith("INSERT")
    assert Task.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_twenty_sends_in_a_transaction_are_twenty_inserts_and_one_notification(monkeypatch):
    monkeypatch.setattr(notifications, "MIN_INTERVAL", 600)  # so that slow sends notify only once too
    monkeypatch.setattr(notifications, "BURST", 1)
    job = jobs.triple.with_options(queue_name="notified once")
    with CaptureQueriesContext(connection) as captured, transaction.atomic():
        for number in range(20):
            job.send(number)

    statements = [query["sql"] for query in captured if query["sql"].split()[0] not in ("BEGIN", "COMMIT")]
    assert [sql.split()[0] for sql in statements[:20]] == ["INSERT"] * 20
    assert all("pg_notify" in sql for sql in statements[20:])
    assert len(statements) - 20 == (connection.vendor == "postgresql")


@pytest.mark.django_db(transaction=True)
def test_send_many_inserts_5000_calls_in_five_statements():
    with CaptureQueriesContext(connection) as captured:
        jobs.triple.send_many({"a": number} for number in range(5_000))

    keywords = [query["sql"].split()[0] for query in captured]
    assert keywords[:7] == ["BEGIN", *["INSERT"] * 5, "COMMIT"]
    assert len(keywords) <= 8
    assert Task.objects.count() == 5_000


def cpu_seconds(act, count=100):
    began = time.thread_time()
    for _ in range(count):
        act()
    return time.thread_time() - began


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.django_db
@pytest.mark.parametrize(("method", "limit"), [("send", 1.0), ("enqueue", 1.2)])
def test_a_send_takes_about_as_much_client_cpu_as_creating_its_row(method, limit):
    """Both run side by side on one thread, so the machine's speed and its other load cancel out."""

    def create():
        Task.objects.create(task_name=jobs.triple.module_path, args=[1], kwargs={"c": 5})

    rounds = []
    while len(rounds) < 8 and min(rounds, default=limit) >= limit:
        rounds.append(cpu_seconds(SENDS[method]) / cpu_seconds(create))

    assert min(rounds) < limit, rounds


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.django_db
def test_send_many_takes_a_tenth_of_the_cpu_of_creating_each_row():
    def create():
        Task.objects.create(task_name=jobs.triple.module_path, args=[1], kwargs={"c": 5})

    rounds = []
    while len(rounds) < 5 and min(rounds, default=1) >= 0.1:
        many = cpu_seconds(lambda: jobs.triple.send_many([{"a": 1, "c": 5}] * 2_000), count=1) / 2_000
        rounds.append(many / (cpu_seconds(create) / 100))

    assert min(rounds) < 0.1, rounds


@pytest.mark.django_db(transaction=True)
def test_sends_work_with_server_side_binding():
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL binds parameters on the server")
    options = connection.settings_dict["OPTIONS"]
    connection.close()
    options["server_side_binding"] = True
    try:
        handle = jobs.with_every_option.send({"x": "%s"})
        later = jobs.with_every_option.with_options(run_after=timedelta(hours=1)).send_many([{"a": [None, "é"]}, {}])

        rows = Task.objects.in_bulk()
    finally:
        connection.close()
        del options["server_side_binding"]

    assert (rows[handle.id].args, rows[handle.id].timeout) == ([{"x": "%s"}], 30)
    assert [rows[one.id].kwargs for one in later] == [{"a": [None, "é"]}, {}]
    assert {rows[one.id].deferred for one in later} == {True}


@pytest.mark.django_db(transaction=True)
def test_metadata_changed_between_two_sends_is_stored_by_the_second():
    metadata = {"trace": 1}
    job = jobs.triple.with_options(metadata=metadata)

    first = job.send(1)
    metadata["trace"] = 2
    second = job.send(2)

    assert [Task.objects.get(pk=handle.id).metadata for handle in (first, second)] == [{"trace": 1}, {"trace": 2}]
    assert [Task.objects.get(pk=handle.id).args for handle in (first, second)] == [[1], [2]]


@pytest.mark.django_db(transaction=True)
def test_repeated_sends_of_a_task_make_one_row_each():
    job = jobs.triple.with_options(queue_name="a '100%' \\ \"queue\"", priority=-3, timeout=2.5)

    handles = [job.send(number) for number in range(3)]
    handles += [job.enqueue(3)]

    rows = [Task.objects.get(pk=handle.id) for handle in handles]
    assert [row.args for row in rows] == [[0], [1], [2], [3]]
    assert {(row.queue_name, row.priority, row.timeout) for row in rows} == {(job.queue_name, -3, 2.5)}
    assert len({row.pk for row in rows}) == 4
