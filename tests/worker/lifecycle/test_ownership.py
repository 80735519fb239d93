"""A body begins only while its worker still has the claim."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import OperationalError, connections
from django.db.backends.signals import connection_created

from horsies_django import TaskStatus
from horsies_django.models import Heartbeat, Task
from horsies_django.worker.tick import CLAIM_CONFIRMED_FOR
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = pytest.mark.django_db(transaction=True)

#: The shortest threshold allowed.
SHORTEST = {"TEST_STALE_MS": "1000", "TEST_HEARTBEAT_MS": "400", "TEST_CHECK_MS": "200"}


class Pause:
    """Slows the claim on this thread's new connections; calls ``then`` when the claims are confirmed."""

    def __init__(self, then):
        self.then = then
        self.thread = threading.get_ident()
        self.is_late = self.is_over = False

    def watch(self, sender, connection, **kwargs):
        if threading.get_ident() == self.thread:
            connection.execute_wrappers.append(self)

    def __call__(self, execute, sql, params, many, context):
        if "UPDATE" in sql and '"claim" + ' in sql and not self.is_late:
            done = execute(sql, params, many, context)
            time.sleep(CLAIM_CONFIRMED_FOR + 0.1)  # the pause under test
            self.is_late = True
            return done
        if self.is_late and not self.is_over and not context["connection"].in_atomic_block:
            self.is_over = True
            self.then()
        return execute(sql, params, many, context)


@pytest.fixture
def pause():
    """Have a long pause follow the next claim of a worker in this process."""
    started = []

    def begin(then):
        started.append(Pause(then))
        connection_created.connect(started[-1].watch)
        return started[-1]

    yield begin
    for one in started:
        connection_created.disconnect(one.watch)


def on_another_connection(action):
    """Call the action on another connection, as another process would."""

    def act():
        try:
            return action()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result()


def test_a_task_whose_claim_was_lost_during_a_long_pause_does_not_begin(drain, pause):
    handle = tasks.write.send("taken away")
    paused = pause(lambda: on_another_connection(lambda: handle.cancel(include_running=True)))

    drain()

    assert paused.is_over
    assert not Entry.objects.exists()
    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.attempts.count()) == (TaskStatus.CANCELLED, 0)


def test_a_task_that_is_still_claimed_after_a_long_pause_begins(drain, pause):
    handle = tasks.write.send("kept")
    paused = pause(lambda: None)

    drain()

    assert paused.is_over
    assert handle.get(0).is_ok()
    assert Task.objects.get(pk=handle.id).claim == 1


def test_a_body_does_not_begin_while_the_claim_can_not_be_confirmed(drain, pause):
    """The task is released with no attempt used, and claimed again once the database is available."""
    handle = tasks.write.send("in doubt")

    def away():
        raise OperationalError("the database is away")

    paused = pause(away)

    drain()

    assert paused.is_over
    assert handle.get(0).is_ok()
    row = Task.objects.get(pk=handle.id)
    assert (row.claim, row.attempt, row.attempts.count()) == (2, 1, 1)
    assert Entry.objects.count() == 1


@pytest.mark.slow
def test_a_prefetched_task_that_waits_too_long_is_released_despite_heartbeats(worker, gate):
    # No reaper: on a busy machine it might treat a late heartbeat as a missing one.
    worker("--threads", "1", "--prefetch", "1", "--no-reaper", **SHORTEST)
    tasks.hold.send("in the way", str(gate))
    wait_until(lambda: Entry.objects.exists())
    handle = tasks.write.send("behind it")
    wait_until(lambda: handle.status() == TaskStatus.CLAIMED)
    before = Task.objects.get(pk=handle.id)
    holder = before.claimed_by_worker_id
    worker("--threads", "1", "--no-reaper", **SHORTEST)

    wait_until(lambda: handle.status() == TaskStatus.COMPLETED, limit=40)
    row = Task.objects.get(pk=handle.id)
    assert (row.claimed_at - before.claimed_at).total_seconds() > 8  # ten thresholds
    assert row.claimed_by_worker_id != holder
    assert (row.attempt, row.retry_count, row.attempts.count()) == (1, 0, 1)
    heartbeats = Heartbeat.objects.filter(task_id=handle.id, role="claimer", sender_id=holder)
    assert heartbeats.count() >= 3, "the worker sent heartbeats"
    gate.touch()
