"""What was sent for later, and what is tried again, begins at its time. The database's clock is the judge."""

import time
from datetime import timedelta
from functools import partial
from statistics import median

import pytest
from django.db import connection
from django.utils import timezone

from horsies_django.models import Task
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.worker.tries import best_of

pytestmark = pytest.mark.django_db(transaction=True)

#: Seconds that a task begins after its time, in the middle; and the last of many, on a machine that does much else.
LATE = 0.05
LATEST = 0.5


def seconds_late(ids):
    rows = Task.objects.filter(pk__in=ids, started_at__isnull=False)
    wait_until(lambda: rows.completed().count() == len(ids), what="all have ended")
    late = [(row.started_at - row.enqueued_at).total_seconds() for row in rows]
    assert min(late) >= 0, "none begins before its time"
    print(f"late: median {median(late) * 1000:.1f} ms, at most {max(late) * 1000:.1f} ms")
    return late


def share_of_allowed(late):
    """How late they are next to how late they may be: 1 is just in time."""
    return max(median(late) / LATE, max(late) / LATEST)


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
    worker("--processes", "2", "-v0", runners=2)

    # SQLite can't wake anybody: the first is to be seen by a look.
    assert best_of(lambda: share_of_allowed(seconds_late(send_spread(50, 2.5, 5.5))), 1) <= 1


def test_a_task_sent_to_a_worker_that_sleeps_begins_at_its_time(worker):
    if connection.vendor != "postgresql":
        pytest.skip("nobody can wake it")
    worker("--processes", "2", "-v0", runners=2)
    tasks.noop.send().get(20)

    def after(pause):
        asleep(pause)
        (late,) = seconds_late([tasks.noop.with_options(run_after=timedelta(seconds=0.3)).send().id])
        return late

    late = [best_of(partial(after, pause), LATE) for pause in (0.5, 1.0, 4.0)]

    assert median(late) <= LATE
    assert max(late) <= LATEST


@pytest.mark.slow
def test_who_is_sent_in_the_same_moment_as_one_for_much_later_is_not_forgotten(worker):
    if connection.vendor != "postgresql":
        pytest.skip("nobody can wake it")
    worker("--processes", "2", "-v0", runners=2)
    late = []

    for _ in range(4):
        asleep(1.5)
        tasks.noop.with_options(run_after=timedelta(minutes=10)).send()
        late += seconds_late([tasks.noop.with_options(run_after=timedelta(seconds=0.3)).send().id])

    assert sorted(late)[-2] <= LATEST  # once, the machine may have stood still
    assert max(late) <= LATEST + 2


def test_retries_begin_at_their_times(worker):
    worker("--processes", "2", "-v0", runners=2)

    def share():
        sent = Task.objects.filter(pk__in=[tasks.fixed.send(f"retry {number}").id for number in range(10)])
        wait_until(lambda: sent.archived().count() == 10)
        late = [(row.started_at - row.enqueued_at).total_seconds() for row in sent]
        assert {row.attempt for row in sent} == {3}
        assert min(late) >= 0
        return share_of_allowed(late)

    assert best_of(share, 1) <= 1


@pytest.mark.slow
def test_a_busy_worker_with_a_free_slot_keeps_the_time_too(worker, tmp_path):
    worker("--processes", "2", "-v0", runners=2)
    gate = tmp_path / "gate"
    tasks.hold.send("busy", str(gate))

    def share():
        ids = send_spread(30, 2.5, 4.5)

        def all_began():
            tasks.noop.send()
            return not Task.objects.filter(pk__in=ids, started_at__isnull=True).exists()

        wait_until(all_began)
        return share_of_allowed(seconds_late(ids))

    least = best_of(share, 1)
    gate.touch()

    assert least <= 1
