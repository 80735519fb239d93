"""Outages: a reaper ignores missing heartbeats that the database caused, and still finds every dead host."""

import os
import signal
import threading
from collections import Counter
from datetime import timedelta
from types import SimpleNamespace

import psycopg
import pytest
from django.core.management import call_command
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from horsies_django import TaskStatus
from horsies_django.core.compat import task_backends
from horsies_django.core.options import RecoveryOptions
from horsies_django.models import Heartbeat, Lease, Task, Worker
from horsies_django.ops.metrics import collect
from horsies_django.reaper import outages
from horsies_django.reaper.loop import Reaper
from horsies_django.reaper.outages import OutageDetector, outage_grace
from tests.conftest import database_url, wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.reaper.age_heartbeats import make_heartbeats_old
from tests.reaper.conftest import WORK, abandoned

pytestmark = pytest.mark.django_db(transaction=True)

#: With the settings of the tests: a threshold of 120 s, heartbeats every 30 s.
NOTICED = timedelta(seconds=31)
OUTAGE_GRACE = timedelta(seconds=60)


def ago(time):
    return timezone.now() - time


def set_lease(**columns):
    Lease.objects.update_or_create(name="reaper:default", defaults=columns)


def reap():
    call_command("horsies_reaper", once=True, verbosity=0)


def statuses():
    return set(Task.objects.values_list("status", flat=True))


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_pass_every_ten_minutes_recovers_the_tasks_of_a_dead_host():
    for _ in range(3):
        abandoned(2, TaskStatus.RUNNING)
        abandoned(2, TaskStatus.CLAIMED)
        set_lease(renewed_at=ago(timedelta(minutes=10)))

        reap()

        assert Counter(Task.objects.values_list("status", flat=True)) == {"FAILED": 2, "PENDING": 2}
        Task.objects.all().delete()


@pytest.mark.parametrize("since", [timedelta(), OUTAGE_GRACE - timedelta(seconds=20)], ids=["now", "some seconds ago"])
def test_missing_heartbeats_are_ignored_after_an_outage_another_reaper_noticed(since):
    rows = [*abandoned(1, TaskStatus.RUNNING), *abandoned(1, TaskStatus.CLAIMED)]
    set_lease(outage_at=ago(since))

    reap()

    assert statuses() == {row.status for row in rows}


def test_an_outage_noted_by_another_reaper_at_the_same_moment_counts():
    abandoned(1, TaskStatus.RUNNING)
    set_lease(outage_at=ago(timedelta(milliseconds=-500)))

    reap()

    assert statuses() == {TaskStatus.RUNNING}


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_probe_does_not_count_as_a_reaper_pass():
    abandoned(1, TaskStatus.RUNNING)

    reap()

    assert Lease.objects.exists(), "the reaper did not probe"
    assert collect(task_backends["default"].config).reaper_ago is None


def test_a_probe_succeeds_if_the_lease_row_is_deleted():
    probe = Lease.objects.probe_status("reaper:default")

    assert abs(probe.now - timezone.now()) < timedelta(seconds=60)
    assert probe.since_outage == float("inf")


@pytest.mark.parametrize(
    "since",
    [OUTAGE_GRACE + timedelta(seconds=1), timedelta(hours=-1)],
    ids=["over", "begun before the clock was set back"],
)
def test_tasks_of_dead_workers_are_recovered_after_the_outage_grace(since):
    abandoned(1, TaskStatus.RUNNING)
    set_lease(outage_at=ago(since))

    reap()

    assert statuses() == {TaskStatus.FAILED}


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_connection_lost_during_a_pass_counts_as_an_outage():
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no connection to lose")
    passes = []

    def lose_connection_once(line):
        passes.append(line)
        if len(passes) == 2:
            reaper.stop()
            return
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    reaper = Reaper(task_backends["default"].config, "default", 0.1, lose_connection_once)
    reaper.run()

    assert Lease.objects.filter(outage_at__isnull=False).exists()


def test_a_reaper_connects_anew_after_its_server_became_read_only():
    """As after a failover: the old primary still answers, and lives on as a standby."""
    passes, give_up = [], threading.Timer(20, lambda: reaper.stop())
    reaper = Reaper(task_backends["default"].config, "default", 0.1, lambda line: (passes.append(line), reaper.stop()))
    read_only = "SET default_transaction_read_only = on" if connection.vendor == "postgresql" else "PRAGMA query_only=1"
    with connection.cursor() as cursor:
        cursor.execute(read_only)

    give_up.start()
    try:
        reaper.run()
    finally:
        give_up.cancel()
        connection.close()

    assert passes


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_hanging_probe_of_another_reaper_counts_as_an_outage():
    abandoned(1, TaskStatus.RUNNING)
    set_lease(probing_since=ago(NOTICED))

    reap()

    assert statuses() == {TaskStatus.RUNNING}
    set_lease(outage_at=ago(OUTAGE_GRACE))
    reap()
    assert statuses() == {TaskStatus.FAILED}, "a probe that hung delays the next passes by more than the grace"


def test_a_probe_begun_a_moment_ago_does_not_count_as_an_outage():
    abandoned(1, TaskStatus.RUNNING)
    set_lease(probing_since=ago(timedelta(seconds=5)))

    reap()

    assert statuses() == {TaskStatus.FAILED}


