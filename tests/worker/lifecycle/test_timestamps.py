"""The querysets that a task is in, and the timestamps of its row, from its send to its end."""

from datetime import datetime, timedelta
from functools import partial

import pytest
from django.utils import timezone

from horsies_django import RetryPolicy, TaskStatus
from horsies_django.models import Task, TaskAttempt
from tests.jobs import limited, tasks
from tests.jobs.models import Entry
from tests.worker.atomic import jobs as atomic_jobs
from tests.worker.execution import jobs as control_jobs
from tests.worker.lifecycle import jobs

pytestmark = pytest.mark.django_db

ENDS = ("completed_at", "failed_at", "cancelled_at", "expired_at")


def test_a_task_is_in_exactly_one_of_asynqs_states(drain):
    handle = jobs.record_states.schedule(3600, 2)
    task = Task.objects.filter(pk=handle.id)
    assert jobs.states_of(handle.id) == ["scheduled"]

    for after in ("retrying", "archived"):
        task.run_now()
        assert jobs.states_of(handle.id) == ["due"]
        drain()
        assert jobs.states_of(handle.id) == [after]
    handle.retry()
    assert jobs.states_of(handle.id) == ["due"]
    drain()

    assert jobs.states_of(handle.id) == ["completed"]
    assert list(Entry.objects.values_list("key", flat=True)) == ["RUNNING active"] * 3


def test_a_row_has_only_the_timestamp_of_its_end_state(drain):
    past = timezone.now() - timedelta(minutes=1)
    handles = {
        "completed_at": tasks.noop.send(),
        "failed_at": tasks.fail.send(),
        "cancelled_at": tasks.noop.schedule(60),
        "expired_at": tasks.noop.with_options(good_until=past).send(),
    }
    handles["cancelled_at"].cancel()

    drain(no_reaper=False)

    for end, handle in handles.items():
        row = Task.objects.filter(pk=handle.id).values().get()
        assert [name for name in ENDS if row[name]] == [end]
        has_begun = row["status"] in (TaskStatus.COMPLETED, TaskStatus.FAILED)
        moments = ["sent_at", *(["claimed_at", "started_at"] if has_begun else []), end]
        assert [name for name in ("sent_at", "claimed_at", "started_at", *ENDS) if row[name]] == moments
        assert [row[name] for name in moments] == sorted(row[name] for name in moments)
        assert row["next_retry_at"] is None


def overdue_since(handle):
    """Make a task due ten minutes ago, and return that time."""
    due_at = timezone.now() - timedelta(minutes=10)
    Task.objects.filter(pk=handle.id).update(enqueued_at=due_at, deferred=False)
    return due_at


def due_times(handle):
    return list(TaskAttempt.objects.filter(task=handle.id).order_by("attempt").values_list("due_at", flat=True))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "send",
    [
        tasks.noop.send,
        tasks.anoop.send,
        tasks.fail.send,
        partial(atomic_jobs.end_as_requested.send, "key", "succeeds"),
        partial(atomic_jobs.end_as_requested.send, "key", "raises"),
        tasks.noop.with_options(queue_name="emails").send,
    ],
    ids=["a success", "a coroutine", "a failure", "an atomic success", "an atomic failure", "another queue"],
)
def test_an_attempt_keeps_when_its_task_could_have_started(drain, send):
    handle = send()
    due_at = overdue_since(handle)

    drain()

    assert due_times(handle) == [due_at]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("sender", [tasks.fail, jobs.afail_twice], ids=lambda sender: sender.name)
def test_an_attempt_before_a_retry_keeps_when_it_could_have_started_itself(drain, sender):
    handle = sender.with_options(retry_policy=RetryPolicy.fixed([3_600], auto_retry_for=["*"])).send()
    first = overdue_since(handle)
    drain()
    assert Task.objects.get(pk=handle.id).enqueued_at > timezone.now()
    second = overdue_since(handle)
    drain()

    assert due_times(handle) == [first, second]


@pytest.mark.django_db(transaction=True)
def test_the_attempt_after_a_snooze_could_have_started_when_that_was_over(drain):
    handle = control_jobs.raises_snooze.send("key", 1, 3_600)
    overdue_since(handle)
    drain()
    assert due_times(handle) == []
    due_at = overdue_since(handle)
    drain()

    assert due_times(handle) == [due_at]


@pytest.mark.django_db(transaction=True)
def test_the_attempt_of_a_blocked_task_could_have_started_when_its_limit_had_room(drain):
    _, blocked = (limited.one_per_user.send("user") for _ in range(2))
    Task.objects.update(enqueued_at=timezone.now() - timedelta(minutes=10))

    drain()

    row = Task.objects.get(pk=blocked.id)
    assert due_times(blocked) == [row.released_at]
    assert row.released_at > timezone.now() - timedelta(minutes=5)


def test_an_attempt_after_an_operators_retry_could_have_started_at_that_retry(drain):
    handle = tasks.noop.send()
    overdue_since(handle)
    handle.cancel()
    handle.retry()
    due_at = Task.objects.get(pk=handle.id).enqueued_at

    drain()

    assert due_times(handle) == [due_at]
    assert due_at > timezone.now() - timedelta(minutes=5)


def unblocked_at():
    """Return a time after the claim, at which a coroutine still blocked the event loop."""
    return datetime.fromisoformat(Entry.objects.get().key)


@pytest.mark.django_db(transaction=True)
def test_the_start_of_a_row_and_of_its_attempts_is_the_time_at_which_the_body_began(drain):
    jobs.block_loop.send(2)
    handles = [tasks.anoop.send(), jobs.afail_twice.send()]

    drain()

    attempts = TaskAttempt.objects.filter(task__in=[handle.id for handle in handles])
    assert sorted(attempt.outcome for attempt in attempts) == ["COMPLETED", "FAILED", "FAILED"]
    for attempt in attempts:
        assert unblocked_at() < attempt.started_at <= attempt.finished_at
    for row in Task.objects.filter(pk__in=[handle.id for handle in handles]):
        assert row.started_at == row.attempts.latest("attempt").started_at
        assert row.started_at > row.claimed_at


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_after_a_crash_the_start_is_the_time_at_which_the_body_began(worker):
    jobs.block_loop.send(1)
    handle = jobs.akill_itself.send()
    worker("--processes", "1")

    assert handle.get(30).err.error_code == "WORKER_CRASHED"

    (attempt,) = TaskAttempt.objects.filter(task=handle.id)
    assert attempt.started_at > unblocked_at()
    assert Task.objects.get(pk=handle.id).started_at == attempt.started_at
