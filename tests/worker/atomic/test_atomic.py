"""The effects of an atomic task are committed with its end, or not at all."""

import os
import signal

import pytest
from django.db import connection
from django.utils import timezone

from horsies_django import TaskStatus, Workflow, task
from horsies_django.core.compat import InvalidTask
from horsies_django.models import Task, TaskAttempt, Worker, WorkflowTask
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.worker.atomic import jobs

pytestmark = pytest.mark.django_db(transaction=True)


def entries(key):
    return Entry.objects.filter(key__startswith=key).count()


@pytest.mark.nightly
@pytest.mark.parametrize("step", jobs.STEPS)
@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_effects_are_stored_once_at_whatever_step_the_process_dies(worker, tmp_path, step, kills):
    handles = [
        jobs.effects.send(f"key {number:02}", step, str(tmp_path / f"{number}.marker")) for number in range(kills)
    ]
    worker("--processes", "3", "--threads", "1", "-v0")

    wait_until(lambda: Task.objects.completed().count() == kills, limit=240, what="the end of all tasks")

    for number, handle in enumerate(handles):
        assert entries(f"key {number:02}") == 2
        outcomes = list(Task.objects.get(pk=handle.id).attempts.order_by("attempt").values_list("outcome", flat=True))
        # A process that dies after the commit has completed its task, which does not run again.
        assert outcomes == (["COMPLETED"] if step == "committed" else ["WORKER_FAILURE", "COMPLETED"])
    assert Entry.objects.count() == 2 * kills
    assert len(list(tmp_path.glob("*.marker"))) == kills


@pytest.mark.parametrize(
    ("how", "status", "code"),
    [
        ("raises", TaskStatus.FAILED, "UNHANDLED_EXCEPTION"),
        ("returns an error", TaskStatus.FAILED, "NO"),
        ("returns an unserializable value", TaskStatus.FAILED, "WORKER_SERIALIZATION_ERROR"),
        ("snoozes", TaskStatus.PENDING, None),
        ("succeeds", TaskStatus.COMPLETED, None),
    ],
)
def test_only_a_successful_body_keeps_its_effects(drain, how, status, code):
    handle = jobs.end_as_requested.send("effect", how)

    drain()

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.error_code) == (status, code)
    assert entries("effect") == (1 if status is TaskStatus.COMPLETED else 0)
    assert row.attempts.count() == (0 if how == "snoozes" else 1)


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_time_limit_rolls_the_effects_back(drain):
    handle = jobs.endless.send("late")
    drain()
    assert Task.objects.get(pk=handle.id).error_code == "TASK_TIMEOUT"
    assert entries("late") == 0


def test_on_commit_callbacks_run_after_the_commit_and_may_raise(drain, tmp_path):
    path = tmp_path / "counts"
    handle = jobs.hooks.send("hooked", str(path))
    drain()
    assert handle.value(timeout=0) == "hooked"
    assert Task.objects.get(pk=handle.id).attempts.get().outcome == "COMPLETED"
    assert path.read_text() == "1\n"


def test_progress_and_saved_state_are_stored_with_the_effects(drain):
    handle = jobs.report_and_save.send("key")
    drain()
    row = Task.objects.get(pk=handle.id)
    assert (row.progress, row.checkpoint) == ({"done": 3, "total": 3, "message": "all"}, {"row": 3})


def test_an_atomic_coroutine_function_is_refused_by_the_decorator():
    with pytest.raises(InvalidTask, match=r"atomic is True and .*awrite is a coroutine function; allowed: plain"):
        task(atomic=True)(tasks.awrite.func)


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_body_whose_task_is_cancelled_leaves_no_effects(worker, tmp_path):
    if connection.vendor == "sqlite":
        pytest.skip("the body holds SQLite's only write lock, so nothing can cancel its task")
    gate = tmp_path / "gate"
    handle = jobs.held.send("cancelled", str(gate))
    process = worker()
    wait_until(gate.with_suffix(".begun").exists)

    assert handle.cancel(include_running=True)
    gate.touch()

    wait_until(lambda: "task revoked id=" in process.output and "duration=" in process.output)
    assert handle.status() is TaskStatus.CANCELLED
    assert entries("cancelled") == 0
    assert not TaskAttempt.objects.exists()


@pytest.mark.slow
def test_a_body_that_loses_its_claim_leaves_no_effects(worker, manage, tmp_path):
    if connection.vendor == "sqlite":
        pytest.skip("the body holds SQLite's only write lock, so no reaper can recover its task")
    fast = {"TEST_STALE_MS": "1000", "TEST_HEARTBEAT_MS": "300", "TEST_CHECK_MS": "60000"}
    gate = tmp_path / "gate"
    handle = jobs.held.send("taken", str(gate))
    frozen = [worker("--no-reaper", **fast).process.pid, Worker.objects.get().pid]
    wait_until(gate.with_suffix(".begun").exists)
    for pid in frozen:  # the supervisor first: it would kill a stopped runner
        os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(
            lambda: manage("horsies_reaper", "--once", **fast).wait() == 0 and handle.status() is TaskStatus.FAILED,
            limit=60,
        )
    finally:
        gate.touch()
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)

    after = jobs.effects.send("after", "never", str(tmp_path / "after.marker"))
    assert after.value(timeout=30) == "after"
    assert Task.objects.get(pk=handle.id).error_code == "WORKER_CRASHED"
    assert entries("taken") == 0
    assert Task.objects.get(pk=handle.id).attempts.get().outcome == "WORKER_FAILURE"


