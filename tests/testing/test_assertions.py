"""Finding the calls that were sent, and capturing sends."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django import Batch, Workflow
from horsies_django.models import Task
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.testing import all_enqueued, assert_enqueued, captured, drain, immediate, refute_enqueued
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.testing import jobs

pytestmark = pytest.mark.django_db


def test_a_waiting_call_is_found_by_its_arguments_however_they_were_passed():
    handle = tasks.add.with_options(queue_name="emails").send(1, b=2)

    assert [call.handle for call in assert_enqueued(tasks.add, args=[1, 2], queue="emails", count=1)] == [handle]
    assert_enqueued(tasks.add, kwargs={"a": 1, "b": 2})
    assert_enqueued(tasks.add, args=[1], kwargs={"b": 2})
    assert_enqueued(tasks.add)
    refute_enqueued(tasks.add, args=[1])
    refute_enqueued(tasks.add, queue="default")
    refute_enqueued(tasks.echo)


def test_a_failed_assertion_lists_what_waits_instead():
    tasks.add.send(1, b=2)
    tasks.echo.with_options(queue_name="emails").send("x")

    with pytest.raises(AssertionError) as caught:
        assert_enqueued(tasks.add, args=[1, 3])

    assert str(caught.value).splitlines() == [
        "No call of tests.jobs.tasks.add(1, 3) was enqueued. What waits:",
        "  tests.jobs.tasks.add(1, b=2) in queue default",
        "  tests.jobs.tasks.echo('x') in queue emails",
    ]


def test_the_number_of_calls_is_asserted():
    tasks.add.send_many({"a": number} for number in range(2))

    assert_enqueued(tasks.add, count=2)
    assert_enqueued(tasks.echo, count=0)
    with pytest.raises(AssertionError, match="2 calls instead of 1 of "):
        assert_enqueued(tasks.add, count=1)
    with pytest.raises(AssertionError, match=r"any task\(…\) was enqueued"):
        refute_enqueued()


def test_a_call_that_has_run_is_not_waiting_any_more():
    tasks.add.send(1)

    drain()

    assert all_enqueued() == []
    with pytest.raises(AssertionError, match="Nothing waits"):
        assert_enqueued(tasks.add)


def test_captured_sends_are_validated_and_listed_and_nothing_is_stored():
    with CaptureQueriesContext(connection) as queries, captured() as calls:
        tasks.add.send(1, b=2)
        tasks.add.schedule(60, 3)
        tasks.echo.send_many([{"x": 1}, {"x": 2}])
        tasks.add.enqueue(4)
        with pytest.raises(TypeError):
            tasks.add.send("too", "many", "arguments")
        Workflow("one", [jobs.note.node()(key="a")]).start()
        assert_enqueued(tasks.echo, kwargs={"x": 2})
        refute_enqueued(tasks.add, args=[5])

    assert [(call.task_name, call.args, call.kwargs) for call in calls] == [
        ("tests.jobs.tasks.add", [1], {"b": 2}),
        ("tests.jobs.tasks.add", [3], {}),
        ("tests.jobs.tasks.echo", [], {"x": 1}),
        ("tests.jobs.tasks.echo", [], {"x": 2}),
        ("tests.jobs.tasks.add", [4], {}),
    ]
    assert calls[1].run_after is not None
    assert queries.captured_queries == []
    assert not Task.objects.exists()
    assert not WorkflowRow.objects.exists()


def test_after_a_capture_sends_are_stored_again():
    with captured():
        pass
    tasks.add.send(1)

    assert_enqueued(tasks.add, count=1)


def test_immediate_sends_run_at_once_in_place():
    waiting = jobs.note.send("before")
    with immediate():
        handle = jobs.note.send("a")
        assert handle.value(0) == "a"
        assert jobs.note.enqueue("b").return_value == "b"
        assert jobs.anote.schedule(3_600, "c").value(0) == "c"
        assert [one.value(0) for one in tasks.add.send_many([{"a": 1}, {"a": 2}])] == [2, 3]
        jobs.send_more.send(["d"])
        assert tasks.fail.send().status() == "FAILED"

    assert list(Entry.objects.order_by("pk").values_list("key", flat=True)) == ["a", "b", "c", "d"]
    assert waiting.status() == "PENDING"


def test_workflows_and_batches_of_an_immediate_block_have_ended_after_it():
    first = jobs.note.node()(key="first")
    batch = Batch("notes")
    batch.add(jobs.note, key="third")
    with immediate():
        handle = Workflow("two steps", [first, jobs.note.node(waits_for=[first])(key="second")]).start()
        batch.start()

    assert handle.status() == "COMPLETED"
    assert Entry.objects.count() == 3


def test_blocks_can_be_nested():
    with immediate(), captured() as calls:
        jobs.note.send("a")
        with immediate():
            pass

    assert len(calls) == 1
    assert not Entry.objects.exists()
