"""What an operator is told to do, and what there is to do it with."""

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
from tests.reaper.age_heartbeats import grow_old, wait_for_beats
from tests.reaper.conftest import WORK

pytestmark = pytest.mark.django_db(transaction=True)

BACKEND = "horsies_django.backend.HorsiesBackend"


def configure(settings, **recovery):
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"recovery": recovery}}}


def reap(capsys):
    call_command("horsies_reaper", once=True, verbosity=0)
    return capsys.readouterr().out.splitlines()


def test_reclaim_is_the_one_public_way_to_take_tasks_back():
    functions = {name for name in horsies_django.__all__ if name.islower()}
    of_workflows = {"recover_stuck_workflows", "sleep", "together", "wait_for_event", "workflow_builder"}
    of_names = {"register_condition", "register_task", "register_type"}
    assert functions - of_workflows - of_names == {"reclaim", "schedule", "task"}


def test_a_higher_threshold_leaves_a_worker_alone_that_is_only_slow_to_beat(settings, capsys):
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
def test_a_pass_says_of_each_duty_what_it_did_so_that_one_sees_a_flag_that_is_off(settings, capsys, flag, duty):
    WORK[duty](1)
    configure(settings, **{flag: False})
    assert f"{duty}: 0" in reap(capsys)

    configure(settings, **{flag: True})
    assert f"{duty}: 1" in reap(capsys)


def test_a_reaper_that_runs_says_in_its_log_what_it_did(manage):
    WORK["recovered stale runs"](1)
    process = manage("horsies_reaper", "--interval", "0.5")
    wait_until(lambda: "reaper recovered stale runs: 1" in process.output)


def test_a_time_limit_ends_a_living_body_that_beats_and_no_threshold_does(worker, tmp_path, capsys):
    worker("--no-reaper", TEST_BEAT_MS="200")
    limited = tasks.hold.with_options(timeout=2).send("limited", str(tmp_path / "gate"))
    free = tasks.hold.send("free", str(tmp_path / "gate"))
    wait_until(lambda: Entry.objects.filter(key="free").exists())

    grow_old()  # both run for longer than the threshold
    wait_for_beats((free.id, "runner"))  # one statement beats for both
    assert "recovered stale runs: 0" in reap(capsys)
    wait_until(lambda: limited.status() is TaskStatus.FAILED)

    assert Task.objects.get(pk=limited.id).error_code == "TASK_TIMEOUT"
    assert Heartbeat.objects.filter(task_id=limited.id).exists()  # it lived
    assert free.status() is TaskStatus.RUNNING
    (tmp_path / "gate").touch()
    assert free.value(timeout=20) == "free"


def test_a_code_of_the_librarys_that_a_body_returns_can_be_told_from_a_crash(drain):
    (crashed,) = WORK["recovered stale runs"](1)
    handle = tasks.returns_error.send("WORKER_CRASHED")
    drain(no_reaper=False)

    assert Task.objects.get(pk=handle.id).attempts.get().outcome == "FAILED"
    assert Task.objects.get(pk=crashed.pk).attempts.get().outcome == "WORKER_FAILURE"


def test_unique_keys_leave_nothing_behind_once_their_tasks_are_gone(drain, capsys):
    unique = tasks.noop.with_options
    for number in range(30):
        unique(unique_key=f"key {number}", retention=0).send()
    drain()
    reap(capsys)

    left = {model._meta.db_table: model.objects.count() for model in apps.get_app_config("horsies_django").get_models()}
    assert {table for table, count in left.items() if count} <= {"horsies_leases"}
    assert unique(unique_key="key 7").send().replayed is False
