"""The deadline of a task, ``good_until``."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from horsies_django import RetryPolicy, TaskStatus, Workflow, WorkflowStatus
from horsies_django.models import Task, TaskAttempt
from tests.conftest import wait_until
from tests.faults import jobs
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = [pytest.mark.django_db, pytest.mark.once]


def until(seconds):
    """Return ``tasks.write`` with a deadline in ``seconds`` seconds."""
    return tasks.write.with_options(good_until=timezone.now() + timedelta(seconds=seconds))


def test_a_task_past_its_deadline_is_not_claimed_even_without_a_reaper(drain):
    late, good = until(-1).send("late"), tasks.write.send("good")

    drain()

    assert (late.status(), good.status()) == (TaskStatus.PENDING, TaskStatus.COMPLETED)
    assert list(Entry.objects.values_list("key", flat=True)) == ["good"]
    drain(no_reaper=False)
    assert late.status() == TaskStatus.EXPIRED


def test_a_task_sent_after_its_deadline_expires_without_running(worker):
    worker(TEST_CHECK_MS="200")
    late, good = until(-1).send("late"), tasks.write.send("good")

    assert late.get(timeout=20).err.error_code == "TASK_EXPIRED"
    assert good.get(timeout=20).is_ok()

    row = Task.objects.get(pk=late.id)
    assert (row.status, row.attempt, row.attempts.count()) == (TaskStatus.EXPIRED, 0, 0)
    assert list(Entry.objects.values_list("key", flat=True)) == ["good"]


def test_a_worker_expires_a_claimed_task_whose_deadline_has_passed(worker, gate):
    worker("--threads", "1", "--prefetch", "1", "--no-reaper")
    tasks.hold.send("in the way", str(gate))
    wait_until(lambda: Entry.objects.exists())
    late = until(3_600).send("late")
    wait_until(lambda: late.status() == TaskStatus.CLAIMED)
    claimed = Task.objects.get(pk=late.id)

    Task.objects.filter(pk=late.id).update(good_until=timezone.now() - timedelta(seconds=1))  # an hour has passed
    assert late.status() == TaskStatus.CLAIMED
    gate.touch()

    assert late.get(timeout=20).err.error_code == "TASK_EXPIRED"
    row = Task.objects.get(pk=late.id)
    assert (row.claimed_at, row.claimed_by_worker_id) == (claimed.claimed_at, claimed.claimed_by_worker_id)
    assert (row.started_at, row.attempt, row.attempts.count()) == (None, 0, 0)
    assert not Entry.objects.filter(key="late").exists()


def test_coroutines_waiting_for_a_blocked_event_loop_expire_and_never_begin(worker, gate, tmp_path):
    worker(TEST_CHECK_MS="200")
    soon = timezone.now() + timedelta(seconds=2)
    with transaction.atomic():  # so that one claim takes them all
        jobs.ablock.with_options(priority=1).send(str(tmp_path / "begun"), str(gate))
        late = [tasks.awrite.with_options(good_until=soon).send(f"late {number}").id for number in range(20)]
        behind = tasks.awrite.send("behind")
        workflow = Workflow("late", [tasks.awrite.node(good_until=soon)(key="late node")]).start()

    rows = Task.objects.filter(pk__in=late)
    wait_until(lambda: rows.filter(status=TaskStatus.EXPIRED).count() == len(late))
    wait_until(lambda: workflow.status() == WorkflowStatus.FAILED)
    wait_until((tmp_path / "begun").exists)
    assert not Entry.objects.exists()
    gate.touch()

    assert behind.value(timeout=20) == "behind"
    assert list(Entry.objects.values_list("key", flat=True)) == ["behind"]
    assert set(rows.values_list("started_at", "attempt")) == {(None, 0)}
    assert not TaskAttempt.objects.filter(task__in=late).exists()


def test_a_retry_after_the_deadline_fails_the_task_with_the_bodys_error(worker):
    worker()
    policy = RetryPolicy.fixed([60], auto_retry_for=["OWN"], jitter=False)
    good_until = timezone.now() + timedelta(seconds=30)
    handle = tasks.returns_error.with_options(retry_policy=policy, good_until=good_until).send("OWN")

    assert handle.get(timeout=20).err.error_code == "OWN"

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.retry_count, row.next_retry_at) == (TaskStatus.FAILED, 0, None)
    assert row.attempts.get().will_retry is False


def test_a_retry_exactly_at_the_deadline_is_too_late(drain):
    """The deadline is the time of the retry, except for the time that a statement takes."""
    policy = RetryPolicy.fixed([60], auto_retry_for=["OWN"], jitter=False)
    deadline = timezone.now() + timedelta(seconds=60)
    handle = tasks.returns_error.with_options(retry_policy=policy, good_until=deadline).send("OWN")

    drain()

    assert handle.status() == TaskStatus.FAILED


def test_a_deadline_that_passes_while_the_body_runs_does_not_stop_it(worker, gate):
    worker(TEST_CHECK_MS="200")
    in_an_hour = timezone.now() + timedelta(hours=1)
    handle = tasks.hold.with_options(good_until=in_an_hour).send("in time", str(gate))
    wait_until(lambda: Entry.objects.exists())

    Task.objects.filter(pk=handle.id).update(good_until=timezone.now() - timedelta(seconds=1))  # the hour has passed
    assert until(-1).send("late").get(timeout=20).err.error_code == "TASK_EXPIRED"  # the reaper has run since
    assert handle.status() == TaskStatus.RUNNING
    gate.touch()

    assert handle.value(timeout=20) == "in time"


def test_a_deadline_is_stored_in_utc_and_applies_to_one_send():
    there = datetime(2100, 1, 1, 14, tzinfo=timezone.get_fixed_timezone(120))

    handle = tasks.noop.with_options(good_until=there).send()
    other = tasks.noop.send()

    assert handle.info().good_until == datetime(2100, 1, 1, 12, tzinfo=UTC)
    assert other.info().good_until is None


def test_neither_start_nor_prefetch_claims_a_task_past_its_deadline():
    late = until(-60).send("late")

    with transaction.atomic():
        claims = Task.objects.claim("w", start=1, prefetch=1)

    assert claims == []
    assert not Task.objects.due().exists()
    assert Task.objects.overdue().get().pk == late.id
