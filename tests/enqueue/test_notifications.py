"""What PostgreSQL tells whoever listens, and when."""

import time

import pytest
from django.db import connection, transaction

from horsies_django.db import notifications, postgres
from horsies_django.db.notifications import MIN_INTERVAL
from horsies_django.models import Task
from tests.enqueue import jobs


@pytest.fixture
def heard(transactional_db):
    """Listen on a connection of its own; gives what has arrived since the last time it was asked."""
    if connection.vendor != "postgresql":
        pytest.skip("no LISTEN here")
    import psycopg

    parameters = connection.get_connection_params()
    for of_django in ("cursor_factory", "context"):
        parameters.pop(of_django, None)
    with (
        psycopg.connect(**parameters, autocommit=True) as listener,
        psycopg.connect(**parameters, autocommit=True) as other,
    ):
        listener.execute("LISTEN horsies_tasks")

        def payloads():
            other.execute("NOTIFY horsies_tasks, 'the end'")
            found = []
            for notice in listener.notifies(timeout=20):
                if notice.payload == "the end":
                    return found
                if notice.payload != postgres.SUBSCRIBE:  # of a waiter of an earlier test
                    found.append(notice.payload)
            pytest.fail("its own notification did not arrive")

        yield payloads


@pytest.fixture
def long_quiet(monkeypatch):
    """What was said is not said again in this test, however slowly it runs."""
    monkeypatch.setattr(notifications, "MIN_INTERVAL", 600)


def on_a_queue_of_its_own(request):
    """The limiter remembers what this process has said of a queue."""
    return jobs.triple.with_options(queue_name=request.node.name[:90])


def test_a_call_outside_a_transaction_is_told(heard, request):
    job = on_a_queue_of_its_own(request)

    job.send(1)

    assert heard() == [f"-{job.queue_name}"]


def test_a_call_for_later_is_told_as_one(heard, request):
    job = on_a_queue_of_its_own(request)

    job.schedule(60, 1)

    assert heard() == [f"+{job.queue_name}"]


def test_a_call_in_a_transaction_is_told_when_that_has_committed(heard, request, long_quiet):
    job = on_a_queue_of_its_own(request)

    with transaction.atomic():
        job.send(1)
        job.send(2)
        inside = heard()

    assert (inside, heard()) == ([], [f"-{job.queue_name}"])


def test_a_call_that_is_rolled_back_is_not_told(heard, request):
    job = on_a_queue_of_its_own(request)

    with transaction.atomic():
        job.send(1)
        transaction.set_rollback(True)

    assert heard() == []


def test_many_calls_are_told_once_and_after_the_commit(heard, request):
    job = on_a_queue_of_its_own(request)

    job.send_many({"a": number} for number in range(2_500))

    assert heard() == [f"-{job.queue_name}"]


def test_calls_in_quick_succession_are_told_once_in_a_while_and_in_no_statement_more(
    heard, request, django_assert_num_queries
):
    job = on_a_queue_of_its_own(request)
    began = time.monotonic()

    with django_assert_num_queries(50):
        for number in range(50):
            job.send(number)

    took = time.monotonic() - began
    assert 1 <= len(heard()) <= took / MIN_INTERVAL + 1
    assert Task.objects.count() == 50


def test_a_send_that_inserts_nothing_tells_nothing(heard, request):
    job = on_a_queue_of_its_own(request).with_options(unique_key="k")
    job.send(1)
    heard()
    time.sleep(2 * MIN_INTERVAL)  # so that nothing but the row that is there keeps it from being told

    again = job.send(2)

    assert again.replayed
    assert heard() == []


@pytest.fixture
def no_room(transactional_db):
    """Let each NOTIFY fail, as in a database that has none, or no room for one."""
    if connection.vendor != "postgresql":
        pytest.skip("no NOTIFY here")
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA full_queue")
        cursor.execute(
            "CREATE FUNCTION full_queue.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE program_limit_exceeded USING MESSAGE = 'too many notifications'; END $$"
        )
        cursor.execute("SET search_path TO full_queue, public, pg_catalog")
        yield
        cursor.execute("SET search_path TO DEFAULT")
        cursor.execute("DROP SCHEMA full_queue CASCADE")


def test_a_task_is_not_lost_with_its_notification(no_room, request, caplog):
    job = on_a_queue_of_its_own(request)

    handle = job.send(1)
    with transaction.atomic():
        other = job.send(2)

    assert (handle.status(), other.status()) == ("PENDING", "PENDING")
    assert "too many notifications" in caplog.text


def test_a_notification_that_fails_keeps_no_callback_of_its_transaction_from_running(no_room, request, caplog):
    job, called = on_a_queue_of_its_own(request), []

    with transaction.atomic():
        job.send(1)
        transaction.on_commit(lambda: called.append("mine"))

    assert called == ["mine"]
    assert "too many notifications" in caplog.text


def test_what_is_told_says_for_which_kind_of_body_it_is(heard, request):
    job = jobs.acoroutine.with_options(queue_name=request.node.name[:90])

    job.send(1)

    assert heard() == [f"~{job.queue_name}"]
