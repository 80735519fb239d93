"""A NOTIFY queue that is full because one session listens and leaves its transaction open."""

import itertools
import time
from contextlib import suppress

import psycopg
import pytest
from django.db import connection, transaction

from horsies_django.db import notifications, postgres
from horsies_django.db.notifications import PAUSE_WHEN_FULL
from horsies_django.models import Heartbeat, Task, Worker
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = pytest.mark.slow


@pytest.fixture
def fill_queue(own_cluster, monkeypatch):
    """Return a function that fills the NOTIFY queue of a server that keeps few pages of it."""
    monkeypatch.setattr(notifications, "_limiter", notifications._Limiter())  # no pause is left for other tests
    with psycopg.connect(own_cluster.url, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET max_notify_queue_pages = 64")
    own_cluster.restart("fast")
    with psycopg.connect(own_cluster.url) as listener, psycopg.connect(own_cluster.url, autocommit=True) as sender:
        listener.execute("LISTEN anything")
        listener.commit()
        listener.execute("SELECT 1")  # begins a transaction, which the queue keeps its entries for

        def fill():
            with suppress(psycopg.errors.ProgramLimitExceeded):
                for number in itertools.count():
                    sender.execute("SELECT pg_notify('nobody', %s)", [f"{number:07900}"])

        yield fill


def test_a_full_notify_queue_is_one_line_in_a_senders_log(fill_queue, caplog):
    fill_queue()
    for _ in range(3):
        tasks.noop.send()
        with transaction.atomic():
            tasks.noop.send()
        tasks.noop.send_many([{}])

    assert Task.objects.pending().count() == 9
    assert [record.getMessage() for record in caplog.records] == [
        "notifications paused: the server's NOTIFY queue is full retry_in=60s"
    ]


def sends_completions():
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_stat_activity WHERE application_name LIKE '% notify'")
        return cursor.fetchone() is not None


def test_a_worker_runs_tasks_and_sends_heartbeats_while_the_notify_queue_is_full(fill_queue, start, gate):
    worker = start("horsies_worker", "--poll-interval", "0.2", TEST_HEARTBEAT_MS="200")
    held = tasks.hold.send("held", str(gate))
    wait_until(lambda: Entry.objects.filter(key="held").exists(), 60, "the task runs")
    postgres.notify("default", postgres.SUBSCRIBE)  # as a process does that waits for results
    wait_until(sends_completions, what="the connection for completions")
    filled_at = time.monotonic()
    fill_queue()
    beaten_at, sent = Worker.objects.get().last_beat_at, Heartbeat.objects.count()
    wait_until(lambda: Heartbeat.objects.count() >= sent + 2)
    gate.touch()
    assert held.value(timeout=20) == "held"
    assert tasks.add.send(1).value(timeout=20) == 2
    wait_until(lambda: Worker.objects.get().last_beat_at > beaten_at)

    # The supervisor and the runner log it once a minute.
    assert worker.output.count("NOTIFY queue") <= 2 * (1 + (time.monotonic() - filled_at) // PAUSE_WHEN_FULL)
    assert "completions not sent" not in worker.output
    assert "Traceback" not in worker.output
