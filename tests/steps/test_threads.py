"""Keys, threads and asyncio tasks: what has a number of its own, what has an order, and what is asked twice."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from django.db import connections

from horsies_django.models import TaskStep
from horsies_django.testing import drain
from tests.steps.jobs import Refused, note

pytestmark = pytest.mark.django_db(transaction=True)


def in_threads(*calls):
    """Call these at once, each in a thread that leaves no connection; return what they return."""

    def call(function):
        try:
            return function()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(call, calls))


def test_a_key_that_a_step_s_function_asks_for_is_that_of_its_step(run_script):
    def body(context):
        keys = [context.step("charge", lambda: context.key("charge")) for _ in range(2)]
        return [*keys, context.key("charge")]

    handle = run_script(body)

    assert handle.value(0) == [f"{handle.id}:charge:{number}" for number in (1, 2, 3)]


@pytest.mark.parametrize("is_turn", [True, False])
def test_the_key_of_another_step_is_refused_inside_a_step_and_a_loop(run_script, is_turn):
    def body(context):
        if is_turn:
            context.batches(TaskStep.objects.none(), lambda rows: None)
            for _ in context.batches(TaskStep.objects.all(), name="all"):
                context.key("charge")
        return context.step("step", lambda: context.key("charge"))

    assert "key('charge') was called inside" in run_script(body).get(0).err_value.message


@pytest.mark.slow
@pytest.mark.sqlite
def test_steps_of_other_threads_that_were_kept_end_no_run(run_script, entries):
    def body(context):
        calls = [partial(context.step, name, note, name) for name in "abc"]
        if context.attempt == 1:
            in_threads(*calls)
            raise Refused
        context.step("own", note, "own")
        return sorted(in_threads(*calls))

    handle = run_script(body, attempts=2)

    assert handle.value(0) == ["a", "b", "c"]
    assert sorted(entries()) == ["a", "b", "c", "own"]


def test_a_step_of_another_thread_that_failed_is_run_again_by_a_retry(run_script):
    def body(context):
        def once():
            if context.attempt == 1:
                raise Refused
            return "done"

        return in_threads(partial(context.step, "once", once))

    assert run_script(body, attempts=2).value(0) == ["done"]


def test_a_step_that_a_thread_takes_inside_a_step_stands_for_itself(run_script, entries):
    def body(context):
        context.step("outer", lambda: in_threads(partial(context.step, "inner", note, "inner")))
        if context.attempt == 1:
            raise Refused
        return context.step("last", note, "last")

    assert run_script(body, attempts=2).value(0) == "last"
    assert entries() == ["inner", "last"]


def test_many_threads_keep_many_steps(run_script):
    def body(context):
        return in_threads(*(partial(context.step, f"step {number}", int, number) for number in range(8)))

    assert run_script(body).value(0) == list(range(8))
    assert TaskStep.objects.filter(status="COMPLETED", position=None).count() == 8


def test_child_tasks_get_one_answer_from_patched(run_script):
    async def body(context):
        async def child():
            return await context.apatched("change")

        return await asyncio.gather(child(), child(), context.apatched("change"))

    assert run_script(body).value(0) == [True] * 3
    assert TaskStep.objects.get().name == "patch:change"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", None, 7])
@pytest.mark.once
def test_bad_names_of_events_and_patches_are_refused(run_script, name):
    for call in ("wait_event", "patched"):
        message = run_script(lambda context, call=call: getattr(context, call)(name)).get(0).err_value.message
        assert f"{name!r}; allowed" in message
    drain()
