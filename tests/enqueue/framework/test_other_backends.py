"""Our verbs under the backends that Django itself has for tests."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db.models import F
from django.utils import timezone

from horsies_django import TaskFailed, TaskStatus, WaitTimeout, Workflow
from horsies_django.core.compat import BaseTaskBackend, InvalidTask, task_backends
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.testing.jobs import import_rows

#: ``django.tasks`` or the backport.
FRAMEWORK = BaseTaskBackend.__module__.removesuffix(".backends.base")


def use(settings, name):
    settings.TASKS = {"default": {"BACKEND": f"{FRAMEWORK}.backends.{name}", "QUEUES": ["default", "emails"]}}


@pytest.fixture
def immediate(settings):
    use(settings, "immediate.ImmediateBackend")


@pytest.fixture
def dummy(settings):
    use(settings, "dummy.DummyBackend")


@pytest.mark.usefixtures("immediate")
def test_each_verb_runs_the_task_at_once_under_the_immediate_backend():
    assert tasks.add.send(1, b=2).value() == 3
    assert tasks.add.schedule(3_600, 1).value() == 2
    assert tasks.add.schedule(timezone.now() + timedelta(days=1), 1).value() == 2
    assert (
        tasks.add.with_options(priority=5, queue_name="emails", max_attempts=2, run_after=timedelta(1)).send(1).value()
        == 2
    )
    assert [handle.value(0) for handle in tasks.add.send_many([{"a": 1}, {"a": 2}])] == [2, 3]
    assert tasks.add.enqueue(1).return_value == 2
    handle = tasks.echo.send("a", key="b")
    assert (handle.status(), handle.value()) == (TaskStatus.COMPLETED, {"args": ["a"], "kwargs": {"key": "b"}})
    assert (handle.info(), handle.cancel(), handle.retry(), tasks.add.cancel("a-key")) == (None, False, False, False)


@pytest.mark.usefixtures("immediate")
def test_the_async_verbs_do_so_too():
    async def send():
        handles = [await tasks.add.asend(1), await tasks.anoop.aschedule(60), *await tasks.add.asend_many([{"a": 1}])]
        return [await handle.avalue() for handle in handles]

    assert asyncio.run(send()) == [2, None, 2]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("immediate")
def test_send_many_takes_a_queryset_under_another_backend_too():
    Entry.objects.bulk_create(Entry(key="k", pid=number) for number in range(3))
    rows = Entry.objects.order_by("pid").values(a=F("pid"))

    for handles in (tasks.add.send_many(rows), async_to_sync(tasks.add.asend_many)(rows)):
        assert [handle.value(0) for handle in handles] == [1, 2, 3]


@pytest.mark.parametrize("verb", ["send_many", "asend_many"])
@pytest.mark.usefixtures("immediate")
def test_a_call_that_is_no_mapping_sends_nothing_under_another_backend(verb):
    send = tasks.add.send_many if verb == "send_many" else async_to_sync(tasks.add.asend_many)

    # The first call would raise something else if it were sent.
    for calls, problem in (
        ([{"nope": 1}, ("a", 2)], "call 1 is of type tuple"),
        (Entry.objects.all(), "ModelIterable"),
    ):
        with pytest.raises(TypeError, match=problem):
            send(calls)


@pytest.mark.usefixtures("immediate")
def test_a_failure_is_a_result_with_the_exception():
    handle = tasks.fail.send("too bad")

    error = handle.get().err
    assert handle.status() == TaskStatus.FAILED
    assert (error.error_code, error.message.endswith("too bad")) == ("UNHANDLED_EXCEPTION", True)
    assert "tasks.py" in error.exception["traceback"]
    with pytest.raises(TaskFailed, match="too bad"):
        handle.value()


@pytest.mark.usefixtures("immediate")
def test_task_results_that_a_body_returns_are_its_value_or_its_failure():
    assert tasks.returns_ok.send(5).value() == 5
    with pytest.raises(TaskFailed, match="NO_STOCK"):
        tasks.returns_error.send("NO_STOCK").value()


@pytest.mark.usefixtures("immediate")
def test_a_body_reports_progress_and_saves_its_state_in_memory():
    assert import_rows.send(["a", "b"]).value() == ["attempt 1 of 1", "a", "b"]
    assert tasks.acontext.send().status() == TaskStatus.COMPLETED


@pytest.mark.usefixtures("dummy")
def test_the_dummy_backend_keeps_the_calls():
    handle = tasks.add.send(1, b=2)
    tasks.add.schedule(60, 3)
    tasks.add.send_many([{"a": 4}])

    results = task_backends["default"].results
    assert [(result.args, result.kwargs) for result in results] == [([1], {"b": 2}), ([3], {}), ([], {"a": 4})]
    assert results[1].task.run_after > timezone.now()
    assert handle.status() == TaskStatus.PENDING
    with pytest.raises(WaitTimeout):
        handle.value()


@pytest.mark.usefixtures("immediate")
def test_a_workflow_says_that_it_needs_our_backend():
    with pytest.raises(Exception, match="HorsiesBackend"):
        Workflow("one", [tasks.add.node()(a=1)]).start()


@pytest.mark.usefixtures("immediate")
def test_options_are_still_checked_by_their_names():
    with pytest.raises(TypeError, match="unknown option"):
        tasks.add.with_options(delay=5)
    with pytest.raises(InvalidTask):
        tasks.add.with_options(queue_name="unknown")
