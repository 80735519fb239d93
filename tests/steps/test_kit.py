"""The test kit and long work: contexts in memory, drains, time travel and the assertion."""

import asyncio

import pytest

from horsies_django import TaskStatus
from horsies_django.core.compat import BaseTaskBackend
from horsies_django.exceptions import StepFailed, TaskInterrupt, TaskSuspended, WaitTimeout
from horsies_django.testing import assert_waiting, captured, drain, immediate, run, task_context, travel
from tests.steps.jobs import sleeps
from tests.steps.scripts import ascripted, scripted

calls: list[str] = []


def charge(amount):
    calls.append(f"charge {amount}")
    return {"charged": amount}


def refuse():
    raise OSError("away")


def order(context, amount):
    """An order that a person approves."""
    paid = context.step("charge", charge, amount)
    try:
        payload = context.wait_event("approved", timeout=3600)
    except WaitTimeout:
        return "too late"
    context.sleep(0)
    return [paid, payload]


@pytest.fixture(autouse=True)
def _no_calls():
    calls.clear()


# Contexts in memory.


def test_a_context_runs_steps_until_the_body_waits_for_what_is_not_there():
    with pytest.raises(TaskSuspended) as suspended:
        order(task_context(scripted), 5)

    assert (suspended.value.waits_for, suspended.value.delay) == ("event:approved", 3600)
    assert calls == ["charge 5"]


def test_a_context_has_events_and_kept_steps():
    context = task_context(scripted, steps={"charge": {"charged": 7}}, events={"approved": [{"by": "Ada"}]})

    assert order(context, 5) == [{"charged": 7}, {"by": "Ada"}]
    assert calls == []


def test_a_context_gives_the_nth_wait_the_nth_event():
    context = task_context(scripted, events={"item": [1, 2]})

    assert [context.wait_event("item") for _ in range(2)] == [1, 2]
    with pytest.raises(TaskSuspended):
        context.wait_event("item")


def test_a_context_behaves_as_in_a_worker():
    context = task_context(scripted)

    with pytest.raises(StepFailed, match="away") as failed:
        context.step("away", refuse)
    assert isinstance(failed.value.__cause__, OSError)
    assert context.patched("change") is True
    assert context.step("pair", lambda: (1, 2)) == [1, 2]
    assert context.key("pair").endswith(":pair:2")
    with pytest.raises(StepFailed, match="inside the step 'outer'"):
        context.step("outer", context.sleep, 1)
    with pytest.raises(TaskSuspended) as restarted:
        context.restart()
    with pytest.raises(TaskSuspended) as again:
        context.step("after", charge, 1)
    assert again.value is restarted.value
    assert calls == []


def test_a_body_that_does_not_ask_for_a_kept_step_has_changed():
    with pytest.raises(TaskInterrupt, match=r"'charge'.*'other'"):
        order(task_context(scripted, steps={"other": 1}), 5)


def test_a_kept_value_that_cannot_be_stored_is_refused():
    with pytest.raises(TypeError, match="the value of 'charge'"):
        task_context(scripted, steps={"charge": object()})


def test_a_coroutine_has_its_steps_too():
    async def body(context):
        values = await asyncio.gather(context.astep("a", charge, 1), context.astep("b", asyncio.sleep, 0, "slept"))
        return [*values, await context.await_event("approved"), await context.apatched("change")]

    context = task_context(ascripted, events={"approved": ["yes"]})

    assert asyncio.run(body(context)) == [{"charged": 1}, "slept", "yes", True]


# Drains and time travel.


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.django_db
def test_time_travel_ends_a_sleep(entries):
    handle = sleeps.send(3600)
    drain()
    assert_waiting(handle, "sleep")
    with travel(minutes=59):
        drain()
        assert entries() == ["before"]
    with travel(minutes=61):
        drain()

    assert handle.value(0) == "after"
    assert entries() == ["before", "after"]


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.django_db
def test_time_travel_and_a_scheduled_drain_end_a_time_out(run_script):
    handles = [run_script(lambda context: order(context, 5)) for _ in range(2)]
    with travel(minutes=61):
        drain()
    assert handles[0].value(0) == handles[1].value(0) == "too late"

    later = run_script(lambda context: order(context, 6))
    drain(scheduled=True)
    assert later.value(0) == "too late"


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.django_db
def test_a_scheduled_drain_leaves_a_wait_without_a_time_out(run_script):
    handle = run_script(lambda context: context.wait_event("approved"))

    drain(scheduled=True)

    assert_waiting(handle, "event:approved")


@pytest.mark.django_db
def test_a_single_run_of_a_sleeping_task_leaves_the_sleep_as_long_as_it_is(run_script):
    handle = run_script(lambda context: context.sleep(3600))

    run(handle)

    assert_waiting(handle, "sleep")


# The assertion.


@pytest.mark.django_db
def test_the_assertion_says_what_the_task_waits_for_instead(run_script):
    handle = run_script(lambda context: context.wait_event("approved"))

    assert_waiting(scripted, "event:approved")
    with pytest.raises(AssertionError, match=f"{handle.id} does not wait for sleep; it waits for event:approved"):
        assert_waiting(handle, "sleep")
    handle.cancel()
    with pytest.raises(AssertionError, match="scripted does not wait for event:approved; it waits for nothing"):
        assert_waiting(scripted, "event:approved")


# Other ways to run.


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.django_db
def test_a_send_that_runs_at_once_waits_until_a_drain(send_script, entries):
    with immediate():
        handle = sleeps.send(3600)
        assert_waiting(handle, "sleep")
        assert entries() == ["before"]
    drain(scheduled=True)

    assert handle.value(0) == "after"


@pytest.mark.parametrize("wait", [lambda context: context.sleep(60), lambda context: context.wait_event("approved")])
def test_under_a_backend_of_the_framework_steps_run_and_a_wait_fails(send_script, settings, wait):
    name = BaseTaskBackend.__module__.removesuffix(".backends.base")
    settings.TASKS = {"default": {"BACKEND": f"{name}.backends.immediate.ImmediateBackend", "QUEUES": []}}

    assert send_script(lambda context: context.step("charge", charge, 5)).value(0) == {"charged": 5}
    handle = send_script(wait)

    assert handle.status() == TaskStatus.FAILED
    assert "TaskSuspended: The task waits for" in handle.get(0).err_value.message


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.django_db
def test_a_drain_runs_a_body_whose_event_was_sent(run_script):
    handle = run_script(lambda context: order(context, 5))
    assert_waiting(handle, "event:approved")

    assert handle.send_event("approved", {"by": "Ada"})
    drain()

    assert handle.value(0) == [{"charged": 5}, {"by": "Ada"}]
    assert calls == ["charge 5"]


@pytest.mark.django_db
def test_an_event_for_a_captured_call_goes_nowhere():
    with captured():
        handle = sleeps.send(60)
        assert handle.send_event("approved") is False