def test_the_fence_rolls_the_effects_of_a_lost_claim_back(drain):
    if connection.vendor == "sqlite":
        pytest.skip("the body holds SQLite's only write lock, so nothing can take its claim")
    handle = jobs.lose_the_claim.send("lost")
    drain()
    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.result) == (TaskStatus.RUNNING, None)
    assert not row.attempts.exists()
    assert entries("lost") == 0


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("how", ["by its handle", "by a filter", "by its workflow"])
def test_an_atomic_body_that_cancels_its_own_running_task_gets_an_error(drain, how):
    one = jobs.end_itself.node(node_id="one")(key="own", how=how)
    handle = Workflow("own", [one, jobs.end_itself.node(node_id="two", queue_name="slow")(key="two", how="")]).start()
    drain(queues="default")

    error = handle.result_for("one").err
    assert error.message == (
        f"Task {WorkflowTask.objects.get(node_id='one').task_id} is atomic, and its body can't cancel it with "
        "include_running=True: the task can't end before its transaction. Raise Discard, or cancel without "
        "include_running: then the body ends first."
    )
    assert (handle.status(), entries("own")) == ("RUNNING", 0)
    drain()
    assert entries("two") == 1


def test_an_atomic_body_that_catches_the_error_of_its_cancel_completes(drain):
    node = jobs.end_itself.node(node_id="one")(key="own", how="by its workflow", catches=True)
    handle = Workflow("own", [node]).start()
    drain()
    assert (handle.status(), entries("own")) == ("COMPLETED", 1)


def test_a_callback_of_an_atomic_body_comes_too_late_to_cancel_it(drain):
    handle = jobs.cancel_itself_after_the_commit.send("own")
    drain()
    assert (handle.status(), entries("own False")) == ("COMPLETED", 1)


def test_an_atomic_body_that_deletes_its_own_row_fails_with_the_reason(drain):
    handle = jobs.end_itself.send("own", "by deleting its row")
    drain()
    error = handle.get(timeout=0).err
    assert error.message.startswith("The task was cancelled or recovered, or its body has changed or deleted its own")
    assert entries("own") == 0


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("actions", "results", "status"),
    [
        (["pause"], [True], "PAUSED"),
        (["cancel"], [True], "CANCELLED"),
        (["cancel", "retry"], [True, True], "COMPLETED"),
    ],
)
def test_an_atomic_body_can_change_its_own_workflow_and_completes(drain, actions, results, status):
    body = jobs.change_own_workflow.node(node_id="body")(key="own", actions=actions)
    after = jobs.end_itself.node(node_id="after", waits_for=[body])(key="after", how="")
    handle = Workflow("own", [body, after]).start()
    drain()
    assert handle.result_for("body").unwrap() == results
    assert (handle.status(), entries("own"), entries("after")) == (status, 1, int(status == "COMPLETED"))


def test_a_retried_task_stores_its_effects_once(drain, tmp_path):
    handle = jobs.succeed_at_third_attempt.send("lucky", str(tmp_path / "tries"))
    drain()
    assert handle.value(timeout=0) == 3
    assert entries("lucky") == 2
    assert list(Task.objects.get(pk=handle.id).attempts.order_by("attempt").values_list("outcome", flat=True)) == [
        "FAILED",
        "FAILED",
        "COMPLETED",
    ]


def test_a_task_whose_commit_fails_is_not_completed(drain):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no deferred constraint on this table")
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE pairs (id int PRIMARY KEY, other int)")
        cursor.execute("ALTER TABLE pairs ADD FOREIGN KEY (other) REFERENCES pairs (id) DEFERRABLE INITIALLY DEFERRED")
    try:
        handle = jobs.violate_a_deferred_constraint.send("violating")
        drain()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE pairs")

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.error_code) == (TaskStatus.FAILED, "UNHANDLED_EXCEPTION")
    assert "IntegrityError" in row.attempts.get().exception_class
    assert entries("violating") == 0


def test_a_terminated_connection_leaves_no_effects(drain):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no server that could terminate a connection")
    handle = jobs.lose_the_connection.send("cut")
    drain()
    assert handle.status() is TaskStatus.FAILED
    assert entries("cut") == 0


@pytest.mark.slow
def test_a_connection_that_is_lost_in_each_run_uses_up_retries_in_the_end(drain):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no server that could terminate a connection")
    handle = jobs.lose_the_connection_unnoticed.send("cut")
    for _ in range(10):
        Task.objects.pending().update(enqueued_at=timezone.now())
        drain()

    assert handle.status() is TaskStatus.FAILED
    outcomes = Task.objects.get(pk=handle.id).attempts.order_by("attempt").values_list("outcome", flat=True)
    assert list(outcomes) == ["WORKER_FAILURE"] * 5 + ["FAILED"] * 2
    assert entries("cut") == 0


def test_a_connection_that_is_lost_once_uses_up_no_retry(drain):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no server that could terminate a connection")
    handle = jobs.lose_the_connection_unnoticed.send("cut")
    drain()

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.attempt, row.retry_count) == (TaskStatus.PENDING, 1, 0)
    assert row.attempts.get().exception_class == "django.db.utils.OperationalError"


def test_a_body_that_closes_the_connection_of_its_transaction_fails(drain):
    handle = jobs.close_the_connection.send("closed")
    drain()

    assert handle.get(0).err.message == "The task closed the connection of its own transaction."
    assert entries("closed") == 0


@pytest.mark.parametrize("statement", ["ROLLBACK", "COMMIT"])
def test_a_body_that_ends_its_transaction_fails(drain, statement):
    handle = jobs.end_the_transaction.send("ended", statement)
    drain()

    assert handle.status() is TaskStatus.FAILED
    assert entries("ended too") == 0


def test_a_body_may_roll_back_to_a_savepoint(drain):
    handle = jobs.roll_back_to_a_savepoint.send("kept")
    drain()

    assert handle.get(0).is_ok()
    assert entries("kept") == 1
