"""A clock that is ten minutes off, on a worker's machine or a sender's, changes nothing."""

import os
import signal
import time
from datetime import timedelta
from itertools import pairwise

import pytest
from django.utils import timezone

from horsies_django import TASK_TERMINAL_STATES, TaskStatus
from horsies_django.models import Heartbeat, Task, TaskAttempt, Worker
from tests.chaos import jobs
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry

#: The difference allowed between the clocks of two machines.
TOLERANCE = timedelta(seconds=1)

#: Seconds that a busy machine may add: far less than the clock is wrong by.
SLACK = 60

#: Frequent heartbeats and checks. By a wrong clock each worker would look dead at once; by the right one, a worker that
#: pauses for a moment does not.
OFTEN = {"TEST_STALE_MS": "20000", "TEST_HEARTBEAT_MS": "400", "TEST_CHECK_MS": "200"}


pytestmark = pytest.mark.slow


@pytest.fixture(params=[-600, 600], ids=["ten minutes slow", "ten minutes fast"])
def skew(request):
    return request.param


@pytest.fixture
def skewed(worker, skew):
    """Start a worker whose clock is wrong."""

    def start(*flags, **environment):
        environment |= {"DJANGO_SETTINGS_MODULE": "tests.chaos.skewed_settings", "TEST_CLOCK_OFF": str(skew)}
        return worker(*flags, **environment)

    return start


def ended():
    return Task.objects.filter(status__in=TASK_TERMINAL_STATES)


def times(model):
    """Return every time in the rows of a model but ``kept_until``, which lies far ahead."""
    fields = [field for field in model._meta.concrete_fields if field.get_internal_type() == "DateTimeField"]
    names = [field.name for field in fields if field.name != "kept_until"]
    return [time for row in model.objects.values_list(*names) for time in row if time is not None]


def test_every_stored_time_comes_from_the_databases_clock(skewed, tmp_path):
    before, gate = timezone.now(), tmp_path / "gate"
    process = skewed("--prefetch", "1", "--threads", "1", **OFTEN)
    handles = list(tasks.hold.send_many({"key": str(number), "gate": str(gate)} for number in range(2)))
    handles += [tasks.fail.send(), tasks.flaky.send("flaky", 1)]
    wait_until(lambda: Heartbeat.objects.values("role").distinct().count() == 2, what="heartbeats of both roles")
    gate.touch()
    wait_until(lambda: ended().count() == len(handles))
    ran = list(Entry.objects.values_list("at", flat=True))
    assert process.process.poll() is None

    for model in (Task, TaskAttempt, Heartbeat, Worker):
        noted = times(model)
        assert noted
        assert before - TOLERANCE < min(noted) <= max(noted) < timezone.now() + TOLERANCE
    for kept_until, *ends in Task.objects.values_list("kept_until", "completed_at", "failed_at"):
        assert (kept_until - next(filter(None, ends))).total_seconds() % 86_400 < 1
    assert all(abs(at - before.timestamp()) > 500 for at in ran), "the worker's clock is right"


@pytest.mark.nightly
@pytest.mark.slow
def test_a_worker_with_a_wrong_clock_starts_a_retry_on_time(skewed):
    skewed()
    handle = tasks.fixed.send("fixed")

    wait_until(lambda: handle.status() == TaskStatus.FAILED, limit=2 * SLACK + 10)

    starts = list(TaskAttempt.objects.order_by("attempt").values_list("started_at", flat=True))
    waits = [(later - earlier).total_seconds() for earlier, later in pairwise(starts)]
    assert len(waits) == 2
    assert 1.0 <= waits[0] < 1.0 + SLACK
    assert 2.0 <= waits[1] < 2.0 + SLACK


@pytest.mark.nightly
def test_a_worker_with_a_wrong_clock_starts_a_delayed_task_on_time(skewed):
    skewed()
    handle = tasks.noop.schedule(1.5)

    wait_until(lambda: handle.status() == TaskStatus.COMPLETED)

    row = Task.objects.get(pk=handle.id)
    assert timedelta() <= row.started_at - row.enqueued_at < timedelta(seconds=SLACK)


@pytest.mark.nightly
def test_good_until_is_compared_with_the_databases_clock(skewed):
    job = tasks.noop.with_options(good_until=timezone.now() + timedelta(minutes=5), run_after=timedelta(seconds=1))
    handles = [job.send(), job.send()]
    Task.objects.filter(pk=handles[0].id).update(good_until=timezone.now() + timedelta(seconds=0.2))

    skewed(**OFTEN)

    wait_until(lambda: all(handle.status().is_terminal for handle in handles))
    assert [handle.status() for handle in handles] == [TaskStatus.EXPIRED, TaskStatus.COMPLETED]


@pytest.mark.slow
def test_a_worker_with_a_wrong_clock_declares_no_live_worker_dead(worker, skewed, tmp_path):
    worker("--threads", "2", **OFTEN)
    skewed("--threads", "2", **OFTEN)
    gate = tmp_path / "gate"
    handles = tasks.hold.send_many({"key": str(number), "gate": str(gate)} for number in range(4))
    wait_until(lambda: Entry.objects.count() == 4, what="all bodies have begun")

    time.sleep(3)  # some checks of each
    gate.touch()

    wait_until(lambda: ended().count() == 4)
    assert Entry.objects.values("pid").distinct().count() == 2, "one worker ran all bodies"
    assert {handle.status() for handle in handles} == {TaskStatus.COMPLETED}
    assert TaskAttempt.objects.count() == 4


@pytest.mark.nightly
@pytest.mark.slow
def test_a_reaper_with_a_wrong_clock_recovers_a_dead_workers_task_in_time(worker, skewed, tmp_path):
    doomed, gate = worker("--no-reaper", **OFTEN), tmp_path / "gate"
    handle = jobs.hold_again.send("recovered", str(gate))
    wait_until(lambda: Entry.objects.exists())
    skewed(**OFTEN)

    os.killpg(doomed.process.pid, signal.SIGKILL)

    # By the reaper's own clock it would be ten minutes late or early.
    wait_until(lambda: Entry.objects.count() == 2, limit=21 + SLACK)
    gate.touch()
    wait_until(lambda: handle.status() == TaskStatus.COMPLETED)
    assert list(TaskAttempt.objects.order_by("attempt").values_list("outcome", flat=True)) == [
        "WORKER_FAILURE",
        "COMPLETED",
    ]


def test_a_delay_counts_from_the_databases_clock_and_not_the_senders(worker, skew, monkeypatch):
    worker()
    true_now = timezone.now
    with monkeypatch.context() as patch:
        patch.setattr(timezone, "now", lambda: true_now() + timedelta(seconds=skew))
        handle = tasks.noop.schedule(1.0)

    wait_until(lambda: handle.status() == TaskStatus.COMPLETED)

    row = Task.objects.get(pk=handle.id)
    assert timedelta(seconds=1) <= row.started_at - row.sent_at < timedelta(seconds=1 + SLACK)


@pytest.mark.slow
def test_a_due_time_is_kept_if_the_senders_clock_is_wrong(worker, skew, monkeypatch):
    worker()
    true_now = timezone.now
    due = true_now() + timedelta(seconds=2)
    with monkeypatch.context() as patch:
        patch.setattr(timezone, "now", lambda: true_now() + timedelta(seconds=skew))
        handle = tasks.noop.schedule(due)

    wait_until(lambda: handle.status() == TaskStatus.COMPLETED)

    assert timedelta() <= Task.objects.get(pk=handle.id).started_at - due < timedelta(seconds=SLACK)
