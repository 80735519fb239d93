"""What a body says of its progress, and what it keeps for its next attempt."""

import os
import signal

import pytest

from horsies_django import TaskStatus
from horsies_django.enqueue.handle import Progress
from horsies_django.models import Task, TaskAttempt
from tests.conftest import wait_until
from tests.jobs.models import Entry
from tests.worker.execution import jobs

pytestmark = pytest.mark.django_db(transaction=True)


def progress(handle):
    return Task.objects.values_list("progress", flat=True).get(pk=handle.id)


def checkpoint(handle):
    return Task.objects.values_list("checkpoint", flat=True).get(pk=handle.id)


def note(done, total, message):
    return {"done": done, "total": total, "message": message}


# Progress.


def test_progress_is_seen_while_the_body_runs_and_in_the_end(worker, tmp_path):
    worker()
    handles = [body.send(str(tmp_path / "gate")) for body in (jobs.steps, jobs.asteps)]
    wait_until(lambda: {handle.status() for handle in handles} == {TaskStatus.RUNNING})

    wait_until(lambda: [progress(handle) for handle in handles] == [note(1, 3, "first")] * 2)

    assert handles[0].info().progress == Progress(done=1, total=3, message="first")
    (tmp_path / "gate").touch()
    assert [handle.value(timeout=20) for handle in handles] == ["done"] * 2
    assert [progress(handle) for handle in handles] == [note(3, 3, "last")] * 2
    assert handles[1].info().progress == Progress(done=3, total=3, message="last")


def test_a_task_that_says_nothing_has_no_progress(drain):
    handle = jobs.spin.send(0)

    drain()

    assert progress(handle) is None
    assert handle.info().progress is None


def test_a_short_body_and_one_that_fails_and_an_atomic_one_leave_their_last_word(drain):
    short, failing, atomic = jobs.tell.send(2, 4, "half"), jobs.progress_and_fail.send(), jobs.atomic_progress.send()

    drain()

    assert progress(short) == note(2, 4, "half")
    assert progress(failing) == note(2, 5, "before the fall")
    assert progress(atomic) == note(4, 5, "all of it")
    assert failing.status() == TaskStatus.FAILED


@pytest.mark.slow
def test_progress_is_written_seldom_however_often_it_is_told(manage, tmp_path):
    calls, tally = 100_000, tmp_path / "statements"
    handle = jobs.chatty.send(calls)

    process = manage("horsies_worker", "--drain", "-v0", COUNT_STATEMENTS=str(tally))

    assert process.wait(60) == 0, process.output
    assert progress(handle) == note(calls, calls, "talking")
    seconds = TaskAttempt.objects.get().finished_at - TaskAttempt.objects.get().started_at
    print(f"{tally.stat().st_size} statements in {seconds.total_seconds():.1f} s")
    assert tally.stat().st_size < 60 + 10 * seconds.total_seconds()


def test_progress_refuses_a_number_that_can_not_be(drain):
    handles = [jobs.tell.send(done) for done in (-1, "nan", "inf", "-inf")]

    drain()

    for handle in handles:
        error = handle.get(0).err
        assert error.exception["type"] == "builtins.ValueError"
        assert "progress() got done=" in error.message
        assert progress(handle) is None


def test_progress_refuses_what_is_no_number(drain):
    handles = [jobs.tell.send(1, total) for total in ("7", [7], {"a": 1})]

    drain()

    assert {handle.status() for handle in handles} == {TaskStatus.FAILED}
    assert not any(map(progress, handles))


def test_progress_takes_fractions_no_total_and_any_message(drain):
    plain, more, odd = (
        jobs.tell.send(0.5),
        jobs.tell.send(9, 3, "x" * 1_000),
        jobs.tell.send(1, 2, "snow ☃ \t 100 % %s"),
    )

    drain()

    assert progress(plain) == note(0.5, None, "")
    assert (progress(more)["done"], progress(more)["total"]) == (9, 3)
    assert 0 < len(progress(more)["message"]) <= 255
    assert progress(odd)["message"] == "snow ☃ \t 100 % %s"


def test_a_task_that_is_retried_by_hand_begins_without_progress(drain):
    handle = jobs.progress_and_fail.send()
    drain()
    assert progress(handle) is not None

    handle.retry()

    assert progress(handle) is None


# Checkpoints.


def test_a_saved_state_is_given_to_the_next_attempt(drain):
    handle = jobs.resumes.send(3)

    drain()

    assert handle.value(0) == [{"done": 2}, {"done": 3}, 3]
    assert checkpoint(handle) == {"done": 3}


def test_a_coroutine_saves_too(drain):
    handle = jobs.aresumes.send()

    drain()

    assert handle.value(0) == [1, "two", None]


def test_a_saved_state_survives_a_snooze(drain):
    handle = jobs.resumes_after_snooze.send()

    drain()

    assert handle.value(0) == "slept"


@pytest.mark.slow
def test_a_saved_state_survives_the_death_of_the_runner(worker):
    worker()
    handle = jobs.resumes_after_a_crash.send("crash")
    pid = wait_until(lambda: Entry.objects.filter(key="crash").first()).pid

    os.kill(pid, signal.SIGKILL)

    assert handle.value(timeout=20) == {"page": 7}
    assert Entry.objects.filter(key="crash").count() == 1
    assert list(TaskAttempt.objects.order_by("attempt").values_list("outcome", flat=True)) == [
        "WORKER_FAILURE",
        "COMPLETED",
    ]


def test_a_state_that_was_saved_in_a_transaction_goes_the_way_of_the_transaction(drain):
    handle = jobs.saves_and_rolls_back.send("effect")

    drain()

    assert handle.value(0) == ["kept", 0]
    assert checkpoint(handle) == "kept"


def test_an_atomic_task_saves_with_its_effects_or_not_at_all(drain):
    handle = jobs.atomic_save.send("key")

    drain()

    assert handle.value(0) is None
    assert checkpoint(handle) == "second"


def test_a_state_that_can_not_be_stored_is_refused_where_it_is_saved(drain):
    handle = jobs.save_badly.send()

    drain()

    error = handle.get(0).err
    assert (error.error_code, error.exception["type"]) == ("UNHANDLED_EXCEPTION", "builtins.TypeError")
    assert "the state['a set']" in error.message
    assert checkpoint(handle) is None


def test_a_state_is_no_larger_than_a_payload_may_be(drain, settings):
    options = {"max_payload_bytes": 10_000}
    settings.TASKS = {"default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "OPTIONS": options}}
    fits, too_large = jobs.save_much.send(5_000), jobs.save_much.send(20_000)

    drain()

    assert fits.status() == TaskStatus.COMPLETED
    assert "max_payload_bytes" in too_large.get(0).err.message
    assert checkpoint(too_large) is None


def test_a_state_keeps_what_the_rich_serializer_can_hold(drain, settings):
    settings.TASKS = {
        "default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "OPTIONS": {"serializer": "rich"}}
    }
    handle = jobs.saves_a_date.send()

    drain()

    assert handle.value(0) == "2026-11-21 date"
