"""Stalled runners: a body holds the interpreter's lock (GIL), or a signal has stopped the process."""

import re
import signal
import time
from datetime import timedelta
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from django.core.management import call_command
from django.db import transaction
from django.db.models import Max, Min
from django.utils import timezone

from horsies_django import TaskStatus
from horsies_django.core.status import TASK_LIVE_STATES
from horsies_django.models import Heartbeat, Task, TaskAttempt, Worker
from horsies_django.ops.diagnosis import reasons_of
from tests.chaos.fleet import is_alive, stopped
from tests.conftest import wait_until
from tests.faults import jobs
from tests.faults.attempts import attempts_of
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

#: Far more tasks than a runner starts ahead before it knows that their bodies are short.
MANY = 300

STALLED = Worker.objects.filter(stalled_since__isnull=False)

COMPLETED = [("COMPLETED", "", False)]
CRASHED, TIMED_OUT = ("WORKER_FAILURE", "WORKER_CRASHED"), ("FAILED", "TASK_TIMEOUT")


def pid_of(key, count=1):
    """Return the process of the body that has written ``key`` for the ``count``-th time."""
    wait_until(lambda: Entry.objects.filter(key=key).count() >= count, limit=40, what=f"{key} has begun")
    return Entry.objects.filter(key=key).order_by("pk")[count - 1].pid


def pass_time(seconds):
    """Let time pass; the elapsed time is part of the test."""
    over = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > over)


def is_ready(port):
    """Whether the worker's page says that it takes work."""
    try:
        return urlopen(f"http://127.0.0.1:{port}/health/ready").status == 200
    except HTTPError as error:
        return {503: False}[error.code]


@pytest.mark.parametrize("body", [jobs.hog, pytest.param(jobs.backtrack, marks=pytest.mark.nightly)])
def test_a_body_that_holds_the_gil_times_out_and_other_tasks_run(worker, body):
    process = worker("--timeout-grace", "1", "--threads", "2")
    hog = body.send("hog")

    for number in (1, 2, 3):
        pid_of("hog", number)
        # It may begin before the body has the interpreter's lock, and then crashes with it.
        assert jobs.add_again.send(number).value(timeout=40) == number + 1

    assert hog.get(timeout=40).err.error_code == "TASK_TIMEOUT"
    assert attempts_of(hog) == [(*TIMED_OUT, True), (*TIMED_OUT, True), (*TIMED_OUT, False)]
    assert Entry.objects.filter(key="hog").values("pid").distinct().count() == 3
    assert process.process.poll() is None


def test_tasks_that_run_beside_a_body_that_holds_the_gil_follow_their_policy(worker, gate):
    worker("--timeout-grace", "1", "--threads", "3")
    with transaction.atomic():  # so that one claim takes both
        again, once = jobs.hold_again.send("again", str(gate)), jobs.hold.send("once", str(gate))
    pid_of("again")
    pid_of("once")
    hog = jobs.hog_once.send("hog")

    assert once.get(timeout=40).err.error_code == "WORKER_CRASHED"
    assert hog.get(timeout=40).err.error_code == "TASK_TIMEOUT"
    pid_of("again", 2)
    gate.touch()
    assert again.value(timeout=40) == "again"
    assert attempts_of(again) == [(*CRASHED, True), *COMPLETED]


def test_tasks_started_ahead_behind_a_body_that_holds_the_gil_lose_no_attempt(worker, gate):
    tasks.noop.send_many({} for _ in range(MANY))
    hog = jobs.hog_once.send("hog")
    behind = [handle.id for handle in tasks.noop.send_many({} for _ in range(MANY))]

    worker("--timeout-grace", "1", "--threads", "1")

    wait_until(lambda: Task.objects.completed().filter(pk__in=behind).count() == MANY, limit=60)
    assert hog.get(timeout=20).err.error_code == "TASK_TIMEOUT"
    assert not TaskAttempt.objects.filter(task__in=behind).exclude(attempt=1, outcome="COMPLETED").exists()


def test_a_stopped_runner_is_killed_and_its_unstarted_tasks_lose_no_attempt(worker, gate):
    process = worker("--stall-timeout", "3", "--threads", "1", "--prefetch", "3")
    again = jobs.hold_again.send("again", str(gate))
    runner = pid_of("again")
    waiting = tasks.noop.send_many({} for _ in range(3))
    wait_until(lambda: Task.objects.filter(status=TaskStatus.CLAIMED).count() == 3)

    with stopped(runner):
        wait_until(lambda: not is_alive(runner), limit=40, what="the stopped runner is killed")
        pid_of("again", 2)
    gate.touch()

    assert again.value(timeout=40) == "again"
    assert attempts_of(again) == [(*CRASHED, True), *COMPLETED]
    assert all(handle.get(timeout=40).is_ok() for handle in waiting)
    assert [attempts_of(handle) for handle in waiting] == [COMPLETED] * 3
    assert "it has not responded" in process.output


