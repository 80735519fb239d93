"""The duties of the reaper that recover and expire tasks."""

import os
import signal
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import transaction
from django.utils import timezone

from horsies_django import RetryPolicy, TaskStatus
from horsies_django.core.backends import config_of
from horsies_django.core.status import BeatRole
from horsies_django.models import Heartbeat, Task, Worker
from horsies_django.models.attempt import AttemptError
from horsies_django.models.claims import Completion, WorkerInfo
from horsies_django.reaper.duties import DUTIES
from horsies_django.reaper.loop import Reaper
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.reaper.age_heartbeats import make_heartbeats_old, wait_for_heartbeats

pytestmark = pytest.mark.django_db(transaction=True)

LONG_AGO = timezone.now() - timedelta(hours=1)
CRASH = RetryPolicy.fixed([60], auto_retry_for=["WORKER_CRASHED"], jitter=False)


def hold(status, task=tasks.noop, since=LONG_AGO, worker="dead"):
    """Send a task and claim it for a worker that does not run."""
    handle = task.send()
    with transaction.atomic():
        Task.objects.claim(worker, start=status == TaskStatus.RUNNING, prefetch=1)
    Task.objects.filter(pk=handle.id).update(claimed_at=since)
    if status == TaskStatus.RUNNING:
        Task.objects.filter(pk=handle.id).update(started_at=since)
    return handle


def reap(capsys=None):
    call_command("horsies_reaper", once=True, verbosity=0)
    return capsys.readouterr().out if capsys else ""


def test_a_stale_claim_returns_to_pending_without_an_attempt(capsys):
    handle = hold(TaskStatus.CLAIMED)

    out = reap(capsys)

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.claimed_at, row.claimed_by_worker_id) == (TaskStatus.PENDING, None, None)
    assert (row.attempt, row.retry_count, row.attempts.count()) == (0, 0, 0)
    assert "requeued stale claims: 1" in out


def test_a_stale_run_without_a_policy_fails_as_a_worker_crash(capsys):
    Worker.objects.register("dead", "", "lost-host", 4711)
    handle = hold(TaskStatus.RUNNING)

    out = reap(capsys)

    row = Task.objects.get(pk=handle.id)
    attempt = row.attempts.get()
    assert (row.status, row.error_code) == (TaskStatus.FAILED, "WORKER_CRASHED")
    assert (attempt.outcome, attempt.will_retry, attempt.worker_id) == ("WORKER_FAILURE", False, "dead")
    assert (attempt.hostname, attempt.pid) == ("lost-host", 4711)
    assert "recovered stale runs: 1" in out


def test_a_stale_run_is_retried_after_its_delay_if_its_policy_lists_crashes():
    handle = hold(TaskStatus.RUNNING, tasks.noop.with_options(retry_policy=CRASH))

    reap()

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.retry_count) == (TaskStatus.PENDING, 1)
    assert row.attempts.get().will_retry is True
    assert timedelta(seconds=59) < row.next_retry_at - row.attempts.get().finished_at < timedelta(seconds=65)


def test_a_stale_run_fails_if_its_policy_excludes_crashes_or_is_used_up():
    other = RetryPolicy.fixed([60], auto_retry_for=["SMTP_DOWN"])
    unlisted = hold(TaskStatus.RUNNING, tasks.noop.with_options(retry_policy=other))
    spent = hold(TaskStatus.RUNNING, tasks.noop.with_options(retry_policy=CRASH))
    Task.objects.filter(pk=spent.id).update(retry_count=1)

    reap()

    assert unlisted.status() == spent.status() == TaskStatus.FAILED


@pytest.mark.parametrize(
    ("status", "role"), [(TaskStatus.CLAIMED, BeatRole.CLAIMER), (TaskStatus.RUNNING, BeatRole.RUNNER)]
)
def test_a_heartbeat_keeps_a_task_with_its_worker(status, role):
    handle = hold(status)
    Heartbeat.objects.create(task_id=handle.id, role=role, sender_id="dead", hostname="host", pid=1)

    reap()

    assert handle.status() == status


