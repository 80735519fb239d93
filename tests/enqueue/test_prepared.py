"""On PostgreSQL, the server prepares the INSERT of sends outside transactions. No send depends on it."""

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from horsies_django.db.postgres import SENDS_BEFORE
from horsies_django.models import Task
from tests.enqueue import jobs


@pytest.fixture
def fresh_connection(transactional_db):
    """Use a connection that has not sent before."""
    if connection.vendor != "postgresql":
        pytest.skip("no prepared statements here")
    connection.close()
    yield
    connection.close()


def prepared_statements():
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements")
        return [statement for (statement,) in cursor.fetchall()]


def send_until_prepared(job=jobs.triple):
    """Send often enough; the last send runs a prepared statement."""
    handles = [job.send(number) for number in range(SENDS_BEFORE + 2)]
    return [handle.id for handle in handles]


def test_one_prepared_statement_serves_all_tasks_with_the_same_columns(fresh_connection):
    ids = send_until_prepared() + send_until_prepared(jobs.acoroutine.with_options(queue_name="it's", priority=-7))

    notifies = ["pg_notify" in statement for statement in prepared_statements()]
    assert notifies in ([True], [False], [False, True], [True, False])  # one for the sends that notify, and one without
    rows = Task.objects.in_bulk(ids)
    assert [rows[key].args for key in ids] == [[number] for number in range(SENDS_BEFORE + 2)] * 2
    assert {(row.task_name, row.queue_name, row.priority, row.is_async) for row in rows.values()} == {
        ("tests.enqueue.jobs.triple", "default", 0, False),
        ("tests.enqueue.jobs.acoroutine", "it's", -7, True),
    }


def test_each_send_on_a_connection_is_one_statement(fresh_connection):
    statements = []

    def wrapper(execute, sql, params, many, context):
        statements.append(sql.split()[0])
        return execute(sql, params, many, context)

    with connection.execute_wrapper(wrapper):
        ids = send_until_prepared()

    assert statements == ["INSERT"] * len(ids)


def test_a_connection_that_sends_seldom_prepares_nothing(fresh_connection):
    for number in range(SENDS_BEFORE):
        jobs.triple.send(number)

    assert prepared_statements() == []


def test_the_projects_own_statements_are_not_prepared(fresh_connection):
    send_until_prepared()
    before = len(prepared_statements())

    for _ in range(10):
        Task.objects.count()

    assert len(prepared_statements()) == before
    assert connection.connection.prepare_threshold is None


def test_sends_in_a_transaction_are_not_prepared(fresh_connection):
    with transaction.atomic():
        send_until_prepared()

        assert prepared_statements() == []


@pytest.mark.parametrize("statement", ["DISCARD ALL", "DEALLOCATE ALL"])
def test_a_send_after_the_server_lost_its_statements_inserts_one_row(fresh_connection, statement):
    ids = send_until_prepared()
    for _ in range(2):  # the driver notices only a first one
        with connection.cursor() as cursor:
            cursor.execute(statement)

    ids += send_until_prepared()
    with transaction.atomic():
        ids.append(jobs.triple.send(0).id)

    assert {row.pk for row in Task.objects.all()} == set(ids)


def test_a_rolled_back_transaction_between_two_sends_loses_none(fresh_connection):
    ids = send_until_prepared()
    with transaction.atomic():
        jobs.triple.send(0)
        transaction.set_rollback(True)

    ids += send_until_prepared()

    assert {row.pk for row in Task.objects.all()} == set(ids)


def test_an_execute_wrapper_sees_a_prepared_statement_and_its_parameters(fresh_connection):
    send_until_prepared()
    seen = []

    def wrapper(execute, sql, params, many, context):
        seen.append((sql.split()[0], jobs.triple.module_path in params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(wrapper):
        jobs.triple.send(1)

    assert seen == [("INSERT", True)]


def test_the_log_of_queries_has_the_values(fresh_connection):
    send_until_prepared()

    with CaptureQueriesContext(connection) as captured:
        jobs.triple.send("a value")

    assert "a value" in captured[0]["sql"]


def test_a_database_error_of_a_prepared_statement_reaches_the_caller(fresh_connection):
    send_until_prepared()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE horsies_tasks ADD CONSTRAINT refuses CHECK (args <> '[13]') NOT VALID")
    try:
        with pytest.raises(Exception, match="refuses"):
            jobs.triple.send(13)
        kept = jobs.triple.send(14)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE horsies_tasks DROP CONSTRAINT refuses")

    assert kept.status() == "PENDING"
