"""The statements about rows read few tasks, however many there are."""

from __future__ import annotations

import pytest
from django.db import connection
from django.db.models import Exists, Subquery

from horsies_django.models import Task
from tests.about.jobs import touch
from tests.about.models import Order
from tests.steps.test_plans import rows_read

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.skipif(connection.vendor == "sqlite", reason="a plan of PostgreSQL"),
]


@pytest.fixture(params=[100_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
def orders(request):
    """Orders of which each has 50 tasks; they are one in twenty of all tasks."""
    count = request.param
    orders = Order.objects.bulk_create([Order() for _ in range(count // 1_000)])
    Task.objects.all().delete()
    handle = touch.about(orders[0]).send(1)
    fields = [field for field in Task._meta.concrete_fields if not field.primary_key]
    columns = [field.column for field in fields if not field.column.startswith("about_")]
    first = orders[0].pk
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            INSERT INTO horsies_tasks (id, about_model, about_id, {", ".join(columns)})
            SELECT gen_random_uuid(), CASE WHEN n % 20 = 0 THEN 'about.Order' END,
                CASE WHEN n % 20 = 0 THEN ({first} + n / 20 % {len(orders)})::text END, {", ".join(columns)}
            FROM horsies_tasks, generate_series(1, {count}) AS n
            """
        )
        cursor.execute("ANALYZE horsies_tasks, about_order")
    Task.objects.filter(pk=handle.id).delete()
    return list(orders)


def test_the_latest_tasks_of_a_row_are_read_from_the_index(orders):
    latest = Task.objects.about(orders[7]).order_by("-id")[:10]

    assert rows_read(latest) <= 20


def test_tasks_of_several_rows_are_read_by_their_keys(orders):
    tasks = Task.objects.about_any(Order.objects.filter(pk__in=[order.pk for order in orders[:5]]))

    assert tasks.count() == 250
    assert rows_read(tasks) <= 250 * 3 + 100


def test_a_list_of_rows_reads_the_last_task_of_each(orders):
    last = Task.objects.about_outer(Order).order_by("-id").values("status")[:1]
    rows = Order.objects.order_by("pk").annotate(last=Subquery(last))[:10]

    assert [row.last for row in rows] == ["PENDING"] * 10
    assert rows_read(rows) <= 100


def test_rows_without_a_failed_task_read_their_own_tasks_alone(orders):
    failed = Task.objects.archived().about_outer(Order)
    rows = Order.objects.filter(pk__in=[order.pk for order in orders[:10]]).filter(~Exists(failed))

    assert rows.count() == 10
    assert rows_read(rows) <= 10 * 50 + 200


def test_a_delete_reads_the_tasks_of_its_rows_alone(orders):
    with connection.execute_wrapper(refuse_scans):
        orders[3].delete()

    assert Task.objects.filter(error_code="ABOUT_ROW_GONE").count() == 50


def refuse_scans(execute, sql, params, many, context):
    """Run a statement; fail if it would read the whole table of tasks."""
    if "horsies_tasks" in sql and sql.startswith(("SELECT", "UPDATE")):
        with connection.cursor().cursor as cursor:
            cursor.execute("EXPLAIN " + sql, params)
            plan = "\n".join(line for (line,) in cursor.fetchall())
        assert "Seq Scan on horsies_tasks" not in plan, plan
    return execute(sql, params, many, context)