@pytest.mark.parametrize("heartbeat", [(BeatRole.CLAIMER, "dead"), (BeatRole.RUNNER, "another")])
def test_a_heartbeat_of_another_role_or_worker_does_not_keep_a_task(heartbeat):
    role, sender = heartbeat
    handle = hold(TaskStatus.RUNNING)
    Heartbeat.objects.create(task_id=handle.id, role=role, sender_id=sender, hostname="host", pid=1)

    reap()

    assert handle.status() == TaskStatus.FAILED


def test_a_claim_or_start_counts_as_the_first_heartbeat():
    claimed = hold(TaskStatus.CLAIMED, since=timezone.now())
    running = hold(TaskStatus.RUNNING, since=timezone.now())

    reap()

    assert (claimed.status(), running.status()) == (TaskStatus.CLAIMED, TaskStatus.RUNNING)


def test_a_running_row_without_a_start_time_fails():
    row = Task.objects.create(task_name=tasks.noop.module_path, status=TaskStatus.RUNNING)

    reap()

    row.refresh_from_db()
    assert (row.status, row.error_code) == (TaskStatus.FAILED, "WORKER_CRASHED")


def test_a_waiting_task_past_its_deadline_expires_without_an_attempt(capsys):
    late = tasks.noop.with_options(good_until=LONG_AGO).send()
    scheduled = tasks.noop.schedule(timedelta(days=1))
    Task.objects.filter(pk=scheduled.id).update(good_until=LONG_AGO)
    in_time = tasks.noop.with_options(good_until=timezone.now() + timedelta(hours=1)).send()

    out = reap(capsys)

    row = Task.objects.get(pk=late.id)
    assert (row.status, row.error_code) == (TaskStatus.EXPIRED, "TASK_EXPIRED")
    assert row.expired_at is not None
    assert row.attempts.count() == 0
    assert scheduled.status() == TaskStatus.EXPIRED
    assert in_time.status() == TaskStatus.PENDING
    assert "expired overdue tasks: 2" in out


def test_a_completion_after_the_reaper_failed_the_task_changes_nothing():
    handle = hold(TaskStatus.RUNNING)
    claim = Task.objects.get(pk=handle.id).claim
    reap()

    with transaction.atomic():
        Task.objects.complete([Completion(handle.id, claim, '{"ok":1}')], WorkerInfo("dead", "host", 1))

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.error_code, row.attempts.count()) == (TaskStatus.FAILED, "WORKER_CRASHED", 1)


def test_a_reaper_pass_after_the_completion_changes_nothing():
    handle = hold(TaskStatus.RUNNING)
    claim = Task.objects.get(pk=handle.id).claim
    with transaction.atomic():
        Task.objects.complete([Completion(handle.id, claim, '{"ok":1}')], WorkerInfo("dead", "host", 1))

    reap()

    assert handle.value(0) == 1
    assert Task.objects.get(pk=handle.id).attempts.get().outcome == "COMPLETED"


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_pass_with_nothing_to_do_reports_zero_for_each_duty(manage):
    process = manage("horsies_reaper", "--once")

    assert process.wait() == 0
    assert process.output.splitlines() == [f"{duty}: 0" for duty in DUTIES]


@pytest.mark.slow
@pytest.mark.sqlite
def test_one_pass_expires_more_than_a_batch(capsys):
    tasks.noop.with_options(good_until=LONG_AGO).send_many({} for _ in range(1_200))

    assert "expired overdue tasks: 1200" in reap(capsys)


