"""The statements about waits read few rows, however many tasks wait."""

import json

import pytest
from django.db import connection

from horsies_django.core.ids import uuid7s
from horsies_django.models import Task, TaskStep, Workflow

pytestmark = pytest.mark.django_db(transaction=True)


def rows_read(rows):
    """Return the rows that the plan of a query has read, with those that a filter has removed."""
    plan = json.loads(rows.explain(format="json", analyze=True))[0]["Plan"]
    print(json.dumps(plan, indent=1))

    def read(node):
        own = node.get("Actual Rows", 0) + node.get("Rows Removed by Filter", 0)
        return own * node["Actual Loops"] + sum(map(read, node.get("Plans", ())))

    return read(plan)


@pytest.fixture
def waiting():
    """5,000 tasks that wait for events, which have 5,000 events of other names; 100 that wait for workflows."""
    if connection.vendor != "postgresql":
        pytest.skip("a plan of PostgreSQL")
    far = "2126-01-01T00:00:00+00:00"
    keys = uuid7s(5_100)
    names = ["event:approved"] * 5_000 + [f"workflow:{key}" for key in uuid7s(100)]
    Task.objects.bulk_create(
        Task(id=key, task_name="t", deferred=True, claim=1, enqueued_at=far, waits_for=name)
        for key, name in zip(keys, names, strict=True)
    )
    Task.objects.bulk_create(Task(task_name="t", deferred=True, enqueued_at=far) for _ in range(5_000))
    TaskStep.objects.bulk_create(
        TaskStep(task_id=key, name=name, kind="event", status=status, claim=claim)
        for key in keys[:5_000]
        for name, status, claim in [("event:approved", "WAITING", 1), ("event:other", "UNREAD", 0)]
    )
    Workflow.objects.bulk_create(Workflow(name="w", status="RUNNING", root_id=key) for key in uuid7s(2_000))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE horsies_tasks, horsies_task_steps, horsies_workflows")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.usefixtures("waiting")
def test_the_reaper_reads_only_the_events_that_ended_a_wait():
    TaskStep.objects.filter(pk=TaskStep.objects.filter(status="WAITING").first().pk).update(status="UNREAD")

    came = Task.objects.all().whose_event_came()

    assert came.count() == 1
    assert rows_read(came[:500]) < 50


@pytest.mark.slow
@pytest.mark.usefixtures("waiting")
def test_the_reaper_reads_only_the_workflows_that_have_ended_and_that_tasks_wait_for():
    for keys, is_awaited in ((uuid7s(2_000), False), (uuid7s(10), True)):
        Workflow.objects.bulk_create(
            Workflow(name="w", status="COMPLETED", root_id=key, is_awaited=is_awaited) for key in keys
        )

    assert Workflow.objects.ended_awaited().count() == 10
    assert rows_read(Workflow.objects.ended_awaited()[:500]) < 50
