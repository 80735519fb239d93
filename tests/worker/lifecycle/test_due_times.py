"""Work that is due at a time is done at that time."""

import signal
from datetime import timedelta

import pytest
from django.db import connection

from horsies_django.core.ids import uuid7
from horsies_django.models import Task, Worker
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.worker.lifecycle import jobs
from tests.worker.tries import best_of

pytestmark = pytest.mark.django_db(transaction=True)

#: Where nobody can wake a worker, it sees what is due with its next look.
LATE = timedelta(milliseconds=300) if connection.vendor == "postgresql" else timedelta(seconds=1.5)
LONG_POLL = ("--poll-interval", "30" if connection.vendor == "postgresql" else "1")


def lateness(row):
    return row.started_at - row.enqueued_at


def test_delayed_tasks_start_within_300_ms_of_their_time_though_the_worker_is_idle(worker):
    worker(*LONG_POLL)
    tasks.noop.send().get(timeout=20)

    def latest():
        rows = Task.objects.filter(pk__in=[tasks.noop.schedule(seconds).id for seconds in (1.5, 0.6, 1.0)])
        wait_until(lambda: rows.completed().count() == 3)
        late = [lateness(row) for row in rows]
        assert min(late) >= timedelta(0)
        return max(late)

    assert best_of(latest, LATE) < LATE


@pytest.mark.slow
def test_a_retry_is_on_time_though_the_worker_that_scheduled_it_has_stopped(worker, tmp_path):
    def late():
        key = str(uuid7())
        gate = tmp_path / key
        first = worker(*LONG_POLL, "--shutdown-timeout", "20")
        handle = jobs.fail_late.send(key, str(gate))
        wait_until(lambda: Entry.objects.filter(key=key).exists())
        other = worker(*LONG_POLL)
        ours = set(Worker.objects.filter(pid=Entry.objects.get(key=key).pid).values_list("pk", flat=True))

        first.signal(signal.SIGTERM)
        gate.touch()
        assert first.wait(20) == 0
        assert handle.value(timeout=20) == key

        row = Task.objects.get(pk=handle.id)
        assert (row.attempt, row.retry_count) == (2, 1)
        assert row.claimed_by_worker_id not in ours
        assert other.process.poll() is None
        other.stop()
        assert lateness(row) >= timedelta(0)
        return lateness(row)

    assert best_of(late, LATE) < LATE
