"""Handles show what a task has recorded, and fork it."""

from datetime import datetime

import pytest
from asgiref.sync import async_to_sync

from horsies_django import TaskHandle
from horsies_django.core.ids import uuid7
from horsies_django.models import Task, TaskAttempt, TaskStep
from horsies_django.ops.inspector import tasks
from horsies_django.testing import drain as run_due
from tests.jobs.entries import entries
from tests.steps import event_jobs, jobs

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_handle_lists_the_records_in_the_order_of_the_body():
    handle = event_jobs.waits.send(count=2)
    handle.send_event("approved", {"by": "ann"})
    handle.send_event("other")
    run_due()

    infos = handle.steps()

    assert [(info.name, info.number, info.kind, info.status) for info in infos] == [
        ("note", 1, "step", "COMPLETED"),
        ("event:approved", 1, "event", "COMPLETED"),
        ("note", 2, "step", "COMPLETED"),
        ("event:other", 1, "event", "UNREAD"),
        ("event:approved", 2, "event", "WAITING"),
    ]
    assert [info.result and info.result.ok for info in infos] == ["wait 0", {"by": "ann"}, "wait 1", None, None]
    assert isinstance(infos[0].completed_at, datetime)
    assert infos[0].started_at <= infos[0].completed_at
    assert infos[-1].completed_at is None
    assert async_to_sync(handle.asteps)() == infos
    assert TaskHandle(uuid7()).steps() == []


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_fork_keeps_the_records_before_a_step_and_repeats_the_rest():
    handle = event_jobs.two_keys.send("first", "second")
    run_due()
    first, second = handle.value(0)

    fork = handle.fork(from_step="second")
    run_due()

    again_first, again_second = fork.value(0)
    assert again_first == first
    assert again_second != second
    assert entries() == ["first", "second", "second"]
    assert Task.objects.get(pk=fork.id).rerun_of_id == handle.id
    assert TaskAttempt.objects.get(task=fork.id).attempt == 1
    assert [info.name for info in fork.steps()] == ["first", "second"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_fork_without_a_step_repeats_all_with_other_arguments():
    handle = event_jobs.two_keys.send("first", second="second")
    run_due()

    fork = async_to_sync(handle.afork)(kwargs={"first": "other"})
    run_due()

    assert fork.value(0)[0] != handle.value(0)[0]
    assert entries() == ["first", "second", "other", "second"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_failure_at_the_end_of_a_fork_is_tried_again():
    handle = jobs.patient.send(0)
    run_due()
    with pytest.raises(ValueError, match="from_step is 'unknown'; allowed: 'refused'"):
        handle.fork(from_step="unknown")

    handle.fork(from_step="refused")
    run_due()

    assert entries() == ["try"] * 4


def test_what_can_t_be_forked_is_refused():
    with pytest.raises(ValueError, match="no task"):
        TaskHandle(uuid7()).fork()
    handle = event_jobs.two_keys.send("first", "second")
    with pytest.raises(TypeError, match="third"):
        handle.fork(kwargs={"third": 1})
    assert Task.objects.count() == 1


def test_records_are_deleted_with_their_task():
    handle, other = event_jobs.two_keys.send("a", "b"), event_jobs.waits.send()
    event_jobs.forgotten.send()
    run_due()
    assert not TaskStep.objects.filter(name="forgotten").exists()

    assert tasks("default").with_ids([handle.id]).delete().done == 1

    assert set(TaskStep.objects.values_list("task", flat=True)) == {other.id}
