"""Rows past their retention are deleted: by the reaper in batches, by a command at once."""

import re
import subprocess
import sys
import threading
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from horsies_django import TaskStatus
from horsies_django.models import Heartbeat, Lease, Task, TaskAttempt, Worker
from horsies_django.reaper import duties
from horsies_django.reaper.loop import Reaper
from horsies_django.reaper.prune import past_retention, prune_heartbeats, prune_tasks
from tests.conftest import ROOT, wait_until
from tests.jobs import tasks
from tests.reaper.retention.pruning import options, prune

pytestmark = pytest.mark.django_db(transaction=True)


def ended(count, *, status=TaskStatus.COMPLETED, kept_for=-1, ago=timedelta(days=10)):
    """Make tasks that ended that long ago and are kept until ``kept_for`` seconds from now, each with an attempt."""
    now = timezone.now()
    rows = [
        Task(
            task_name="tests.reaper.retention.jobs.plain",
            status=status,
            sent_at=now - ago,
            enqueued_at=now - ago,
            started_at=now - ago,
            attempt=1,
            kept_until=None if kept_for is None else now + timedelta(seconds=kept_for),
            **{f"{status.lower()}_at": now - ago},
        )
        for _ in range(count)
    ]
    Task.objects.bulk_create(rows, batch_size=500)
    times = {"due_at": now, "started_at": now, "finished_at": now}
    TaskAttempt.objects.bulk_create(
        [TaskAttempt(task=row, attempt=1, outcome="COMPLETED", **times) for row in rows],
        batch_size=500,
    )
    return rows


def send_heartbeat(task, ago):
    row = Heartbeat.objects.create(task=task, role="runner", sender_id="w", hostname="h", pid=1)
    Heartbeat.objects.filter(pk=row.pk).update(sent_at=F("sent_at") - ago)
    return row


def reap(capsys):
    call_command("horsies_reaper", once=True, verbosity=0)
    return capsys.readouterr().out


def test_the_reaper_deletes_tasks_past_retention_with_attempts_and_heartbeats(capsys):
    (gone,) = ended(1)
    (kept,) = ended(1, kept_for=60)
    (forever,) = ended(1, kept_for=None)
    send_heartbeat(gone, timedelta(0))

    assert "deleted ended tasks: 1" in reap(capsys)

    assert set(Task.objects.values_list("pk", flat=True)) == {kept.pk, forever.pk}
    assert TaskAttempt.objects.count() == 2
    assert not Heartbeat.objects.exists()


