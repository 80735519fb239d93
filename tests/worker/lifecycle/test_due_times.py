"""Tasks run when they are due."""

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

#: Too long for a poll to find the tasks of a test. Without notifications (SQLite), polls must find them.
LONG_POLL = ("--poll-interval", "600" if connection.vendor == "postgresql" else "1")


def lateness(row):
    return row.started_at - row.enqueued_at


@pytest.mark.slow
def test_an_idle_worker_starts_delayed_tasks_when_due_without_polling(worker):
    worker(*LONG_POLL)
    tasks.noop.send().get(timeout=20)

    rows = Task.objects.filter(pk__in=[tasks.noop.schedule(seconds).id for seconds in (1.5, 0.6, 1.0)])

    wait_until(lambda: rows.completed().count() == 3)
    assert min(lateness(row) for row in rows) >= timedelta(0)


@pytest.mark.slow
def test_a_retry_runs_on_time_after_the_worker_that_scheduled_it_has_stopped(worker, tmp_path):
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
