"""Waits: a body gives up its slot until an event comes, or the end of a workflow."""

from contextlib import suppress
from datetime import date

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from horsies_django import TaskHandle, TaskStatus, asend_events, send_events
from horsies_django.core.ids import uuid7
from horsies_django.db.now import Now
from horsies_django.models import Task, TaskStep
from horsies_django.testing import drain as run_due
from tests.jobs.entries import entries
from tests.steps import event_jobs

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_waiting_task_is_no_scheduled_task():
    handle = event_jobs.waits.send()
    run_due()

    assert not Task.objects.scheduled().exists()
    assert Task.objects.awaiting().count() == Task.objects.awaiting("event:approved").count() == 1
    assert not Task.objects.awaiting("event:refused").exists()

    assert handle.cancel()

    assert not Task.objects.awaiting().exists()


@pytest.mark.slow
@pytest.mark.sqlite
def test_an_event_ends_the_wait_whether_it_comes_before_or_during_it():
    early, late = event_jobs.waits.send(), event_jobs.waits.send()
    assert early.send_event("approved", {"by": "ann"})
    run_due()
    assert early.value(0) == [{"by": "ann"}]
    assert late.status() == TaskStatus.PENDING

    assert late.send_event("approved", {"by": "bob"})
    assert not Task.objects.awaiting().exists()
    run_due()

    assert late.value(0) == [{"by": "bob"}]
    assert not late.send_event("approved")
    assert not TaskHandle(uuid7()).send_event("approved")


@pytest.mark.slow
@pytest.mark.sqlite
def test_the_nth_wait_takes_the_nth_event():
    handle = event_jobs.waits.send(count=4)
    for number in range(2):
        handle.send_event("approved", number)
    run_due()
    for number in range(2, 4):
        handle.send_event("approved", number)
        handle.send_event("other", number)
        run_due()

    assert handle.value(0) == [0, 1, 2, 3]
    assert entries() == [f"wait {number}" for number in range(4)]


@pytest.mark.slow
@pytest.mark.sqlite
def test_an_event_of_a_transaction_that_is_rolled_back_never_comes():
    handle = event_jobs.waits.send()
    run_due()
    with suppress(ZeroDivisionError), transaction.atomic():
        handle.send_event("approved", "lost")
        raise ZeroDivisionError
    run_due()
    assert handle.status() == TaskStatus.PENDING

    with transaction.atomic():
        handle.send_event("approved", "kept")
        assert Task.objects.awaiting().exists()
    run_due()

    assert handle.value(0) == ["kept"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_wait_ends_with_its_timeout_and_a_late_event_is_the_next_one():
    handle = event_jobs.waits.send(timeout=60, count=2)
    run_due()
    TaskStep.objects.filter(status="WAITING").update(due_at=Now())
    Task.objects.update(enqueued_at=Now())
    run_due()
    assert handle.status() == TaskStatus.PENDING

    handle.send_event("approved", "second")
    run_due()

    assert handle.value(0) == ["late", "second"]


@pytest.mark.slow
def test_many_tasks_get_their_events_in_few_statements():
    handles = event_jobs.waits.send_many([{"name": name} for name in ["approved"] * 50 + ["other"] * 50])
    run_due()
    ended = event_jobs.ends.send()
    run_due()

    with CaptureQueriesContext(connection) as queries:
        count = send_events({ended: 0, uuid7(): 0, **{handle: n for n, handle in enumerate(handles)}}, "approved")

    assert count == 100
    assert len(queries) < 12
    run_due()
    assert [handle.value(0) for handle in handles[:50]] == [[number] for number in range(50)]
    assert Task.objects.awaiting("event:other").count() == 50


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_task_keeps_a_thousand_unread_events():
    handle = event_jobs.waits.send()
    TaskStep.objects.bulk_create(
        TaskStep(task_id=handle.id, name="event:other", number=number, kind="event", status="UNREAD")
        for number in range(1, 1_001)
    )

    with CaptureQueriesContext(connection) as queries, pytest.raises(ValueError, match="1,000 events"):
        handle.send_event("approved")
    assert len(queries) < 10
    assert send_events({handle: None}, "approved") == 0


@pytest.mark.parametrize("name", ["", "x" * 256, None])
def test_a_bad_name_of_an_event_is_refused(name):
    with pytest.raises(ValueError, match="allowed"):
        event_jobs.waits.send().send_event(name)


def test_a_payload_that_cannot_be_stored_keeps_all_tasks_from_their_events():
    first, second = event_jobs.waits.send_many([{}, {}])

    with pytest.raises(TypeError, match="'approved'"):
        send_events({first: 1, second: object()}, "approved")

    assert not TaskStep.objects.exists()


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_payload_has_the_type_tags_of_its_task_whatever_the_serializer_is_now(settings):
    plain = event_jobs.waits.send()
    options = settings.TASKS["default"]["OPTIONS"]
    settings.TASKS = {"default": settings.TASKS["default"] | {"OPTIONS": options | {"serializer": "rich"}}}
    rich, value = event_jobs.waits.send(), {"$": "not a tag", "on": date(2030, 1, 2)}

    assert rich.send_event("approved", value)
    with pytest.raises(TypeError, match="'approved'"):
        plain.send_event("approved", value)
    assert plain.send_event("approved", {"__type__": "date"})
    run_due()

    assert rich.value(0) == [value]
    assert plain.value(0) == [{"__type__": "date"}]


def test_async_callers_send_events():
    handle = event_jobs.waits.send()

    assert async_to_sync(handle.asend_event)("approved", 1)
    assert async_to_sync(asend_events)({handle.id: 2}, "approved") == 1
    assert TaskStep.objects.filter(status="UNREAD").count() == 2


@pytest.mark.slow
@pytest.mark.sqlite
def test_an_event_after_a_restart_is_the_first_one():
    handle = event_jobs.restarts_after_an_event.send()
    for number in range(3):
        handle.send_event("approved", number)
        run_due()

    assert handle.value(0) == [0, 1, 2]
