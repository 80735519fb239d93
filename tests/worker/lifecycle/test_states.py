"""The columns of tasks and attempts that each transition writes."""

from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.utils import timezone

from horsies_django import RetryPolicy, TaskStatus
from horsies_django.core.compat import default_task_backend
from horsies_django.models import Heartbeat, Task, TaskAttempt, Worker
from horsies_django.models.attempt import AttemptError
from horsies_django.models.claims import Completion, WorkerInfo
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.worker.lifecycle import jobs
from tests.workflows.runs import reap

pytestmark = pytest.mark.django_db

RUNNER = WorkerInfo("w", "host", 4711)
ERROR = AttemptError("BROKEN", "broken")
ERR = '{"err":{"error_code":"BROKEN","message":"broken","data":null}}'
LONG_AGO = timedelta(hours=1)
CRASH = RetryPolicy.fixed([60], auto_retry_for=["WORKER_CRASHED"], jitter=False)
CLAIM = {"status", "claimed_at", "claimed_by_worker_id", "claim"}
START = {"status", "started_at", "attempt"}


def row_of(handle):
    return Task.objects.filter(pk=handle.id).values().get()


def changes(handle, act):
    """Return the columns that ``act`` changes in the row, with their new values."""
    before = row_of(handle)
    with transaction.atomic():
        act()
    after = row_of(handle)
    return {name: after[name] for name in after if after[name] != before[name]}


def claim(start=1, prefetch=0, worker="w"):
    with transaction.atomic():
        (claimed,) = Task.objects.claim(worker, start=start, prefetch=prefetch)
    return claimed


def attempts_of(handle):
    return list(TaskAttempt.objects.filter(task_id=handle.id).order_by("attempt"))


def is_now(moment):
    return abs(timezone.now() - moment) < timedelta(seconds=5)


# Sending.


def test_a_sent_task_is_pending_and_due_at_once():
    handle = tasks.noop.send()

    row = row_of(handle)
    assert (row["status"], row["claim"], row["attempt"], row["retry_count"]) == (TaskStatus.PENDING, 0, 0, 0)
    assert is_now(row["sent_at"])
    assert row["enqueued_at"] == row["sent_at"]
    assert [row[name] for name in ("claimed_at", "started_at", "completed_at", "failed_at", "next_retry_at")] == [
        None
    ] * 5
    assert Task.objects.due().filter(pk=handle.id).exists()
    assert not Task.objects.scheduled().exists()


def test_a_delayed_task_is_scheduled_then_due_then_completed(drain):
    handle = tasks.write.schedule(24 * 3600, "tomorrow")
    row = row_of(handle)
    assert row["enqueued_at"] - row["sent_at"] == timedelta(hours=24)
    assert list(Task.objects.scheduled()) == list(Task.objects.pending())
    drain()
    assert not Entry.objects.exists()

    Task.objects.update(enqueued_at=timezone.now() - timedelta(seconds=1))  # a day has passed
    assert Task.objects.due().count() == 1
    assert not Task.objects.scheduled().exists()
    drain()

    assert Task.objects.completed().count() == Entry.objects.count() == 1


# Claiming and starting.


def test_a_claim_writes_the_worker_the_time_and_the_claim_number():
    handle = tasks.noop.send()

    written = changes(handle, lambda: Task.objects.claim("w", start=0, prefetch=1))

    assert written.keys() == CLAIM
    assert (written["status"], written["claimed_by_worker_id"], written["claim"]) == (TaskStatus.CLAIMED, "w", 1)
    assert is_now(written["claimed_at"])
    assert Task.objects.active().get().claimed


def test_a_start_writes_the_time_and_the_attempt_number():
    handle = tasks.noop.send()
    claimed = claim(start=0, prefetch=1)

    written = changes(handle, lambda: Task.objects.start([claimed], "w"))

    assert written.keys() == START
    assert (written["status"], written["attempt"]) == (TaskStatus.RUNNING, 1)
    assert is_now(written["started_at"])


