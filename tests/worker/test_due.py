"""What was sent for later, and what is tried again, begins at its time. The database's clock is the judge."""

import time
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from horsies_django.models import Task
from tests.conftest import wait_until
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)

#: So long that no poll finds what a test waits for. Where nothing can wake a worker, its next poll has to.
LONG_POLL = ("--poll-interval", "600" if connection.vendor == "postgresql" else "1")


def assert_on_time(ids):
    """All of them end, and none began before its time."""
    rows = Task.objects.filter(pk__in=ids)
    wait_until(lambda: rows.completed().count() == len(ids), what="all have ended")
    assert all(row.started_at >= row.enqueued_at for row in rows)


def send_spread(count, first, last):
    """Send tasks for times between ``first`` and ``last`` seconds from now."""
    now = timezone.now()
    moments = [now + timedelta(seconds=first + (last - first) * number / count) for number in range(count)]
    return [tasks.noop.with_options(run_after=moment).send().id for moment in moments]


def asleep(limit=4.0):
    """Let the looks of an idle worker become seldom: that is a matter of time."""
    until = time.monotonic() + limit
    wait_until(lambda: time.monotonic() > until)


@pytest.mark.slow
def test_tasks_begin_at_their_times_on_an_idle_worker(worker):
    worker("--processes", "2", "-v0", *LONG_POLL, runners=2)

    assert_on_time(send_spread(50, 2.5, 5.5))


def test_a_task_sent_to_a_worker_that_sleeps_begins_at_its_time(worker):
    if connection.vendor != "postgresql":
        pytest.skip("nobody can wake it")
    worker("--processes", "2", "-v0", *LONG_POLL, runners=2)
    tasks.noop.send().get(20)

    for pause in (0.5, 1.0, 4.0):
        asleep(pause)
        assert_on_time([tasks.noop.with_options(run_after=timedelta(seconds=0.3)).send().id])


@pytest.mark.slow
def test_who_is_sent_in_the_same_moment_as_one_for_much_later_is_not_forgotten(worker):
    if connection.vendor != "postgresql":
        pytest.skip("nobody can wake it")
    worker("--processes", "2", "-v0", *LONG_POLL, runners=2)

    for _ in range(4):
        asleep(1.5)
        tasks.noop.with_options(run_after=timedelta(minutes=10)).send()
        assert_on_time([tasks.noop.with_options(run_after=timedelta(seconds=0.3)).send().id])


def test_retries_begin_at_their_times(worker):
    worker("--processes", "2", "-v0", *LONG_POLL, runners=2)

    for number in range(10):
        tasks.fixed.send(f"retry {number}")

    wait_until(lambda: Task.objects.archived().count() == 10)
    assert {row.attempt for row in Task.objects.all()} == {3}
    assert all(row.started_at >= row.enqueued_at for row in Task.objects.all())


@pytest.mark.slow
def test_a_busy_worker_with_a_free_slot_keeps_the_time_too(worker, tmp_path):
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