def test_disabled_duties_leave_stale_tasks_unchanged(settings):
    claimed, running = hold(TaskStatus.CLAIMED), hold(TaskStatus.RUNNING)
    backend = settings.TASKS["default"]
    off = {"auto_requeue_stale_claimed": False, "auto_fail_stale_running": False}
    settings.TASKS = {"default": {**backend, "OPTIONS": {"recovery": off}}}

    reap()

    assert (claimed.status(), running.status()) == (TaskStatus.CLAIMED, TaskStatus.RUNNING)


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_worker_keeps_the_tasks_for_which_it_sends_heartbeats(worker, tmp_path):
    worker("--threads", "1", "--prefetch", "1", "--no-reaper", TEST_HEARTBEAT_MS="200")
    running = tasks.hold.send("held", str(tmp_path / "gate"))
    wait_until(lambda: Entry.objects.filter(key="held").exists())
    claimed = tasks.noop.send()

    wait_until(lambda: claimed.status() == TaskStatus.CLAIMED)

    for _ in range(3):
        make_heartbeats_old()  # only new heartbeats count now
        wait_for_heartbeats((running.id, BeatRole.RUNNER), (claimed.id, BeatRole.CLAIMER))
        reap()
        assert (running.status(), claimed.status()) == (TaskStatus.RUNNING, TaskStatus.CLAIMED)

    (tmp_path / "gate").touch()
    assert running.value(timeout=20) == "held"
    assert Task.objects.get(pk=running.id).attempt == 1


@pytest.mark.slow
def test_another_workers_reaper_recovers_the_tasks_of_a_killed_worker(worker, tmp_path):
    dying = worker("--threads", "1")
    policy = RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False)
    handle = tasks.hold.with_options(retry_policy=policy).send("moved", str(tmp_path / "gate"))
    wait_until(lambda: Entry.objects.filter(key="moved").exists())

    os.killpg(dying.process.pid, signal.SIGKILL)
    make_heartbeats_old()
    worker(TEST_CHECK_MS="200")
    (tmp_path / "gate").touch()

    assert handle.value(timeout=20) == "moved"
    first, second = Task.objects.get(pk=handle.id).attempts.order_by("attempt")
    assert (first.outcome, second.outcome) == ("WORKER_FAILURE", "COMPLETED")


def test_an_unreadable_policy_fails_its_task_and_stops_no_other_duty(capsys):
    unreadable = hold(TaskStatus.RUNNING, tasks.noop.with_options(retry_policy=CRASH))
    Task.objects.filter(pk=unreadable.id).update(retry_policy={"no": "policy"})
    late = tasks.noop.with_options(good_until=LONG_AGO).send()

    reap(capsys)

    assert late.status() == TaskStatus.EXPIRED
    assert unreadable.status() == TaskStatus.FAILED


def test_a_late_failure_does_not_replace_the_error_of_a_crash():
    handle = hold(TaskStatus.RUNNING)
    claim = Task.objects.get(pk=handle.id).claim
    end = Completion(handle.id, claim, '{"err":{"error_code":"X"}}', AttemptError("X", "x"))

    reap()
    with transaction.atomic():
        Task.objects.fail([end], WorkerInfo("dead", "host", 1))

    assert Task.objects.get(pk=handle.id).attempts.get().error_code == "WORKER_CRASHED"


@pytest.mark.slow
def test_a_reaper_warns_once_if_live_workers_send_heartbeats_too_rarely_for_its_thresholds(worker, settings, caplog):
    def warnings(threshold_ms):
        recovery = {"claimed_stale_threshold_ms": threshold_ms, "claimer_heartbeat_interval_ms": 1_000}
        settings.TASKS = {"default": settings.TASKS["default"] | {"OPTIONS": {"recovery": recovery}}}
        reaper = Reaper(config_of("default"), "default")
        caplog.clear()
        for _ in range(2):
            reaper.run_once()
        return [record.getMessage() for record in caplog.records if "live workers" in record.getMessage()]

    worker()

    assert warnings(60_000) == []
    (warning,) = warnings(59_000)
    assert f"threshold=59s heartbeat_interval=30s worker={Worker.objects.get().pk}" in warning
    Worker.objects.update(last_beat_at=LONG_AGO)
    assert warnings(59_000) == []
