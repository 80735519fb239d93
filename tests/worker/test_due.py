"""Delayed tasks and retries begin on time, by the database's clock."""

import time
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from horsies_django.models import Task
from tests.conftest import wait_until
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)

#: Too long for a poll to find the tasks of a test. Without notifications (SQLite), polls must find them.
LONG_POLL = ("--poll-interval", "600" if connection.vendor == "postgresql" else "1")


def assert_on_time(ids):
    """Wait for the tasks to end, and assert that none began early."""
    rows = Task.objects.filter(pk__in=ids)
    wait_until(lambda: rows.completed().count() == len(ids), what="the end of all tasks")
    assert all(row.started_at >= row.enqueued_at for row in rows)


def send_spread(count, first, last):
    """Send tasks for times between ``first`` and ``last`` seconds from now."""
    now = timezone.now()
    moments = [now + timedelta(seconds=first + (last - first) * number / count) for number in range(count)]
    return [tasks.noop.with_options(run_after=moment).send().id for moment in moments]


def wait_until_idle(limit=4.0):
    """Wait until an idle worker polls rarely."""
    until = time.monotonic() + limit
    wait_until(lambda: time.monotonic() > until)


@pytest.mark.slow
def test_an_idle_worker_begins_delayed_tasks_on_time(worker):
    worker("--processes", "2", "-v0", *LONG_POLL, runners=2)

    assert_on_time(send_spread(50, 2.5, 5.5))


@pytest.mark.slow
def test_a_task_sent_to_a_sleeping_worker_begins_on_time(worker):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no notifications")
    worker("--processes", "2", "-v0", *LONG_POLL, runners=2)
    tasks.noop.send().get(20)

    for pause in (0.5, 1.0, 4.0):
        wait_until_idle(pause)
        assert_on_time([tasks.noop.with_options(run_after=timedelta(seconds=0.3)).send().id])


@pytest.mark.slow
def test_a_task_sent_with_one_due_much_later_begins_on_time(worker):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no notifications")
    worker("--processes", "2", "-v0", *LONG_POLL, runners=2)

    for _ in range(4):
        wait_until_idle(1.5)
        tasks.noop.with_options(run_after=timedelta(minutes=10)).send()
        assert_on_time([tasks.noop.with_options(run_after=timedelta(seconds=0.3)).send().id])


@pytest.mark.slow
def test_retries_begin_on_time(worker):
    worker("--processes", "2", "-v0", *LONG_POLL, runners=2)

    for number in range(10):
        tasks.fixed.send(f"retry {number}")

    wait_until(lambda: Task.objects.archived().count() == 10)
    assert {row.attempt for row in Task.objects.all()} == {3}
    assert all(row.started_at >= row.enqueued_at for row in Task.objects.all())


@pytest.mark.slow
def test_a_busy_worker_with_a_free_slot_begins_delayed_tasks_on_time(worker, tmp_path):
    worker("--processes", "2", "-v0", *LONG_POLL, runners=2)
    gate = tmp_path / "gate"
    tasks.hold.send("busy", str(gate))
    ids = send_spread(30, 2.5, 4.5)

    def all_began():
        tasks.noop.send()
        return not Task.objects.filter(pk__in=ids, started_at__isnull=True).exists()

    wait_until(all_began)
    gate.touch()

    assert_on_time(ids)
