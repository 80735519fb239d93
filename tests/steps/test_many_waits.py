"""Ten thousand tasks that wait for an event are rows and nothing else, and one call wakes all of them."""

import json
import time
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from horsies_django import send_events
from horsies_django.core.backends import config_of
from horsies_django.models import Task
from horsies_django.reaper.loop import Reaper
from tests.conftest import wait_until
from tests.steps import event_jobs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def statements_of_a_pass():
    """Return how many statements a pass of the reaper makes once it has settled."""
    reaper = Reaper(config_of("default"), "default", on_pass=lambda _: reaper.stop())
    reaper.run_once()
    with CaptureQueriesContext(connection) as queries:
        reaper.run_once()
    return len(queries)


def statements_of_an_idle_worker(worker, tally):
    """Return how many statements a worker without a reaper executes in ten seconds, once it polls seldom."""
    process = worker("-v0", "--no-reaper", COUNT_STATEMENTS=str(tally))
    settled = time.monotonic() + 6
    wait_until(lambda: time.monotonic() > settled)
    before, since = tally.stat().st_size, time.monotonic()
    wait_until(lambda: time.monotonic() > since + 10)
    count = tally.stat().st_size - before
    process.stop()
    return count


def drain(manage):
    process = manage("horsies_worker", "--drain", "--threads", "16", "-v0")
    assert process.wait(300) == 0, process.output


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_many_waits_cost_nothing_and_all_are_woken_by_one_call(manage, worker, tmp_path, count):
    statements_without = statements_of_a_pass()
    idle_without = statements_of_an_idle_worker(worker, tmp_path / "without")
    handles = event_jobs.waits.send_many({} for _ in range(count))
    drain(manage)
    assert Task.objects.awaiting("event:approved").count() == count

    assert statements_of_a_pass() == statements_without
    idle = statements_of_an_idle_worker(worker, tmp_path / "with")
    print(f"statements of an idle worker: {idle_without} without, {idle} with {count} waits")
    assert idle <= idle_without + 6  # a heartbeat more
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE horsies_tasks")
        due = Task.objects.deferred().filter(enqueued_at__lte=timezone.now() + timedelta(hours=1))
        (explained,) = json.loads(due.order_by("enqueued_at").explain(format="json", analyze=True))
        assert explained["Plan"]["Index Name"] == "horsies_task_deferred"
        assert "Rows Removed by Filter" not in explained["Plan"]

    with CaptureQueriesContext(connection) as queries:
        assert send_events({handle: number for number, handle in enumerate(handles)}, "approved") == count
    assert len(queries) <= 10 + 10 * count / 1_000
    drain(manage)

    assert Task.objects.completed().count() == count
    assert handles[-1].value(0) == [count - 1]