@pytest.mark.slow
@pytest.mark.sqlite
def test_rows_of_a_project_that_refer_to_tasks_go_with_them(tmp_path):
    command = [sys.executable, "-m", "tests.reaper.retention.referring", str(tmp_path / "project.sqlite3")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.endswith("['kept'] 1\n"), done.stdout + done.stderr


def test_a_cascade_names_all_tasks_of_a_batch_in_one_parameter():
    ended(40)
    sizes = []

    def note(execute, sql, params, many, context):
        if sql.startswith("DELETE") and "horsies_tasks" not in sql:
            sizes.append(len(params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        assert sum(prune_tasks(options())) == 40

    assert len(sizes) >= 5
    assert set(sizes) == {1}


@pytest.mark.slow
@pytest.mark.sqlite
def test_one_pass_deletes_more_than_a_batch(capsys):
    ended(510)
    assert "deleted ended tasks: 510" in reap(capsys)
    assert not TaskAttempt.objects.exists()


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_pass_that_leaves_rows_is_followed_by_the_next_at_once(monkeypatch):
    monkeypatch.setattr(duties, "BATCHES_PER_PASS", 1)
    ended(1_100)
    lines = []

    def note(line):
        lines.append(line)
        if not Task.objects.exists():
            reaper.stop()

    reaper = Reaper(options(), "default", 3_600, note)
    limit = threading.Timer(20, reaper.stop)
    limit.start()
    reaper.run()
    limit.cancel()

    deleted = [re.search(r"deleted ended tasks: (\d+)", line) for line in lines]  # a pass may roll up attempts as well
    assert [match and match[1] for match in deleted] == ["500", "500", "100"]
    assert not Task.objects.exists()


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_batch_deletes_at_most_500_tasks():
    ended(501)
    assert next(prune_tasks(options())) == 500


def test_a_live_task_is_never_pruned(capsys):
    handle = tasks.noop.send()
    Task.objects.filter(pk=handle.id).update(kept_until=timezone.now() - timedelta(days=1))
    reap(capsys)
    assert handle.status() is TaskStatus.PENDING


def test_a_locked_task_is_pruned_after_it_is_unlocked():
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer and locks no rows")
    from threading import Event, Thread

    rows = ended(3)
    locked, done = Event(), Event()

    def hold():
        with transaction.atomic():
            list(Task.objects.select_for_update().filter(pk=rows[0].pk))
            locked.set()
            done.wait(20)
        connection.close()

    thread = Thread(target=hold)
    thread.start()
    try:
        assert locked.wait(20)
        assert sum(prune_tasks(options())) == 2
    finally:
        done.set()
        thread.join()
    assert sum(prune_tasks(options())) == 1


def test_pruning_uses_the_kept_until_index():
    ended(50, kept_for=3_600)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        if connection.vendor == "postgresql":
            cursor.execute("SET enable_seqscan = off")  # 50 rows are one page
    try:
        plan = past_retention(Task.objects.all()).order_by("kept_until").values_list("pk")[:500].explain()
    finally:
        connection.close()
    assert "horsies_task_kept_until" in plan
    assert "Sort" not in plan
    assert "TEMP B-TREE" not in plan


def test_heartbeats_are_deleted_after_heartbeat_retention_hours(settings):
    handle = tasks.noop.send()
    row = Task.objects.get(pk=handle.id)
    old, new = send_heartbeat(row, timedelta(hours=25)), send_heartbeat(row, timedelta(hours=23))

    assert sum(prune_heartbeats(options())) == 1

    assert list(Heartbeat.objects.values_list("pk", flat=True)) == [new.pk]
    assert old.pk < new.pk


def test_heartbeat_retention_hours_none_keeps_heartbeats(settings, capsys):
    settings.TASKS = {
        "default": {
            "BACKEND": "horsies_django.backend.HorsiesBackend",
            "QUEUES": [],
            "OPTIONS": {"recovery": {"heartbeat_retention_hours": None}},
        }
    }
    handle = tasks.noop.send()
    send_heartbeat(Task.objects.get(pk=handle.id), timedelta(days=400))
    assert "heartbeats would be deleted: 0\n" in prune(capsys, "--dry-run")
    assert sum(prune_heartbeats(options())) == 0


def test_heartbeats_can_be_deleted_by_plain_sql():
    handle = tasks.noop.send()
    send_heartbeat(Task.objects.get(pk=handle.id), timedelta(hours=30))
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM horsies_heartbeats WHERE sent_at < %s", [timezone.now() - timedelta(hours=24)])
        assert cursor.rowcount == 1


def test_a_worker_row_is_deleted_a_day_after_its_last_heartbeat(capsys):
    for name, ago in (("dead", timedelta(hours=25)), ("silent", timedelta(hours=1))):
        Worker.objects.register(name, "", "host", 1)
        Worker.objects.filter(pk=name).update(last_beat_at=F("last_beat_at") - ago)
    assert "forgot dead workers: 1" in reap(capsys)
    assert list(Worker.objects.values_list("pk", flat=True)) == ["silent"]


def test_the_lease_of_a_killed_embedded_worker_is_deleted_after_a_day():
    ago = timezone.now() - timedelta(hours=25)
    Lease.objects.create(name="embedded:default:gone", renewed_at=ago)
    Lease.objects.create(name="embedded:default:here")
    Lease.objects.create(name="reaper:other", renewed_at=ago)
    Worker.objects.create(id="gone", hostname="gone", pid=1, last_beat_at=ago)

    call_command("horsies_reaper", once=True, verbosity=0)

    assert set(Lease.objects.values_list("pk", flat=True)) >= {"embedded:default:here", "reaper:other"}
    assert not Lease.objects.filter(name="embedded:default:gone").exists()


# The command.


@pytest.mark.slow
@pytest.mark.sqlite
def test_the_prune_command_deletes_tasks_past_retention(capsys):
    ended(1_010)
    ended(2, kept_for=60)
    assert "tasks deleted: 1010" in prune(capsys)
    assert Task.objects.count() == 2


def test_a_dry_run_deletes_nothing(capsys):
    ended(3)
    assert "tasks would be deleted: 3" in prune(capsys, "--dry-run")
    assert "tasks would be deleted: 3" in prune(capsys, "--dry-run", "--older-than", "1d")
    assert Task.objects.count() == 3


@pytest.mark.slow
@pytest.mark.sqlite
def test_older_than_counts_from_the_end_and_ignores_retention(capsys):
    ended(510, kept_for=None, ago=timedelta(days=8))
    (young,) = ended(1, kept_for=None, ago=timedelta(days=6))
    live = tasks.noop.send()
    assert "tasks deleted: 510" in prune(capsys, "--older-than", "7d")
    assert set(Task.objects.values_list("pk", flat=True)) == {young.pk, live.id}


def test_the_status_flag_limits_which_tasks_are_pruned(capsys):
    ended(1)
    (failed,) = ended(1, status=TaskStatus.FAILED)
    assert "tasks deleted: 1" in prune(capsys, "--status", "completed,expired")
    assert Task.objects.get().pk == failed.pk
    assert "tasks deleted: 1" in prune(capsys, "--older-than", "3600", "--status", "failed")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--older-than", "soon"),
            "--older-than: 'soon' is not allowed; allowed: seconds, or a text like 90s, 12h, 7d.",
        ),
        (("--older-than", "-5"), "--older-than: '-5' is not allowed"),
        (
            ("--status", "running"),
            "--status: 'running' is not allowed; allowed: cancelled, completed, expired, failed.",
        ),
        (("--status", ""), "--status: '' is not allowed"),
        (("--status", "completed,"), "--status: 'completed,' is not allowed"),
        (("--backend", "nope"), "nope"),
    ],
)
def test_an_invalid_prune_flag_is_refused_with_the_allowed_values(flags, message):
    flag, value = flags
    with pytest.raises(CommandError) as caught:
        call_command("horsies_prune", f"{flag}={value}")
    assert message in str(caught.value)
    assert caught.value.returncode == 2


