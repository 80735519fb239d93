"""Middleware around a send, and what a call says of its own end."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured

from horsies_django import Retry, TaskError, Workflow
from horsies_django.core.current_task import dry_run
from horsies_django.middleware import AttemptOutcome
from horsies_django.models import Schedule, Task
from horsies_django.schedules import dispatch
from tests.core.middleware import jobs, samples
from tests.jobs import tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


def facts(send):
    return send.task_name, send.workflow_name, send.queue_name, send.is_many, send.count, send.is_new


NAME = jobs.look.module_path


@pytest.mark.parametrize(
    ("send", "expected"),
    [
        (lambda: jobs.look.send(), (NAME, None, "default", False, 1, True)),
        (lambda: async_to_sync(jobs.look.asend)(), (NAME, None, "default", False, 1, True)),
        (lambda: jobs.look.enqueue(), (NAME, None, "default", False, 1, True)),
        (lambda: jobs.look.schedule(60), (NAME, None, "default", False, 1, True)),
        (lambda: jobs.look.send_many([{}, {}]), (NAME, None, "default", True, 2, True)),
        (lambda: Workflow("w", [jobs.look.node()()]).start(), (None, "w", None, False, 1, True)),
        (lambda: jobs.gathered.send(item=1), (jobs.gathered.module_path, None, "default", False, 1, True)),
    ],
    ids=["send", "asend", "enqueue", "schedule", "send_many", "workflow", "gathered"],
)
def test_a_middleware_is_around_each_kind_of_send(middleware, send, expected):
    middleware("Sending", "SendingToo")

    handle = send()

    first, second = samples.sends
    assert first is second
    assert facts(first) == expected
    assert str(first.id) == (str(None) if first.is_many else str(handle.id))
    assert samples.seen == ["send in", "send in", "send out", "send out"]


def test_headers_are_asked_for_inside(middleware):
    middleware("Sending")

    jobs.look.send()

    assert Task.objects.get().metadata == {"inside": ["send in"]}


def test_a_send_that_finds_a_task_is_not_new(middleware):
    middleware("Sending")

    for _ in range(2):
        jobs.look.with_options(unique_key="one").send()

    assert [send.is_new for send in samples.sends] == [True, False]


def test_an_exception_of_a_send_passes_through(middleware):
    middleware("Sending")

    with pytest.raises(TypeError):
        jobs.takes_one.send()

    assert samples.seen == ["send in", "send TypeError"]
    assert samples.sends[0].id is None


def test_a_schedule_is_sent_inside_and_a_dry_run_is_not(middleware):
    middleware("Sending")
    row = Schedule.objects.create(name="nightly", timing="every:60", task_name=NAME)

    with dry_run():
        jobs.look.send()
    assert samples.seen == []
    dispatch.run_now(row)
    assert samples.seen == ["send in", "send out"]


def test_an_around_send_that_cannot_be_called_is_refused(middleware):
    middleware("NotCallable")

    with pytest.raises(ImproperlyConfigured, match="has an around_send that can't be called"):
        jobs.look.send()


@pytest.mark.parametrize(
    ("job", "arguments", "expected"),
    [
        (jobs.fail, (), ["failed UNHANDLED_EXCEPTION"]),
        (tasks.mapped, ("x",), ["failed LOST"]),
        (tasks.flaky, ("key", 1), ["retrying UNHANDLED_EXCEPTION"]),
        (jobs.sleep_too_long, (), ["failed TASK_TIMEOUT"]),
    ],
    ids=["failed", "mapped", "retrying", "timeout"],
)
def test_a_call_knows_the_outcome_of_an_exception(drain, middleware, job, arguments, expected):
    middleware("asking")
    job.send(*arguments)

    drain()

    assert [f"{outcome} {code}" for outcome, code in samples.seen] == expected


def test_a_call_knows_the_outcome_of_a_returned_error_and_of_the_exceptions_that_control_it(drain, middleware):
    middleware("outer")
    tasks.flaky.send("key", 0)

    drain()

    (call,) = samples.calls
    assert call.max_attempts == 3
    assert call.outcome_of(TaskError(error_code="NO_STOCK")) == (AttemptOutcome.RETRYING, "NO_STOCK")
    assert call.outcome_of(Retry()) == (AttemptOutcome.RETRYING, "TASK_RETRY")
