"""reclaim() recovers the tasks of silent workers."""

from datetime import timedelta

import pytest
from django.core.management import call_command

from horsies_django import RetryPolicy, TaskStatus, reclaim
from horsies_django.models import Task
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.reaper.age_heartbeats import make_heartbeats_old, wait_for_heartbeats
from tests.reaper.conftest import WORK, abandoned

pytestmark = pytest.mark.django_db(transaction=True)

RETRY = RetryPolicy.fixed([60], auto_retry_for=["WORKER_CRASHED"], jitter=False)


@pytest.mark.parametrize("older_than", [60, 60.5, timedelta(minutes=1), "90s", "1m"])
def test_reclaim_returns_the_number_of_recovered_tasks(older_than):
    WORK["requeued stale claims"](2)
    WORK["recovered stale runs"](3)
    assert reclaim(older_than) == 5
    assert reclaim(older_than) == 0
    assert reclaim(timedelta.max) == 0
    assert set(Task.objects.values_list("status", flat=True)) == {TaskStatus.PENDING, TaskStatus.FAILED}


def test_a_reclaimed_task_with_retries_left_is_retried_after_the_policys_delay():
    (row,) = abandoned(1, TaskStatus.RUNNING, RETRY)
    assert reclaim(60) == 1
    row.refresh_from_db()
    assert (row.status, row.retry_count, row.started_at) == (TaskStatus.PENDING, 1, None)
    assert row.enqueued_at == row.next_retry_at
    attempt = row.attempts.get()
    assert (attempt.outcome, attempt.will_retry) == ("WORKER_FAILURE", True)
    assert row.enqueued_at - attempt.finished_at == pytest.approx(timedelta(seconds=60), abs=timedelta(seconds=5))


def test_a_reclaimed_task_without_retries_left_fails():
    (row,) = abandoned(1, TaskStatus.RUNNING, RETRY)
    Task.objects.filter(pk=row.pk).update(retry_count=1)
    assert reclaim(60) == 1
    row.refresh_from_db()
    assert (row.status, row.error_code) == (TaskStatus.FAILED, "WORKER_CRASHED")


def test_a_worker_recovers_stale_claims_before_it_claims():
    WORK["requeued stale claims"](1)
    call_command("horsies_worker", once=True, verbosity=0)
    assert Task.objects.get().status == TaskStatus.COMPLETED


def test_reclaim_leaves_tasks_younger_than_the_threshold():
    WORK["recovered stale runs"](1)
    assert reclaim("2h") == 0


@pytest.mark.slow
@pytest.mark.sqlite
def test_reclaim_leaves_the_tasks_of_a_live_worker(worker, tmp_path):
    handle = tasks.hold.send("alive", str(tmp_path / "gate"))
    worker("--no-reaper", TEST_HEARTBEAT_MS="200", TEST_STALE_MS="60000")  # its own could look too early
    wait_until(Entry.objects.exists)
    make_heartbeats_old()
    wait_for_heartbeats((handle.id, "runner"))
    assert reclaim(60) == 0
    (tmp_path / "gate").touch()
    assert handle.value(timeout=20) == "alive"


@pytest.mark.parametrize("bad", [None, "soon", -1, True, float("nan")])
def test_reclaim_refuses_an_invalid_age(bad):
    with pytest.raises(ValueError, match="allowed: seconds"):
        reclaim(bad)


def test_reclaim_refuses_an_unknown_backend():
    with pytest.raises(ValueError, match=r"no HorsiesBackend at TASKS\['nope'\]; there is 'default'"):
        reclaim(60, backend="nope")
