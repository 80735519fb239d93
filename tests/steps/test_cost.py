"""What steps cost: statements, and on PostgreSQL how the server runs them."""

from collections import Counter

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django import TaskStatus
from horsies_django.models import TaskStep
from horsies_django.testing import drain as run_due
from horsies_django.testing import run
from tests.steps import cost_jobs

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def fresh_connection():
    """Use a connection that has run no step before."""
    connection.close()
    yield
    connection.close()


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_later_run_reads_all_records_in_one_statement():
    handle = cost_jobs.steps_in_two_runs.send(4, 9)

    with CaptureQueriesContext(connection) as queries:
        run_due(retries=True)

    assert handle.value(0) == list(range(9))
    about_steps = [query["sql"] for query in queries if 'FROM "horsies_task_steps" WHERE' in query["sql"]]
    writes = [query["sql"] for query in queries if 'INSERT INTO "horsies_task_steps"' in query["sql"]]
    assert Counter(sql.split()[0] for sql in about_steps) == {"SELECT": 1}
    assert len(writes) == 9


def test_a_step_is_one_statement_and_a_task_without_steps_makes_none():
    without, handle = cost_jobs.steps_in_two_runs.send(9, 0), cost_jobs.steps_in_two_runs.send(9, 9)

    with CaptureQueriesContext(connection) as queries_without:
        run(without)
    with CaptureQueriesContext(connection) as queries:
        run(handle)

    assert (without.value(0), handle.value(0)) == ([], list(range(9)))
    assert not [query for query in queries_without if "horsies_task_steps" in query["sql"]]
    assert len(queries) - len(queries_without) == 9


@pytest.mark.usefixtures("fresh_connection")
def test_the_server_prepares_the_statement_of_steps():
    if connection.vendor != "postgresql":
        pytest.skip("no prepared statements here")
    handle = cost_jobs.steps_in_two_runs.send(9, 9)

    run_due()

    assert handle.value(0) == list(range(9))
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements")
        assert [sql for (sql,) in cursor.fetchall() if 'INSERT INTO "horsies_task_steps"' in sql]


@pytest.mark.usefixtures("fresh_connection")
@pytest.mark.parametrize("count", range(6))
def test_a_cancelled_task_records_nothing_more(count):
    """The third step on a connection asks which process runs it, and later ones are prepared."""
    handle = cost_jobs.cancelled_after.send(count)

    run_due()

    assert handle.status() == TaskStatus.CANCELLED
    assert TaskStep.objects.filter(name="number").count() == count
    assert not TaskStep.objects.filter(name="late").exists()
