"""Work that is due at a time is done at that time."""

import signal
from datetime import timedelta

import pytest
from django.db import connection

from horsies_django.models import Task, Worker
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.worker.lifecycle import jobs

pytestmark = pytest.mark.django_db(transaction=True)

#: So long that no poll finds what a test waits for. Where nothing can wake a worker, its next poll has to.
LONG_POLL = ("--poll-interval", "600" if connection.vendor == "postgresql" else "1")


def lateness(row):
    return row.started_at - row.enqueued_at


def test_delayed_tasks_start_at_their_times_on_an_idle_worker_and_not_with_its_poll(worker):
    worker(*LONG_POLL)
    tasks.noop.send().get(timeout=20)

    rows = Task.objects.filter(pk__in=[tasks.noop.schedule(seconds).id for seconds in (1.5, 0.6, 1.0)])

    wait_until(lambda: rows.completed().count() == 3)
    assert min(lateness(row) for row in rows) >= timedelta(0)


@pytest.mark.slow
def test_a_retry_is_on_time_though_the_worker_that_scheduled_it_has_stopped(worker, tmp_path):
    gate = tmp_path / "gate"
    first = worker(*LONG_POLL, "--shutdown-timeout", "20")
    handle = jobs.fail_late.send("late", str(gate))
    wait_until(lambda: Entry.objects.filter(key="late").exists())
    other = worker(*LONG_POLL)
    ours = set(Worker.objects.filter(pid=Entry.objects.get(key="late").pid).values_list("pk", flat=True))

    first.signal(signal.SIGTERM)
    gate.touch()
    assert first.wait(20) == 0
    assert handle.value(timeout=20) == "late"

    row = Task.objects.get(pk=handle.id)
    assert (row.attempt, row.retry_count) == (2, 1)
    assert row.claimed_by_worker_id not in ours
    assert other.process.poll() is None
    assert lateness(row) >= timedelta(0)
