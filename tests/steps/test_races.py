"""Races on purpose: events, time-outs, claims, cancels and retries that meet a body."""

from datetime import timedelta
from threading import Thread

import pytest
from django.db import connection, connections, transaction

from horsies_django import TaskStatus, send_events
from horsies_django.db.expressions import NowPlus
from horsies_django.db.now import Now
from horsies_django.models import Task, TaskStep
from horsies_django.testing import drain as run_due
from tests.conftest import wait_until
from tests.jobs.entries import entries
from tests.steps import event_jobs, jobs, race_jobs

pytestmark = pytest.mark.django_db(transaction=True)


def in_thread(function, *args):
    """Start a function in a thread that leaves no connection behind."""

    def run():
        try:
            function(*args)
        finally:
            connections.close_all()

    thread = Thread(target=run)
    thread.start()
    return thread


def locks():
    """Return how many connections wait for a lock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return cursor.fetchone()[0]


@pytest.fixture
def late():
    """A task whose wait has timed out, before its body knows."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    handle = event_jobs.waits.send(timeout=60)
    run_due()
    TaskStep.objects.filter(status="WAITING").update(due_at=NowPlus(-1))
    Task.objects.update(enqueued_at=Now())
    return handle


@pytest.mark.parametrize(("is_sent", "value"), [(True, "event"), (False, "late")])
def test_of_an_event_and_a_time_out_that_meet_the_first_to_be_committed_decides(late, is_sent, value):
    with transaction.atomic():
        late.send_event("approved", "event")
        body = in_thread(run_due)
        wait_until(locks)
        transaction.set_rollback(not is_sent)
    body.join(30)

    assert late.value(0) == [value]


def test_an_event_that_comes_while_the_run_suspends_is_not_lost():
    handle = race_jobs.gets_its_event_while_it_suspends.send()

    run_due()

    assert handle.value(0) == "in between"


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_body_that_waits_for_the_transaction_of_a_sender_keeps_nobody_from_its_task(late):
    handle = event_jobs.waits.send(name="other")
    with transaction.atomic():
        handle.send_event("other", "event")
        late.send_event("approved", "event")
        body = in_thread(run_due)
        wait_until(locks)
        assert handle.cancel(include_running=True)
        assert late.cancel(include_running=True)
    body.join(30)

    assert (handle.status(), late.status()) == (TaskStatus.CANCELLED, TaskStatus.CANCELLED)


@pytest.mark.slow
@pytest.mark.sqlite
def test_two_senders_at_once_send_two_events():
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    handles = event_jobs.waits.send_many([{"count": 2}] * 20)
    run_due()
    with transaction.atomic():
        assert send_events(dict.fromkeys(handles, "first"), "approved") == 20
        other = in_thread(send_events, dict.fromkeys(reversed(handles), "second"), "approved")
        wait_until(locks)
    other.join(30)

    run_due()

    assert [handle.value(0) for handle in handles] == [["first", "second"]] * 20


def test_senders_to_tasks_that_do_not_wait_yet_number_their_events_apart():
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    handle = event_jobs.waits.send(count=2)
    with transaction.atomic():
        handle.send_event("approved", "first")
        other = in_thread(handle.send_event, "approved", "second")
        wait_until(locks)
    other.join(30)

    run_due()

    assert handle.value(0) == ["first", "second"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_the_record_of_a_body_that_lost_its_claim_is_refused():
    handle = race_jobs.is_taken_away.send()

    run_due()

    assert handle.value(0) == "b"
    assert entries() == ["a", "body", "body", "b", "late b"]
    step = TaskStep.objects.get(name="b")
    assert (step.claim, step.result) == (6, {"ok": "b"})


def test_a_cancel_during_a_step_leaves_no_record_of_it():
    handle = race_jobs.is_cancelled_in_a_step.send()

    run_due()

    assert handle.status() == TaskStatus.CANCELLED
    assert [step.name for step in handle.steps()] == ["a"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_an_operator_s_retry_leaves_a_sleeping_task_alone_and_keeps_what_a_cancelled_one_did():
    handle = jobs.sleeps.send(3600)
    run_due()
    assert not handle.retry()
    assert Task.objects.awaiting("sleep").exists()

    assert handle.cancel()
    assert handle.retry()
    run_due()
    assert Task.objects.awaiting("sleep").exists()
    run_due(scheduled=True)

    assert handle.value(0) == "after"
    assert entries() == ["before", "after"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_wake_skips_a_locked_row_and_the_reaper_delivers_the_event():
    if connection.vendor != "postgresql":
        pytest.skip("SQLite locks no rows")
    handle = event_jobs.waits.send()
    run_due()
    with transaction.atomic():
        Task.objects.select_for_update().get()
        sender = in_thread(handle.send_event, "approved", 1)
        sender.join(30)
        assert not sender.is_alive()
    assert Task.objects.awaiting("event:approved").exists()

    run_due()  # it runs the duties of the reaper

    assert handle.value(0) == [1]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_task_that_waits_has_no_place_of_its_limit_and_takes_one_when_it_goes_on():
    handles = [race_jobs.waits_in_a_limit.send("place", name) for name in "ab"]
    run_due()
    assert entries() == ["a runs", "b runs"]
    assert Task.objects.awaiting().count() == 2

    send_events(dict.fromkeys(handles, 1), "approved")
    assert Task.objects.filter(blocked=False).count() == 1
    run_due()

    assert [handle.value(0) for handle in handles] == [1, 1]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_task_takes_a_token_of_its_rate_when_it_goes_on():
    handles = [race_jobs.waits_in_a_rate.send("place") for _ in range(2)]
    run_due()
    send_events(dict.fromkeys(handles, 1), "approved")

    run_due()

    assert sorted(str(handle.status()) for handle in handles) == ["COMPLETED", "PENDING"]
    assert entries() == ["runs"] * 3


def test_a_unique_key_is_held_while_the_task_waits():
    task = event_jobs.waits.with_options(unique_key="one", backend="default")
    handle = task.send()
    run_due()

    assert task.send() == handle
    assert Task.objects.get().enqueued_at - Task.objects.get().sent_at > timedelta(days=365)