def test_a_stopped_runner_is_seen_to_stand_still_within_seconds_and_until_it_goes_on(worker, capsys):
    # Its own heartbeats are rare: stopped in the middle of one, it would keep its row locked.
    process = worker("--stall-timeout", "600", "--metrics-port", "0", TEST_HEARTBEAT_MS="5000", TEST_STALE_MS="60000")
    port = wait_until(lambda: re.search(r"metrics served url=http://127.0.0.1:(\d+)/", process.output))[1]
    # The row alone is not enough: a supervisor watches a runner only after the runner has told it of the row.
    wait_until(lambda: is_ready(port), what="the runner is registered")
    row = Worker.objects.get()

    with stopped(row.pid):
        wait_until(STALLED.exists, what="the row says that the runner stands still")
        since = Worker.objects.get().stalled_since
        handle = tasks.add.send(1)
        (reason,) = reasons_of(Task.objects.get())
        assert reason.code == "WORKERS_STALLED"
        call_command("horsies_status")
        report = capsys.readouterr().out
        assert re.search(rf"^{row.pk} .* stands still for \d", report, re.MULTILINE)
        assert "due, and served by no worker: default" in report
        with pytest.raises(SystemExit):
            call_command("horsies_status", check=["workers=1"])
        assert "failed workers=1: 0 alive" in capsys.readouterr().out
        assert not is_ready(port)
        beat_at = Worker.objects.get().last_beat_at
        wait_until(lambda: Worker.objects.get().last_beat_at > beat_at, what="a heartbeat from the supervisor")
        assert Worker.objects.get().stalled_since == since, "it is written once"

    assert handle.value(timeout=20) == 2
    wait_until(lambda: not STALLED.exists(), what="the row says that the runner goes on")
    assert Worker.objects.get().pk == row.pk


def test_a_supervisor_sends_heartbeats_for_a_runner_that_cannot(worker, manage, gate):
    """The body holds the interpreter's lock for longer than the threshold, and another process reaps."""
    reap = {"TEST_HEARTBEAT_MS": "200", "TEST_STALE_MS": "3000", "TEST_CHECK_MS": "200"}
    worker("--no-reaper", "--threads", "2", "--stall-timeout", "600", **reap)
    hog = jobs.hog_when_open.send("hog", str(gate), 12)
    runner = pid_of("hog")
    manage("horsies_reaper", **reap)
    heartbeats = Heartbeat.objects.filter(task=hog.id)
    wait_until(heartbeats.exists)
    Heartbeat.objects.all().delete()

    gate.touch()

    def heartbeats_span_three_thresholds():
        times = heartbeats.aggregate(first=Min("sent_at"), last=Max("sent_at"))
        return times["first"] and (times["last"] - times["first"]).total_seconds() > 9

    wait_until(heartbeats_span_three_thresholds, limit=40)
    assert hog.value(timeout=40) == "hog"
    assert attempts_of(hog) == COMPLETED
    assert heartbeats.count() > 6, "a heartbeat for each threshold and no more"
    assert Worker.objects.get().pid == runner


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("hog", "write"),
    [(jobs.hog_at_once, tasks.write), (jobs.ahog_at_once, tasks.awrite)],
    ids=["started ahead", "coroutines"],
)
def test_tasks_behind_a_body_that_holds_the_gil_complete_or_expire(worker, manage, tmp_path, hog, write):
    """The body holds the interpreter's lock for longer than the threshold, and another process reaps."""
    worker("--no-reaper", "--threads", "1", "--stall-timeout", "600", TEST_HEARTBEAT_MS="500")
    manage("horsies_reaper", TEST_HEARTBEAT_MS="500", TEST_STALE_MS="4000", TEST_CHECK_MS="200")
    tasks.noop.send_many({} for _ in range(MANY))
    wait_until(lambda: Task.objects.completed().count() == MANY, limit=40)
    marker = tmp_path / "begun"
    with transaction.atomic():
        hog.send(str(marker), 9)
        soon = timezone.now() + timedelta(seconds=4)
        late = [write.with_options(good_until=soon).send(f"late {number}").id for number in range(20)]
        behind = [write.send(f"behind {number}").id for number in range(40)]
    wait_until(marker.exists)
    print(f"{Task.objects.filter(status=TaskStatus.RUNNING).count()} tasks were RUNNING")

    rows = Task.objects.filter(pk__in=[*late, *behind])
    wait_until(lambda: not rows.filter(status__in=TASK_LIVE_STATES).exists(), limit=60)

    assert set(rows.filter(pk__in=behind).values_list("status", "attempt")) == {("COMPLETED", 1)}
    assert set(rows.filter(pk__in=late).values_list("status", "started_at", "attempt")) == {("EXPIRED", None, 0)}
    assert not TaskAttempt.objects.exclude(attempt=1, outcome="COMPLETED").exists()
    assert not TaskAttempt.objects.filter(task__in=late).exists()
    assert Entry.objects.count() == len(behind)


def test_a_runner_frozen_together_with_its_supervisor_is_not_killed(worker, gate):
    """As if the container were paused, or the machine suspended, for longer than ``--stall-timeout``."""
    process = worker("--stall-timeout", "6", "--timeout-grace", "1", "--threads", "1")
    held = jobs.hold.send("held", str(gate))
    runner = pid_of("held")

    with stopped(runner):
        pass_time(2)  # so that the supervisor sees the runner's last sign of life
        with stopped(process.process.pid):
            pass_time(8)
        pass_time(0.5)  # so that the supervisor looks before the runner can do anything
    gate.touch()

    assert held.value(timeout=20) == "held"
    assert attempts_of(held) == COMPLETED
    assert "killed" not in process.output


def test_a_runner_that_waits_for_the_database_is_not_killed_as_stalled(worker, gate):
    process = worker("--stall-timeout", "3", "--threads", "1")
    held = jobs.hold.send("held", str(gate))
    pid_of("held")

    with transaction.atomic():
        Task.objects.select_for_update().get(pk=held.id)
        Task.objects.filter(pk=held.id).update(priority=1)  # on SQLite this blocks every other writer
        gate.touch()
        pass_time(6)

    assert held.value(timeout=40) == "held"
    assert "killed" not in process.output


@pytest.mark.nightly
def test_a_runner_whose_end_takes_long_is_not_killed_as_stalled(worker):
    process = worker("--stall-timeout", "3", DJANGO_SETTINGS_MODULE="tests.faults.slow_end_settings")

    process.signal(signal.SIGTERM)

    assert process.wait(40) == 0
    assert "flushed" in process.output
    assert "killed" not in process.output
