"""Manual retries of many unique tasks: one task gets each key, unless a live task holds it."""

import threading

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from horsies_django import TaskStatus, Unique
from horsies_django.models import Task
from tests.conftest import wait_until
from tests.database import another_connection_waits_for_our_lock
from tests.enqueue.dedupe import jobs


def job(until):
    return jobs.note.with_options(unique=Unique(by=("name",), until=until, period=None if until else "1h"))


def send_and_cancel(until, *names):
    handles = job(until).send_many({"name": name} for name in names)
    Task.objects.filter(pk__in=[handle.id for handle in handles]).cancel()
    return handles


def pending_names():
    return sorted(Task.objects.filter(status=TaskStatus.PENDING).values_list("kwargs__name", flat=True))


@pytest.mark.django_db
def test_retrying_many_unique_tasks_takes_few_statements():
    send_and_cancel("done", *[f"n{number}" for number in range(60)])
    send_and_cancel("done", *[f"n{number}" for number in range(60)])
    live = job("done").send_many([{"name": "n7"}, {"name": "n8"}])

    with CaptureQueriesContext(connection) as queries:
        assert Task.objects.retry() == 58

    assert len(queries) <= 12, [query["sql"][:60] for query in queries]
    assert Task.objects.filter(status=TaskStatus.PENDING).values("unique_key").distinct().count() == 60
    assert {handle.status() for handle in live} == {TaskStatus.PENDING}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("until", "revived"),
    [("done", ["a", "b"]), ("success", ["a", "b"]), (None, ["a", "b"]), ("started", ["a", "a", "b"])],
)
def test_retry_revives_one_task_per_key_unless_keys_end_at_the_start(until, revived):
    first, *_ = send_and_cancel("done" if until in ("success", None) else until, "a")
    send_and_cancel(until, "a", "b")

    assert Task.objects.retry() == len(revived)

    assert pending_names() == revived
    assert (first.status() == TaskStatus.PENDING) is (until in ("done", "started"))  # else the second holds the key


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_a_key_taken_during_a_retry_holds_back_only_its_own_task(transactional_db):
    handles = send_and_cancel("done", *"abcdefg")
    counts = []

    def retry():
        try:
            counts.append(Task.objects.retry())
        finally:
            connection.close()

    thread = threading.Thread(target=retry, daemon=True)
    with transaction.atomic():
        job("done").send(name="g")  # found by halves, the last of them of two tasks
        thread.start()
        wait_until(another_connection_waits_for_our_lock)
    thread.join(30)

    assert counts == [6]
    assert pending_names() == list("abcdefg")
    assert [handle.status() for handle in handles].index(TaskStatus.CANCELLED) == 6