def test_a_claim_for_a_free_slot_writes_the_claim_and_the_start_in_one_change():
    handle = tasks.noop.send()

    written = changes(handle, lambda: Task.objects.claim("w", start=1))

    assert written.keys() == CLAIM | START
    assert written["status"] == TaskStatus.RUNNING
    assert written["claimed_at"] == written["started_at"]


def test_the_runner_marks_the_row_running_before_the_body_begins(worker):
    process = worker()

    seen = jobs.describe.send().value(timeout=20)

    row = Worker.objects.get()
    assert (seen["status"], seen["worker"]) == (TaskStatus.RUNNING, row.pk)
    assert (seen["pid"], seen["parent"]) == (row.pid, process.process.pid)
    assert datetime.fromisoformat(seen["claimed_at"]) <= datetime.fromisoformat(seen["started_at"])
    assert datetime.fromisoformat(seen["started_at"]) <= datetime.fromtimestamp(seen["at"], UTC) + timedelta(
        milliseconds=1
    )


def test_a_runner_sends_heartbeats_for_running_and_claimed_tasks(worker, gate):
    worker("--threads", "1", "--prefetch", "1", TEST_HEARTBEAT_MS="200", TEST_STALE_MS="60000")
    runs = tasks.hold.send("runs", str(gate))
    wait_until(lambda: Entry.objects.exists())
    waits = tasks.noop.send()
    wait_until(lambda: Heartbeat.objects.filter(task_id=waits.id).count() >= 2)
    wait_until(lambda: Heartbeat.objects.filter(task_id=runs.id, role="runner").count() >= 2)
    gate.touch()
    wait_until(lambda: Task.objects.completed().count() == 2)

    roles = {(heartbeat.task_id, heartbeat.role) for heartbeat in Heartbeat.objects.all()}
    assert (runs.id, "claimer") not in roles
    assert (waits.id, "claimer") in roles
    row = Worker.objects.get()
    assert set(Heartbeat.objects.values_list("sender_id", "pid", "hostname")) == {(row.pk, row.pid, row.hostname)}
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM horsies_heartbeats LIMIT 0")
        columns = {column[0] for column in cursor.description}
    assert columns == {"id", "task_id", "sender_id", "role", "sent_at", "hostname", "pid"}


# Ends.


def test_a_completion_writes_the_result_and_the_time(drain):
    handle = tasks.add.send(1, b=2)
    claimed = claim()

    written = changes(handle, lambda: Task.objects.complete([Completion(handle.id, claimed.claim, '{"ok":3}')], RUNNER))

    assert written.keys() == {"status", "result", "completed_at", "kept_until"}
    assert (written["status"], written["result"]) == (TaskStatus.COMPLETED, {"ok": 3})
    (attempt,) = attempts_of(handle)
    assert (attempt.outcome, attempt.attempt, attempt.will_retry) == ("COMPLETED", 1, False)
    assert (attempt.worker_id, attempt.hostname, attempt.pid) == ("w", "host", 4711)
    assert attempt.started_at == row_of(handle)["started_at"]
    assert abs(attempt.finished_at - written["completed_at"]) < timedelta(seconds=5)


def test_a_failure_writes_the_error_the_code_and_the_time():
    handle = tasks.noop.send()
    claimed = claim()

    written = changes(handle, lambda: Task.objects.fail([Completion(handle.id, claimed.claim, ERR, ERROR)], RUNNER))

    assert written.keys() == {"status", "result", "error_code", "fingerprint", "failed_at", "kept_until"}
    assert (written["status"], written["error_code"]) == (TaskStatus.FAILED, "BROKEN")
    assert written["result"]["err"]["message"] == "broken"
    (attempt,) = attempts_of(handle)
    assert (attempt.outcome, attempt.error_code, attempt.error_message) == ("FAILED", "BROKEN", "broken")
    assert row_of(handle)["completed_at"] is None


