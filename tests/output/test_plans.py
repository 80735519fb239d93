"""The statements about output read few rows, however much output there is."""

import json

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django import TaskHandle
from horsies_django.core.ids import uuid7s
from horsies_django.enqueue.output import Place, read_news
from horsies_django.models import Task
from horsies_django.testing import drain
from tests.output import jobs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

CHUNKS = 200


@pytest.fixture
def keys():
    """20,000 tasks, of which 1,000 have 200 chunks each."""
    if connection.vendor != "postgresql":
        pytest.skip("a plan of PostgreSQL")
    keys = uuid7s(1_000)
    Task.objects.bulk_create(Task(id=key, task_name="t", status="RUNNING", claim=1) for key in keys)
    later = {"task_name": "t", "deferred": True, "enqueued_at": "2126-01-01T00:00:00+00:00"}
    Task.objects.bulk_create(Task(**later) for _ in range(19_000))
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO horsies_task_output (task_id, attempt, sequence, kind, data)"
            " SELECT id, 1, number, 'output', '\"a line\"' FROM horsies_tasks, generate_series(1, %s) AS number"
            " WHERE status = 'RUNNING'",
            [CHUNKS],
        )
        cursor.execute("ANALYZE horsies_tasks, horsies_task_output")
    return keys


def rows_read(action):
    """Return the rows that the plans of its statements read, with those that a filter removes."""
    with CaptureQueriesContext(connection) as queries:
        action()

    def read(node):
        own = node.get("Actual Rows", 0) + node.get("Rows Removed by Filter", 0)
        return own * node["Actual Loops"] + sum(map(read, node.get("Plans", ())))

    count = 0
    for query in queries:
        if query["sql"].startswith(("SELECT", "INSERT")) and "horsies_task_output" in query["sql"]:
            with connection.cursor() as cursor:
                cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + query["sql"].replace("%", "%%"))
                (plans,) = cursor.fetchone()
            count += read((json.loads(plans) if isinstance(plans, str) else plans)[0]["Plan"])
    return count


@pytest.mark.nightly
def test_readers_that_wait_read_the_last_chunk_of_each_task(keys):
    places = [Place(key, CHUNKS) for key in keys[:100]]

    assert rows_read(lambda: read_news("default", places)) < 10 * len(places)


def test_readers_get_what_they_lack_and_read_no_more(keys):
    places = [Place(key, CHUNKS - 1) for key in keys[:50]]

    news = read_news("default", places)

    assert all([chunk.sequence for chunk in news[place].chunks] == [CHUNKS] for place in places)
    assert rows_read(lambda: read_news("default", places)) < 20 * len(places)
    assert rows_read(lambda: TaskHandle(keys[0]).output(CHUNKS - 10)) < 50


@pytest.mark.nightly
def test_a_task_that_writes_reads_nothing_of_others(keys):
    jobs.writes.send(["x"])

    assert rows_read(drain) < 50