def test_a_probe_is_no_heartbeat_of_a_worker_or_task():
    abandoned(1, TaskStatus.RUNNING)
    Worker.objects.create(id="dead", hostname="host", pid=1, last_beat_at=ago(timedelta(hours=1)))
    before = list(Worker.objects.values()), Heartbeat.objects.count()

    OutageDetector(task_backends["default"].config, "reaper:default").probe()

    assert (list(Worker.objects.values()), Heartbeat.objects.count()) == before


def test_a_long_pass_probes_again_before_its_pause_could_count_as_an_outage(monkeypatch):
    now = 0.0
    monkeypatch.setattr(outages, "time", SimpleNamespace(monotonic=lambda: now))
    detector = OutageDetector(task_backends["default"].config, "reaper:default")
    detector.probe()

    def probes_after(seconds):
        nonlocal now
        now += seconds
        with CaptureQueriesContext(connection) as captured:
            detector.probe_while()
        return bool(captured)

    # An outage is a pause of 30 s; the pass asks between two batches of any length.
    assert [probes_after(seconds) for seconds in (14.9, 0.2, 14.9, 0.2)] == [False, True, False, True]


@pytest.mark.once
@pytest.mark.parametrize(
    ("threshold", "interval"), [(1_000, 100), (1_000, 500), (30_000, 10_000), (120_000, 30_000), (300_000, 120_000)]
)
def test_the_outage_grace_lasts_from_two_heartbeats_to_one_threshold(threshold, interval):
    recovery = RecoveryOptions(
        claimed_stale_threshold_ms=threshold,
        running_stale_threshold_ms=2 * threshold,
        claimer_heartbeat_interval_ms=interval,
        runner_heartbeat_interval_ms=interval,
    )
    assert 2 * interval <= outage_grace(recovery) * 1_000 <= threshold


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_pass_whose_own_statements_hang_recovers_no_task(settings):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no locks on single tables")
    backend = settings.TASKS["default"]
    recovery = {
        "claimed_stale_threshold_ms": 2_000,
        "running_stale_threshold_ms": 2_000,
        "claimer_heartbeat_interval_ms": 1_000,
        "runner_heartbeat_interval_ms": 1_000,
    }
    settings.TASKS = {"default": {**backend, "OPTIONS": {"recovery": recovery}}}
    rows = [*abandoned(1, TaskStatus.RUNNING), *abandoned(1, TaskStatus.CLAIMED)]
    reaper = threading.Thread(target=_reap_and_close)
    with psycopg.connect(database_url()) as other:
        other.execute("LOCK TABLE horsies_heartbeats IN ACCESS EXCLUSIVE MODE")
        reaper.start()
        wait_until(_hangs, limit=30, what="a statement that has hung for a second")
    reaper.join(30)

    assert statuses() == {row.status for row in rows}


@pytest.mark.parametrize("table", ["horsies_workers", "horsies_tasks", "horsies_heartbeats"])
def test_a_lock_that_blocks_heartbeats_blocks_the_probe_too(table):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no locks on single tables")
    detector = OutageDetector(task_backends["default"].config, "reaper:default")
    with psycopg.connect(database_url()) as other, connection.cursor() as cursor:
        other.execute(f"LOCK TABLE {table} IN SHARE MODE")  # which readers do not wait for
        cursor.execute("SET lock_timeout = '20ms'")
        try:
            with pytest.raises(OperationalError, match="lock timeout"):
                detector.probe()
        finally:
            cursor.execute("RESET lock_timeout")

    assert not detector.probe(), "a worker without heartbeats counts as dead although none could be sent"


def test_an_outage_is_logged_once(caplog):
    detector = OutageDetector(task_backends["default"].config, "reaper:default")
    detector.fail()

    for _ in range(3):
        detector.probe()

    assert caplog.text.count("outage detected grace=60.0s") == 1


def _hangs():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            " AND query_start < clock_timestamp() - interval '1 second'"
        )
        return cursor.fetchone()[0]


def _reap_and_close():
    try:
        reap()
    finally:
        connection.close()


@pytest.mark.slow
def test_a_reaper_run_only_by_cron_recovers_the_tasks_of_a_dead_host(manage, worker, tmp_path):
    doomed = worker("--no-reaper", "--threads", "2")
    held = tasks.hold.send_many({"key": key, "gate": str(tmp_path / "gate")} for key in "ab")
    wait_until(lambda: Entry.objects.count() == 2, what="both have begun")
    assert manage("horsies_reaper", "--once").wait() == 0
    assert {handle.status() for handle in held} == {TaskStatus.RUNNING}

    os.killpg(doomed.process.pid, signal.SIGKILL)
    doomed.wait()
    make_heartbeats_old()
    set_lease(renewed_at=ago(timedelta(minutes=10)))
    reaper = manage("horsies_reaper", "--once")

    assert reaper.wait() == 0
    assert "recovered stale runs: 2" in reaper.output
    assert {handle.info().error_code for handle in held} == {"WORKER_CRASHED"}


@pytest.mark.slow
def test_a_reaper_recovers_stale_tasks_at_once_after_a_long_downtime(manage):
    WORK["recovered stale runs"](3)
    set_lease(renewed_at=ago(timedelta(days=2)))

    manage("horsies_reaper")

    # No threshold, of two minutes, has to pass again.
    wait_until(lambda: statuses() == {TaskStatus.FAILED}, limit=60, what="the stale tasks are recovered")
