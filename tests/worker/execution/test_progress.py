"""The progress that a body reports, and the state that it saves for its next attempt."""

import os
import signal

import pytest

from horsies_django import TaskStatus
from horsies_django.enqueue.handle import Progress
from horsies_django.models import Task, TaskAttempt
from tests.conftest import wait_until
from tests.jobs.models import Entry
from tests.worker.execution import jobs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


def progress(handle):
    return Task.objects.values_list("progress", flat=True).get(pk=handle.id)


def checkpoint(handle):
    return Task.objects.values_list("checkpoint", flat=True).get(pk=handle.id)


def note(done, total, message):
    return {"done": done, "total": total, "message": message}


# Progress.


def test_progress_is_visible_while_the_body_runs_and_afterwards(worker, tmp_path):
    worker()
    handles = [body.send(str(tmp_path / "gate")) for body in (jobs.steps, jobs.asteps)]
    wait_until(lambda: {handle.status() for handle in handles} == {TaskStatus.RUNNING})

    wait_until(lambda: [progress(handle) for handle in handles] == [note(1, 3, "first")] * 2)

    assert handles[0].info().progress == Progress(done=1, total=3, message="first")
    (tmp_path / "gate").touch()
    assert [handle.value(timeout=20) for handle in handles] == ["done"] * 2
    assert [progress(handle) for handle in handles] == [note(3, 3, "last")] * 2
    assert handles[1].info().progress == Progress(done=3, total=3, message="last")


def test_a_task_that_reports_nothing_has_no_progress(drain):
    handle = jobs.spin.send(0)

    drain()

    assert progress(handle) is None
    assert handle.info().progress is None


def test_short_failing_and_atomic_bodies_keep_their_last_progress(drain):
    short, failing, atomic = jobs.report.send(2, 4, "half"), jobs.progress_and_fail.send(), jobs.atomic_progress.send()

    drain()

    assert progress(short) == note(2, 4, "half")
    assert progress(failing) == note(2, 5, "before the fall")
    assert progress(atomic) == note(4, 5, "all of it")
    assert failing.status() == TaskStatus.FAILED


@pytest.mark.slow
def test_frequent_progress_is_written_rarely(manage, tmp_path):
    calls, tally = 100_000, tmp_path / "statements"
    handle = jobs.report_often.send(calls)

    process = manage("horsies_worker", "--drain", "-v0", COUNT_STATEMENTS=str(tally))

    assert process.wait(60) == 0, process.output
    assert progress(handle) == note(calls, calls, "talking")
    seconds = TaskAttempt.objects.get().finished_at - TaskAttempt.objects.get().started_at
    print(f"{tally.stat().st_size} statements in {seconds.total_seconds():.1f} s")
    assert tally.stat().st_size < 60 + 10 * seconds.total_seconds()


def test_progress_refuses_negative_and_non_finite_numbers(drain):
    handles = [jobs.report.send(done) for done in (-1, "nan", "inf", "-inf")]

    drain()

    for handle in handles:
        error = handle.get(0).err
        assert error.exception["type"] == "builtins.ValueError"
        assert "progress() got done=" in error.message
        assert progress(handle) is None


def test_progress_refuses_a_total_that_is_not_a_number(drain):
    handles = [jobs.report.send(1, total) for total in ("7", [7], {"a": 1})]

    drain()

    assert {handle.status() for handle in handles} == {TaskStatus.FAILED}
    assert not any(map(progress, handles))


def test_progress_accepts_fractions_any_message_and_no_total(drain):
    plain, more, odd = (
        jobs.report.send(0.5),
        jobs.report.send(9, 3, "x" * 1_000),
        jobs.report.send(1, 2, "snow ☃ \t 100 % %s"),
    )

    drain()

    assert progress(plain) == note(0.5, None, "")
    assert (progress(more)["done"], progress(more)["total"]) == (9, 3)
    assert 0 < len(progress(more)["message"]) <= 255
    assert progress(odd)["message"] == "snow ☃ \t 100 % %s"


def test_a_manual_retry_clears_the_progress(drain):
    handle = jobs.progress_and_fail.send()
    drain()
    assert progress(handle) is not None

    handle.retry()

    assert progress(handle) is None


# Checkpoints.


def test_the_next_attempt_reads_the_saved_state(drain):
    handle = jobs.resumes.send(3)

    drain()

    assert handle.value(0) == [{"done": 2}, {"done": 3}, 3]
    assert checkpoint(handle) == {"done": 3}


def test_a_coroutine_can_save_its_state(drain):
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


def test_a_state_saved_in_a_transaction_is_rolled_back_with_it(drain):
    handle = jobs.saves_and_rolls_back.send("effect")

    drain()

    assert handle.value(0) == ["kept", 0]
    assert checkpoint(handle) == "kept"


def test_an_atomic_task_stores_its_state_with_its_effects(drain):
    handle = jobs.atomic_save.send("key")

    drain()

    assert handle.value(0) is None
    assert checkpoint(handle) == "second"


def test_an_unserializable_state_is_refused_by_save(drain):
    handle = jobs.save_badly.send()

    drain()

    error = handle.get(0).err
    assert (error.error_code, error.exception["type"]) == ("UNHANDLED_EXCEPTION", "builtins.TypeError")
    assert "the state['a set']" in error.message
    assert checkpoint(handle) is None


def test_a_state_larger_than_max_payload_bytes_is_refused(drain, settings):
    options = {"max_payload_bytes": 10_000}
    settings.TASKS = {"default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "OPTIONS": options}}
    fits, too_large = jobs.save_much.send(5_000), jobs.save_much.send(20_000)

    drain()

    assert fits.status() == TaskStatus.COMPLETED
    assert "max_payload_bytes" in too_large.get(0).err.message
    assert checkpoint(too_large) is None


def test_a_state_keeps_the_types_of_the_rich_serializer(drain, settings):
    settings.TASKS = {
        "default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "OPTIONS": {"serializer": "rich"}}
    }
    handle = jobs.saves_a_date.send()

    drain()

    assert handle.value(0) == "2026-11-21 date"
