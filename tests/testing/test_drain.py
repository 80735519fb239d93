"""Draining tasks in the calling thread, without a worker."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from unittest.mock import patch

import pytest
from django.db import transaction
from django.test import TestCase, TransactionTestCase
from django.utils import timezone

from horsies_django import Batch, TaskFailed, TaskStatus, Workflow
from horsies_django.models import Queue, Task, TaskAttempt, Worker
from horsies_django.signals import task_finished
from horsies_django.testing import adrain, arun, arun_next, drain, immediate, run, run_next, travel
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.testing import jobs


def keys():
    return list(Entry.objects.order_by("pk").values_list("key", flat=True))


class DrainCases:
    """What holds in a transaction that is rolled back, and without one."""

    def test_due_tasks_run_in_the_order_of_claims_whatever_their_kind(self):
        jobs.note.with_options(priority=-5).send("last")
        first = jobs.note.send("b")
        jobs.anote.send("c")
        jobs.note.send("d")
        jobs.anote.with_options(priority=5).send("a")

        drained = drain()

        assert keys() == ["a", "b", "c", "d", "last"]
        assert drained.counts == {TaskStatus.COMPLETED: 5}
        assert drained.handles[1] == first
        assert first.value(0) == "b"
        assert str(drained) == "5 COMPLETED"

    def test_tasks_run_while_a_test_freezes_the_clock(self):
        # Libraries such as freezegun replace this function; code that looks it up later gets theirs.
        self.enterContext(patch("time.monotonic", return_value=time.monotonic() + 1_700_000_000))
        jobs.note.send("drained")
        assert drain(raise_errors=True).counts == {TaskStatus.COMPLETED: 1}

        jobs.note.send("next")
        run_next()
        run(jobs.note.send("run"))
        with immediate():
            jobs.note.send("at once")

        assert keys() == ["drained", "next", "run", "at once"]

    @pytest.mark.slow
    def test_what_bodies_receivers_and_callbacks_send_runs_too(self):
        def send_another(task_result, **_):
            if task_result.task.module_path.endswith("send_more"):
                jobs.note.send("from a receiver")

        task_finished.connect(send_another)
        self.addCleanup(task_finished.disconnect, send_another)
        jobs.send_more.send(["from a body"])
        jobs.send_after_commit.send("from a callback")

        assert len(drain().handles) == 5
        assert sorted(keys()) == ["from a body", "from a callback", "from a receiver"]

    @pytest.mark.slow
    def test_workflows_and_batches_run_to_their_end(self):
        first = jobs.note.node()(key="first")
        handle = Workflow("two steps", [first, jobs.note.node(waits_for=[first])(key="second")]).start()
        batch = Batch("notes")
        batch.add_many(jobs.note, [{"key": "third"}, {"key": "fourth"}])
        batch_handle = batch.start()

        drain()

        assert sorted(keys()) == ["first", "fourth", "second", "third"]
        assert keys().index("first") < keys().index("second")
        assert handle.status() == "COMPLETED"
        assert batch_handle.progress().done == 2

    def test_a_failure_is_stored_and_the_drain_goes_on(self):
        failed, completed = tasks.fail.send("too bad"), jobs.note.send("a")

        drained = drain()

        assert drained.counts == {TaskStatus.FAILED: 1, TaskStatus.COMPLETED: 1}
        assert failed.info().error_code == "UNHANDLED_EXCEPTION"
        assert completed.status() == TaskStatus.COMPLETED
        assert TaskAttempt.objects.get(task_id=failed.id).error_message == "too bad"

    def test_the_first_failure_can_be_raised_with_its_traceback(self):
        failed, other = tasks.fail.send("too bad"), jobs.note.send("a")

        with pytest.raises(Exception, match="too bad") as caught:
            drain(raise_errors=True)

        assert caught.traceback[-1].path.name == "tasks.py"
        assert str(failed.id) in caught.value.__notes__[0]
        assert (failed.status(), other.status()) == (TaskStatus.FAILED, TaskStatus.PENDING)

    def test_a_returned_error_is_raised_as_task_failed(self):
        tasks.returns_error.send("NO_STOCK")

        with pytest.raises(TaskFailed, match="NO_STOCK"):
            drain(raise_errors=True)

    @pytest.mark.slow
    def test_a_retry_waits_unless_retries_are_run(self):
        handle = jobs.fail_twice.send("a")

        assert drain().counts == {TaskStatus.PENDING: 1}
        assert drain(retries=True, raise_errors=True).counts == {TaskStatus.COMPLETED: 1}
        assert (handle.value(0), keys()) == (3, ["a"] * 3)

    def test_a_failure_whose_retry_is_not_run_is_raised(self):
        jobs.fail_twice.send("a")

        with pytest.raises(LookupError, match="attempt 1"):
            drain(raise_errors=True)

    @pytest.mark.slow
    def test_scheduled_tasks_run_in_the_order_of_their_times_if_asked_for(self):
        jobs.note.schedule(7_200, "later")
        jobs.note.schedule(3_600, "soon")

        assert drain().handles == []
        assert str(drain()) == "nothing was due"
        drain(scheduled=True)

        assert keys() == ["soon", "later"]

    def test_only_the_given_queues_are_drained(self):
        jobs.note.with_options(queue_name="emails").send("mail")
        jobs.note.send("other")

        drain(queues=["emails"])

        assert keys() == ["mail"]

    @pytest.mark.slow
    def test_a_paused_queue_keeps_its_tasks(self):
        Queue.objects.create(name="emails", paused=True)
        jobs.note.with_options(queue_name="emails", priority=9).send("mail")
        for key in ("one", "two", "three"):
            jobs.note.send(key)

        for number in range(5):
            jobs.note.schedule(3_600 + number, f"later {number}")

        drain(scheduled=True)

        assert keys() == ["one", "two", "three", *(f"later {number}" for number in range(5))]

    @pytest.mark.slow
    def test_a_rate_holds_tasks_back_until_time_has_passed(self):
        for key in ("one", "two", "three", "four", "five"):
            jobs.note_twice_a_minute.send(key)

        assert drain().counts == {TaskStatus.COMPLETED: 2}
        assert keys() == ["one", "two"]
        with travel(minutes=1):
            drain(scheduled=True, retries=True)
        assert keys() == ["one", "two", "three", "four"]
        with immediate():
            jobs.note_twice_a_minute.send("at once")
        assert keys() == ["one", "two", "three", "four", "at once"]

    def test_a_task_past_its_deadline_expires(self):
        handle = jobs.note.with_options(good_until=timezone.now() + timedelta(milliseconds=1)).send("a")
        while timezone.now() < Task.objects.get().good_until:
            pass

        assert drain().handles == []
        assert handle.status() == TaskStatus.EXPIRED

    def test_a_single_task_runs_whatever_it_waits_for(self):
        Queue.objects.create(name="emails", paused=True)
        handle = jobs.note.with_options(queue_name="emails").schedule(3_600, "a")
        other = jobs.note.send("b")

        assert run(handle) is handle

        assert (handle.value(0), other.status()) == ("a", TaskStatus.PENDING)
        with pytest.raises(ValueError, match="COMPLETED; allowed: PENDING"):
            run(handle)

    def test_the_next_task_runs_alone(self):
        jobs.note.send("b")
        first = jobs.anote.with_options(priority=1).send("a")

        assert run_next() == first
        assert keys() == ["a"]
        assert run_next() is not None
        assert run_next() is None

    def test_bodies_run_in_the_calling_thread_and_leave_no_worker_behind(self):
        threads = []

        def remember(**_):
            threads.append(threading.current_thread())

        task_finished.connect(remember)
        self.addCleanup(task_finished.disconnect, remember)
        jobs.note.send("a")

        drain()

        assert threads == [threading.current_thread()]
        assert not Worker.objects.exists()

    @pytest.mark.slow
    def test_a_task_that_sends_itself_for_ever_ends_the_drain(self):
        jobs.send_itself.send()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("horsies_django.testing.draining.MAX_RUNS", 20)
            with pytest.raises(RuntimeError, match=r"20 tasks.*send_itself"):
                drain()

    async def test_async_tests_drain_too(self):
        await jobs.anote.asend("a")
        handle = await jobs.note.asend("b")
        await jobs.note.asend("c")

        await arun(handle)
        await arun_next()
        await adrain()

        assert [entry.key async for entry in Entry.objects.order_by("pk")] == ["b", "a", "c"]


class DrainInATestCase(DrainCases, TestCase):
    def test_a_callback_of_the_test_itself_waits_for_the_test(self):
        transaction.on_commit(lambda: jobs.note.send("of the test"))

        drain()

        assert keys() == []


@pytest.mark.slow
class DrainInATransactionTestCase(DrainCases, TransactionTestCase):
    pass


def test_an_unknown_queue_is_rejected_by_name(settings):
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["default", "emails"]}}

    with pytest.raises(ValueError, match="There is no queue 'mails'; allowed: default, emails"):
        drain(queues=["mails"])
