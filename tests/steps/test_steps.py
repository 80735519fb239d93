"""Steps: each runs once and keeps its value, whatever becomes of the run around it."""

import pytest

from horsies_django import TaskStatus
from horsies_django.models import Task, TaskAttempt, TaskStep
from horsies_django.testing import drain as run_due
from tests.conftest import wait_until
from tests.jobs.entries import entries
from tests.steps import jobs

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("fail_after", [0, 1, 2])
def test_a_retry_goes_on_after_the_last_kept_step(fail_after):
    handle = jobs.three_steps.send(fail_after)

    run_due(retries=True)

    assert handle.value(0) == ["step 0", "step 1", "step 2"]
    assert entries() == ["step 0", "step 1", "step 2"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_crash_after_a_step_is_no_failed_attempt(worker):
    handle = jobs.dies_after_a_step.send()
    worker("--processes", "1")

    wait_until(lambda: handle.status() in (TaskStatus.COMPLETED, TaskStatus.FAILED))

    assert handle.value(0) == "second"
    assert entries() == ["first", "death", "death", "second"]
    assert list(TaskAttempt.objects.order_by("attempt").values_list("outcome", "will_retry")) == [
        ("WORKER_FAILURE", True),
        ("COMPLETED", False),
    ]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_crash_without_progress_is_judged_by_the_policy(worker):
    handle = jobs.dies_at_once.send()
    worker("--processes", "1")

    assert handle.get(60).err_value.error_code == "WORKER_CRASHED"


def test_an_atomic_step_keeps_its_effects_with_its_value_or_neither():
    handle = jobs.undone.send()

    run_due()

    assert handle.value(0) == "UNHANDLED_EXCEPTION"
    assert entries() == ["kept"]
    assert list(TaskStep.objects.order_by("position").values_list("name", "status")) == [
        ("kept", "COMPLETED"),
        ("lost", "FAILED"),
    ]


def test_a_step_s_policy_repeats_the_step_and_not_the_body():
    handle = jobs.patient.send(0)

    run_due()

    assert handle.value(0) == "REFUSED"
    assert entries() == ["try", "try"]
    assert TaskStep.objects.get().attempts == 2
    assert TaskAttempt.objects.count() == 1


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_long_backoff_of_a_step_gives_up_the_slot():
    handle = jobs.patient.send(60)
    run_due()
    row = Task.objects.get()
    assert (row.status, row.waits_for, row.retry_count) == (TaskStatus.PENDING, "step:refused", 0)

    run_due(scheduled=True)

    assert handle.value(0) == "REFUSED"
    assert entries() == ["try", "try"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_sleep_gives_up_the_slot_and_ends_once():
    handle = jobs.sleeps.send(3600)
    run_due()
    row = Task.objects.get()
    assert (row.status, row.waits_for, row.attempt) == (TaskStatus.PENDING, "sleep", 0)
    assert 3500 < (row.enqueued_at - row.sent_at).total_seconds() < 3700

    run_due(scheduled=True)

    assert handle.value(0) == "after"
    assert entries() == ["before", "after"]
    assert not TaskAttempt.objects.exclude(outcome="COMPLETED").exists()


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_restart_drops_the_records_and_keeps_the_id():
    handle = jobs.restarts.send(2)

    run_due()

    keys = handle.value(0)
    assert entries() == ["left 2", "left 1", "left 0"]
    assert len(set(keys)) == 3
    assert all(str(handle.id) in key for key in keys)
    assert TaskStep.objects.count() == 1