def test_only_a_successful_task_is_completed(worker):
    worker()
    handles = {
        "OWN": tasks.returns_error.send("OWN"),
        "UNHANDLED_EXCEPTION": tasks.fail.send(),
        "WORKER_CRASHED": tasks.hard_exit.send("crash"),
    }

    for code, handle in handles.items():
        error = handle.get(timeout=20).err
        row = row_of(handle)
        # The crash may have ended the other bodies of its runner.
        assert error.error_code in (code, "WORKER_CRASHED")
        assert (row["status"], row["completed_at"]) == (TaskStatus.FAILED, None)
        assert row["failed_at"] >= row["started_at"]


def test_a_retry_writes_its_count_and_time_and_clears_the_claim():
    handle = tasks.noop.send()
    claimed = claim()
    started_at, due_at = row_of(handle)["started_at"], row_of(handle)["enqueued_at"]
    end = Completion(handle.id, claimed.claim, ERR, ERROR, delay=60.0)

    written = changes(handle, lambda: Task.objects.retry_later([end], RUNNER))

    assert written.keys() == {
        *("status", "retry_count", "next_retry_at", "enqueued_at", "deferred", "error_code", "fingerprint"),
        *("claimed_at", "claimed_by_worker_id", "started_at"),
    }
    assert (written["status"], written["retry_count"]) == (TaskStatus.PENDING, 1)
    assert written["next_retry_at"] == written["enqueued_at"]
    assert (written["claimed_at"], written["claimed_by_worker_id"], written["started_at"]) == (None, None, None)
    (attempt,) = attempts_of(handle)
    assert (attempt.will_retry, attempt.due_at, attempt.started_at) == (True, due_at, started_at)
    assert abs(written["next_retry_at"] - attempt.finished_at - timedelta(seconds=60)) < timedelta(seconds=5)


def test_a_failing_task_is_retried_until_no_retries_are_left(transactional_db):
    handle = tasks.fixed.send("round")

    for number in (1, 2):
        call_command("horsies_worker", once=True, verbosity=0)
        row = row_of(handle)
        assert Task.objects.retrying().filter(retry_count=number).exists()
        assert (row["status"], row["failed_at"], row["error_code"]) == (TaskStatus.PENDING, None, "DOWN")
        assert row["enqueued_at"] == row["next_retry_at"]
        Task.objects.update(enqueued_at=timezone.now() - timedelta(seconds=1))  # now due
    call_command("horsies_worker", once=True, verbosity=0)

    assert Task.objects.archived().get().pk == handle.id
    assert [attempt.will_retry for attempt in attempts_of(handle)] == [True, True, False]
    assert Entry.objects.count() == 3
    assert row_of(handle)["retry_count"] == 2


def test_a_task_without_retries_goes_from_active_to_archived():
    handle = tasks.noop.send()
    claimed = claim()
    assert Task.objects.active().get().pk == handle.id

    Task.objects.fail([Completion(handle.id, claimed.claim, ERR, ERROR)], RUNNER)

    assert Task.objects.archived().get().pk == handle.id
    assert not Task.objects.active().exists()
    assert not Task.objects.retrying().exists()


def test_retries_do_not_change_sent_at(drain):
    handle = tasks.flaky.send("sent", 5)
    sent_at = row_of(handle)["sent_at"]

    drain()
    assert handle.retry()
    drain()

    assert row_of(handle)["sent_at"] == sent_at


# Expiry and cancelling.


def test_expiry_writes_the_code_and_the_time_but_no_attempt():
    handle = tasks.noop.with_options(good_until=timezone.now() - timedelta(minutes=1)).send()

    written = changes(handle, lambda: Task.objects.overdue().expire())

    assert written.keys() == {"status", "expired_at", "error_code", "result", "kept_until"}
    assert (written["status"], written["error_code"]) == (TaskStatus.EXPIRED, "TASK_EXPIRED")
    assert written["result"]["err"]["data"] == {"task_id": str(handle.id), "worker_id": None}
    assert not attempts_of(handle)


