"""Ten thousand tasks that wait for an event are rows and nothing else, and one call wakes all of them."""

import json
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from horsies_django import send_events
from horsies_django.core.backends import config_of
from horsies_django.models import Task
from horsies_django.reaper.loop import Reaper
from tests.steps import event_jobs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

COUNT = 10_000 if connection.vendor == "postgresql" else 500


def statements_of_a_pass():
    """Return how many statements a pass of the reaper makes once it has settled."""
    reaper = Reaper(config_of("default"), "default", on_pass=lambda _: reaper.stop())
    reaper.run_once()
    with CaptureQueriesContext(connection) as queries:
        reaper.run_once()
    return len(queries)


def drain(manage):
    process = manage("horsies_worker", "--drain", "--threads", "16", "-v0")
    assert process.wait(300) == 0, process.output


def test_ten_thousand_waits_cost_nothing_and_all_are_woken_by_one_call(manage):
    statements_without = statements_of_a_pass()
    handles = event_jobs.waits.send_many({} for _ in range(COUNT))
    drain(manage)
    assert Task.objects.awaiting("event:approved").count() == COUNT

    assert statements_of_a_pass() == statements_without
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE horsies_tasks")
        due = Task.objects.deferred().filter(enqueued_at__lte=timezone.now() + timedelta(hours=1))
        (explained,) = json.loads(due.order_by("enqueued_at").explain(format="json", analyze=True))
        assert explained["Plan"]["Index Name"] == "horsies_task_deferred"
        assert "Rows Removed by Filter" not in explained["Plan"]

    assert send_events({handle: number for number, handle in enumerate(handles)}, "approved") == COUNT
    drain(manage)

    assert Task.objects.completed().count() == COUNT
    assert handles[-1].value(0) == [COUNT - 1]