@pytest.mark.slow
@pytest.mark.sqlite
def test_an_environment_variable_sets_the_older_than_flag(manage):
    ended(2, kept_for=None)
    process = manage("horsies_prune", HORSIES_PRUNE_OLDER_THAN="1d")
    assert process.wait() == 0, process.output
    assert "tasks deleted: 2" in process.output


def test_the_backend_flag_keeps_the_tasks_of_other_backends(capsys):
    ended(1, kept_for=None)
    (other,) = ended(1, kept_for=None)
    Task.objects.filter(pk=other.pk).update(backend="another")
    assert "tasks deleted: 1" in prune(capsys, "--backend", "default", "--older-than", "1d")
    assert Task.objects.get().pk == other.pk


def test_a_heartbeat_within_the_stale_threshold_is_kept(settings):
    recovery = {"heartbeat_retention_hours": 1, "running_stale_threshold_ms": 7_200_000}
    settings.TASKS = {
        "default": {
            "BACKEND": "horsies_django.backend.HorsiesBackend",
            "QUEUES": [],
            "OPTIONS": {"recovery": recovery},
        }
    }
    handle = tasks.noop.send()
    send_heartbeat(Task.objects.get(pk=handle.id), timedelta(minutes=90))
    assert sum(prune_heartbeats(options())) == 0


@pytest.mark.slow
def test_pruning_does_not_hold_up_claims(manage):
    """Ended rows are deleted in bounded batches while a worker drains beside it."""
    ended(20_000)
    tasks.noop.send_many({} for _ in range(2_000))
    worker = manage("horsies_worker", "--drain", "--threads", "16", "--no-reaper", "-v0")
    pruner = manage("horsies_prune")
    assert pruner.wait(120) == 0, pruner.output
    assert worker.wait(120) == 0, worker.output
    assert "tasks deleted: 20000" in pruner.output
    assert wait_until(lambda: Task.objects.completed().count() == 2_000)
    assert TaskAttempt.objects.count() == 2_000