def test_expiry_of_a_claimed_task_keeps_its_claim():
    handle = tasks.noop.with_options(good_until=timezone.now() + timedelta(hours=1)).send()
    claimed = claim(start=0, prefetch=1)
    Task.objects.update(good_until=timezone.now() - timedelta(minutes=1))

    written = changes(handle, lambda: Task.objects.start([claimed], "w"))

    assert written.keys() == {"status", "expired_at", "error_code", "result", "kept_until"}
    assert written["result"]["err"]["data"] == {"task_id": str(handle.id), "worker_id": "w"}
    assert not attempts_of(handle)


def test_a_cancel_writes_the_code_and_the_time_but_no_attempt():
    handle = tasks.noop.send()

    written = changes(handle, handle.cancel)

    assert written.keys() == {"status", "cancelled_at", "error_code", "result", "kept_until"}
    assert (written["status"], written["error_code"]) == (TaskStatus.CANCELLED, "TASK_CANCELLED")
    assert not attempts_of(handle)


# The reaper.


def test_the_reaper_releases_a_stale_claim_and_changes_no_other_column():
    handle = tasks.noop.send()
    claim(start=0, prefetch=1, worker="dead")
    Task.objects.update(claimed_at=timezone.now() - LONG_AGO)

    written = changes(handle, reap)

    assert written == {"status": TaskStatus.PENDING, "claimed_at": None, "claimed_by_worker_id": None}
    assert not attempts_of(handle)
    assert claim().task_id == handle.id  # another worker may claim it


def test_a_task_of_a_silent_worker_is_retried_while_retries_are_left():
    handle = tasks.noop.with_options(retry_policy=CRASH).send()
    due_at = row_of(handle)["enqueued_at"]
    claim(worker="dead")
    Task.objects.update(started_at=timezone.now() - LONG_AGO)

    written = changes(handle, reap)

    assert (written["status"], written["retry_count"]) == (TaskStatus.PENDING, 1)
    assert (written["started_at"], written["claimed_at"], written["claimed_by_worker_id"]) == (None, None, None)
    (attempt,) = attempts_of(handle)
    assert (attempt.outcome, attempt.error_code, attempt.will_retry) == ("WORKER_FAILURE", "WORKER_CRASHED", True)
    assert attempt.due_at == due_at


def test_a_task_of_a_silent_worker_fails_when_no_retries_are_left():
    handle = tasks.noop.with_options(retry_policy=CRASH).send()
    Task.objects.update(retry_count=1)
    claim(worker="dead")
    Task.objects.update(started_at=timezone.now() - LONG_AGO)

    written = changes(handle, reap)

    assert written.keys() == {"status", "result", "error_code", "fingerprint", "failed_at", "kept_until"}
    assert (written["status"], written["error_code"]) == (TaskStatus.FAILED, "WORKER_CRASHED")
    assert [attempt.due_at for attempt in attempts_of(handle)] == [row_of(handle)["enqueued_at"]]


def test_a_claim_is_abandoned_only_after_the_threshold():
    threshold = timedelta(milliseconds=default_task_backend.config.recovery.running_stale_threshold_ms)
    young, old = tasks.noop.send(), tasks.noop.send()
    for _ in range(2):
        claim(worker="dead")
    Task.objects.filter(pk=young.id).update(started_at=timezone.now() - threshold + timedelta(seconds=20))
    Task.objects.filter(pk=old.id).update(started_at=timezone.now() - threshold - timedelta(seconds=1))

    reap()

    assert (young.status(), old.status()) == (TaskStatus.RUNNING, TaskStatus.FAILED)


# Columns of every row.


def test_every_row_has_a_priority():
    tasks.noop.send()

    assert Task.objects.values_list("priority", flat=True).get() == 0
    assert not Task._meta.get_field("priority").null


def test_the_options_of_a_send_are_stored_in_its_row():
    handle = tasks.noop.with_options(timeout=7, retry_policy=CRASH).send()
    plain = tasks.noop.send()

    row, other = row_of(handle), row_of(plain)
    assert (row["timeout"], row["max_retries"]) == (7, 1)
    assert RetryPolicy.from_json(row["retry_policy"]) == CRASH
    assert (other["timeout"], other["max_retries"], other["retry_policy"]) == (None, 0, None)
