"""``context.restart()``: a fresh run of the same task, which loses neither its arguments nor an event."""

import pytest
from django.db import connection, transaction

from horsies_django import Batch, TaskHandle, Workflow
from horsies_django.db.now import Now
from horsies_django.models import Task, TaskStep
from horsies_django.testing import drain
from tests.conftest import wait_until
from tests.steps import event_jobs
from tests.steps import restart_jobs as jobs
from tests.steps.jobs import Refused, note
from tests.steps.test_races import in_thread, locks

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_restart_by_a_body_that_lost_its_task_drops_no_records(run_script, entries):
    def body(context):
        context.step("a", note, "a")
        if not Task.objects.filter(claim__gt=4).exists():
            lost = {"claimed_by_worker_id": None, "claimed_at": None, "started_at": None}
            Task.objects.update(status="PENDING", claim=5, **lost)
            context.restart()
        return "done"

    handle = run_script(body)

    assert handle.value(0) == "done"
    assert entries() == ["a"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_restart_gives_all_retries_again(run_script):
    def body(context):
        context.step("note", note, "note")
        if context.is_last_attempt and not context.metadata.get("horsies.restarts"):
            context.restart()
        if not context.is_last_attempt:
            raise Refused
        return context.max_attempts

    handle = run_script(body, attempts=2)

    assert handle.value(0) == 2
    assert Task.objects.get().retry_count == 1


def test_the_arguments_of_a_restart_win_over_the_inputs_of_a_node():
    first = jobs.gives.node(node_id="first")(value=1)
    second = jobs.restarts_with.node(node_id="second", waits_for=[first], values_from={"value": first})()

    handle = Workflow("restarts", [first, second], output=second).start()
    drain()

    assert handle.value(0) == 2


@pytest.mark.slow
@pytest.mark.sqlite
def test_the_arguments_of_a_restart_win_over_the_calls_of_a_group():
    handle = jobs.restarts_with_fewer.send_many([{"value": 1}, {"value": 2}, {"value": 3}])[0]
    drain(scheduled=True)

    assert handle.value(0) == [{"value": 3}]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_pause_after_a_restart_keeps_the_arguments(entries):
    with Batch("restarts") as batch:
        batch.add(jobs.restarts_while_paused, batch_id=str(batch.id))
    drain()
    assert Task.objects.suspended().exists()

    assert batch.handle.resume()
    drain()

    assert batch.handle.value(0) == ["restarted"]


def test_an_event_whose_sender_commits_after_a_restart_is_the_next_one(send_script):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")

    def body(context):
        payload = context.wait_event("approved")
        if payload == "first":
            context.restart()
        return payload

    handle = send_script(body)
    handle.send_event("approved", "first")
    with transaction.atomic():
        handle.send_event("approved", "second")
        runs = in_thread(drain)
        wait_until(locks)
    runs.join(30)
    drain()

    assert handle.value(0) == "second"


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_wait_that_ends_during_a_pause_is_over_after_the_resume():
    with Batch("sleeps") as batch:
        batch.add(event_jobs.sleeps_as_node)
    drain()
    batch.handle.pause()
    TaskStep.objects.filter(status="WAITING").update(due_at=Now())
    Task.objects.update(enqueued_at=Now())

    assert batch.handle.resume()

    assert not Task.objects.filter(waits_for__isnull=False).exists()
    drain()
    assert batch.handle.value(0) == ["after"]


def test_events_that_nobody_has_read_are_read_in_their_order_after_restarts(send_script):
    def body(context):
        payload = context.wait_event("approved")
        if payload < 3:
            context.restart()
        return payload

    handle = send_script(body)
    for number in range(1, 4):
        TaskHandle(handle.id).send_event("approved", number)
    drain()

    assert handle.value(0) == 3
