"""The means of operators: reclaim, thresholds, and what the reaper reports."""

from datetime import timedelta

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db.models import F

import horsies_django
from horsies_django import TaskStatus
from horsies_django.models import Heartbeat, Task
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.reaper.age_heartbeats import make_heartbeats_old, wait_for_heartbeats
from tests.reaper.conftest import WORK

pytestmark = pytest.mark.django_db(transaction=True)

BACKEND = "horsies_django.backend.HorsiesBackend"


def configure(settings, **recovery):
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"recovery": recovery}}}


def reap(capsys):
    call_command("horsies_reaper", once=True, verbosity=0)
    return capsys.readouterr().out.splitlines()


def test_reclaim_is_the_only_public_function_that_recovers_tasks():
    functions = {name for name in horsies_django.__all__ if name.islower()}
    for_workflows = {"recover_stuck_workflows", "sleep", "together", "wait_for_event", "workflow_builder"}
    for_events = {"send_events", "asend_events"}
    for_names = {"register_condition", "register_task", "register_type", "current_task"}
    assert functions - for_workflows - for_events - for_names == {"reclaim", "schedule", "task"}


def test_a_higher_threshold_spares_a_worker_with_late_heartbeats(settings, capsys):
    (row,) = WORK["recovered stale runs"](1)
    Task.objects.filter(pk=row.pk).update(started_at=F("started_at") + timedelta(minutes=53))  # seven minutes ago
    configure(settings, running_stale_threshold_ms=600_000)
    assert "recovered stale runs: 0" in reap(capsys)

    configure(settings)  # five minutes
    assert "recovered stale runs: 1" in reap(capsys)


@pytest.mark.parametrize(
    ("flag", "duty"),
    [("auto_requeue_stale_claimed", "requeued stale claims"), ("auto_fail_stale_running", "recovered stale runs")],
)
def test_a_pass_reports_a_count_for_each_duty_even_if_it_is_disabled(settings, capsys, flag, duty):
    WORK[duty](1)
    configure(settings, **{flag: False})
    assert f"{duty}: 0" in reap(capsys)

    configure(settings, **{flag: True})
    assert f"{duty}: 1" in reap(capsys)


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_running_reaper_logs_what_it_did(manage):
    WORK["recovered stale runs"](1)
    process = manage("horsies_reaper", "--interval", "0.5")
    wait_until(lambda: "reaper duty='recovered stale runs' count=1" in process.output)


@pytest.mark.slow
def test_a_timeout_ends_a_body_with_heartbeats_but_a_stale_threshold_does_not(worker, tmp_path, capsys):
    worker("--no-reaper", TEST_HEARTBEAT_MS="200")
    limited = tasks.hold.with_options(timeout=2).send("limited", str(tmp_path / "gate"))
    free = tasks.hold.send("free", str(tmp_path / "gate"))
    wait_until(lambda: Entry.objects.filter(key="free").exists())

    make_heartbeats_old()  # both have run for longer than the threshold
    wait_for_heartbeats((free.id, "runner"))  # one statement writes the heartbeats of both
    assert "recovered stale runs: 0" in reap(capsys)
    wait_until(lambda: limited.status() is TaskStatus.FAILED)

    assert Task.objects.get(pk=limited.id).error_code == "TASK_TIMEOUT"
    assert Heartbeat.objects.filter(task_id=limited.id).exists()  # it sent heartbeats
    assert free.status() is TaskStatus.RUNNING
    (tmp_path / "gate").touch()
    assert free.value(timeout=20) == "free"


def test_a_body_that_returns_worker_crashed_is_distinguishable_from_a_crash(drain):
    (crashed,) = WORK["recovered stale runs"](1)
    handle = tasks.returns_error.send("WORKER_CRASHED")
    drain(no_reaper=False)

    assert Task.objects.get(pk=handle.id).attempts.get().outcome == "FAILED"
    assert Task.objects.get(pk=crashed.pk).attempts.get().outcome == "WORKER_FAILURE"


@pytest.mark.slow
@pytest.mark.sqlite
def test_unique_keys_leave_no_rows_once_their_tasks_are_deleted(drain, capsys):
    unique = tasks.noop.with_options
    for number in range(30):
        unique(unique_key=f"key {number}", retention=0).send()
    drain()
    reap(capsys)

    left = {model._meta.db_table: model.objects.count() for model in apps.get_app_config("horsies_django").get_models()}
    assert {table for table, count in left.items() if count} <= {"horsies_leases"}
    assert unique(unique_key="key 7").send().replayed is False
