"""A NOTIFY queue that is full because one session listens and leaves its transaction open."""

import itertools
from contextlib import suppress

import psycopg
import pytest
from django.db import transaction

from horsies_django import TaskStatus
from horsies_django.db import notifications
from horsies_django.models import Heartbeat, Task, Worker
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = pytest.mark.slow


@pytest.fixture
def full_queue(own_cluster, monkeypatch):
    """Fill the NOTIFY queue of a server that keeps few pages of it."""
    monkeypatch.setattr(notifications, "_limiter", notifications._Limiter())  # no pause is left for other tests
    with psycopg.connect(own_cluster.url, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET max_notify_queue_pages = 64")
    own_cluster.restart("fast")
    with psycopg.connect(own_cluster.url) as listener, psycopg.connect(own_cluster.url, autocommit=True) as sender:
        listener.execute("LISTEN anything")
        listener.commit()
        listener.execute("SELECT 1")  # begins a transaction, which the queue keeps its entries for
        with suppress(psycopg.errors.ProgramLimitExceeded):
            for number in itertools.count():
                sender.execute("SELECT pg_notify('nobody', %s)", [f"{number:07900}"])
        yield


def test_a_full_notify_queue_is_one_line_in_a_senders_log(full_queue, caplog):
    for _ in range(3):
        tasks.noop.send()
        with transaction.atomic():
            tasks.noop.send()
        tasks.noop.send_many([{}])

    assert Task.objects.pending().count() == 9
    assert [record.getMessage() for record in caplog.records] == [
        "notifications paused: the server's NOTIFY queue is full retry_in=60s"
    ]


def test_a_worker_runs_tasks_and_sends_heartbeats_while_the_notify_queue_is_full(full_queue, start, gate):
    worker = start("horsies_worker", "--poll-interval", "0.2", TEST_HEARTBEAT_MS="200")
    held = tasks.hold.send("held", str(gate))
    wait_until(lambda: Entry.objects.filter(key="held").exists(), 60, "the task runs")
    beaten_at = Worker.objects.get().last_beat_at
    wait_until(lambda: Heartbeat.objects.count() >= 2)
    gate.touch()
    wait_until(lambda: held.status() is TaskStatus.COMPLETED)
    wait_until(lambda: Worker.objects.get().last_beat_at > beaten_at)

    assert worker.output.count("NOTIFY queue") <= 2, worker.output  # of the supervisor and of the runner
    assert "Traceback" not in worker.output
