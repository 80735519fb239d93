"""What the list of queues asks the table of tasks: no more than there are queues in which something waits."""

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django.models import Task
from horsies_django.models.depths import Depth, depths
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)


def test_where_nothing_waits_no_queue_is_deep():
    tasks.noop.schedule(60)

    assert depths(Task.objects.all()) == {}


def test_both_kinds_of_task_count_together():
    tasks.noop.send_many({} for _ in range(3))
    tasks.awrite.send("a")

    assert depths(Task.objects.all())["default"].due == 4
    assert (Depth(1, True, 5.0) + Depth(2, False, None)) == Depth(3, True, 5.0)


def test_a_deep_queue_is_read_by_the_index_of_claims_no_further_than_the_bound():
    tasks.noop.with_options(queue_name="deep").send_many({} for _ in range(10_000))
    Task.objects.filter(pk__in=Task.objects.values("pk")[:5_000]).update(
        status="COMPLETED", completed_at="2026-01-01T00:00Z"
    )
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE horsies_tasks" if connection.vendor == "postgresql" else "ANALYZE")

    with CaptureQueriesContext(connection) as captured:
        found = depths(Task.objects.all())

    assert found["deep"].due == 1_000
    assert found["deep"].is_more
    assert len(captured) == 3
    for query in captured:
        plan = _plan(query["sql"])
        assert not re.search(r"Seq Scan on horsies_tasks|SCAN horsies_tasks(?! USING)", plan), plan
        assert "horsies_task_claim" in plan


def _plan(sql):
    explain = "EXPLAIN" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
    with connection.cursor() as cursor:
        cursor.execute(f"{explain} {sql}".replace("%", "%%"), [])
        return "\n".join(str(row) for row in cursor.fetchall())
