"""Each send makes one row, in the caller's transaction and with one INSERT."""

import datetime
from unittest.mock import patch

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction
from django.db.models.signals import post_save
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from horsies_django import RetryPolicy, TaskHandle, TaskStatus, Unique, task
from horsies_django.core.compat import InvalidTask
from horsies_django.models import Task, TaskAttempt
from tests.enqueue import jobs
from tests.jobs.models import Entry
from tests.naming import stable

FIXED = RetryPolicy.fixed([7, 8], auto_retry_for=["X"], jitter=False)


def statements(captured):
    """Return the captured statements without BEGIN and COMMIT."""
    return [query["sql"] for query in captured if query["sql"].split()[0] not in ("BEGIN", "COMMIT")]


SENDS = {
    "send": lambda: jobs.triple.send(1),
    "asend": lambda: async_to_sync(jobs.triple.asend)(1),
    "schedule": lambda: jobs.triple.schedule(60, 1),
    "aschedule": lambda: async_to_sync(jobs.triple.aschedule)(60, 1),
    "send_many": lambda: jobs.triple.send_many([{"a": 1}]),
    "asend_many": lambda: async_to_sync(jobs.triple.asend_many)([{"a": 1}]),
    "enqueue": lambda: jobs.triple.enqueue(1),
    "unique": lambda: jobs.triple.with_options(unique_key="k").send(1),
}


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.django_db
def test_a_sent_row_has_the_arguments_the_options_and_the_time():
    before = timezone.now()

    handle = jobs.with_every_option.send(a=[5])

    row = Task.objects.get()
    assert row.pk == handle.id
    assert (row.task_name, row.args, row.kwargs) == ("tests.enqueue.jobs.with_every_option", [], {"a": [5]})
    assert (row.queue_name, row.priority, row.timeout, row.metadata) == ("slow", 3, 30, {"team": "a"})
    assert row.retention == datetime.timedelta(days=7)
    assert (row.status, row.claim, row.attempt, row.retry_count, row.max_retries) == ("PENDING", 0, 0, 0, 2)
    assert row.sent_at == row.enqueued_at
    assert abs(row.sent_at - before) < datetime.timedelta(minutes=1)
    assert {row.claimed_at, row.started_at, row.completed_at, row.failed_at, row.next_retry_at} == {None}


@pytest.mark.django_db
def test_the_default_priority_of_a_task_is_0():
    jobs.triple.send(1)

    row = Task.objects.get()

    assert row.priority == 0


@pytest.mark.django_db
def test_a_handle_made_from_the_id_equals_the_sent_one_without_a_query(django_assert_num_queries):
    with transaction.atomic():
        handle = jobs.triple.send(1)

    with django_assert_num_queries(0):
        copy = TaskHandle(str(handle.id))
        same = copy == handle

    assert same
    assert Task.objects.get().pk == copy.id


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("method", SENDS)
def test_a_send_in_a_rolled_back_transaction_leaves_no_task(method):
    with transaction.atomic():
        SENDS[method]()
        inside = Task.objects.count()
        transaction.set_rollback(True)

    assert inside == 1
    assert Task.objects.count() == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("method", SENDS)
def test_a_send_in_a_committed_transaction_leaves_one_task(method):
    with transaction.atomic():
        SENDS[method]()

    assert Task.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_savepoint_removes_only_its_own_task():
    with transaction.atomic():
        kept = jobs.triple.send(1)
        with transaction.atomic():
            jobs.triple.send(2)
            transaction.set_rollback(True)

    assert [row.pk for row in Task.objects.all()] == [kept.id]


def test_a_committed_task_runs_and_a_rolled_back_one_does_not(drain):
    with transaction.atomic():
        lost = jobs.identity.send("lost")
        transaction.set_rollback(True)
    with transaction.atomic():
        kept = jobs.identity.send("kept")

    drain()

    assert kept.value(0) == "kept"
    assert lost.status() is None


@pytest.mark.django_db(transaction=True)
def test_a_task_sent_by_a_signal_handler_is_rolled_back_with_the_saved_row():
    stored = []

    def send_after_save(instance, **kwargs):
        handle = jobs.identity.send(instance.pk)
        stored.append((handle.id, handle.status()))

    post_save.connect(send_after_save, Entry)
    try:
        with transaction.atomic():
            kept = Entry.objects.create(key="kept")
        with transaction.atomic():
            Entry.objects.create(key="lost")
            transaction.set_rollback(True)
    finally:
        post_save.disconnect(send_after_save, Entry)

    assert [status for _, status in stored] == [TaskStatus.PENDING] * 2
    assert list(Task.objects.values_list("pk", "args")) == [(stored[0][0], [kept.pk])]


# The cost of a send.


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("method", ["send", "asend", "send_many", "enqueue"])
def test_a_send_is_one_insert_and_at_most_one_notification(method):
    with CaptureQueriesContext(connection) as captured:
        SENDS[method]()

    first, *others = statements(captured)
    assert first.startswith("INSERT")
    assert len(others) <= (connection.vendor == "postgresql")
    assert all("pg_notify" in sql for sql in others)


@pytest.mark.django_db
@pytest.mark.parametrize("options", [{}, {"priority": 5, "queue_name": "q", "timeout": 3.5, "metadata": {"x": 1}}])
def test_a_send_in_a_transaction_is_one_statement(django_assert_num_queries, options):
    job = jobs.triple.with_options(**options)

    with transaction.atomic(), django_assert_num_queries(1):
        job.send(1, c={"deep": [1, 2]})

    assert Task.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize("delay", [60, datetime.timedelta(minutes=1)])
def test_a_send_with_a_delay_in_a_transaction_is_one_statement(django_assert_num_queries, delay):
    with transaction.atomic(), django_assert_num_queries(1):
        jobs.triple.schedule(delay, 1)

    assert Task.objects.count() == 1


@pytest.mark.django_db
def test_a_send_with_a_due_time_in_a_transaction_is_one_statement(django_assert_num_queries):
    eta = timezone.now() + datetime.timedelta(minutes=1)

    with transaction.atomic(), django_assert_num_queries(1):
        jobs.triple.schedule(eta, 1)

    assert Task.objects.count() == 1


# with_options().


@pytest.mark.django_db
def test_with_options_returns_a_copy_and_does_not_change_the_task():
    deadline = timezone.now() + datetime.timedelta(hours=1)
    copy = jobs.triple.with_options(priority=9, queue_name="other", good_until=deadline, unique_key="k", timeout=2)

    copy.send(1)
    jobs.triple.send(1)

    changed, plain = Task.objects.order_by("pk")
    assert (changed.priority, changed.queue_name, changed.unique_key, changed.timeout) == (9, "other", "k", 2)
    assert changed.good_until == deadline
    assert (plain.priority, plain.queue_name, plain.unique_key, plain.timeout) == (0, "default", None, None)
    assert plain.good_until is None


@pytest.mark.django_db
def test_a_second_with_options_keeps_the_options_of_the_first():
    job = jobs.triple.with_options(priority=9).with_options(timeout=2)

    job.send(1)

    row = Task.objects.get()
    assert (row.priority, row.timeout) == (9, 2)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("option", "value", "column", "cleared"),
    [
        ("good_until", timezone.now() + datetime.timedelta(hours=1), "good_until", None),
        ("unique_key", "k", "unique_key", None),
        ("timeout", 5, "timeout", None),
        ("retention", "3d", "retention", datetime.timedelta(days=36_500)),
        ("metadata", {"x": 1}, "metadata", None),
        ("run_after", timezone.now() + datetime.timedelta(hours=1), "run_after", None),
        ("retry_policy", RetryPolicy.fixed([9], auto_retry_for=["X"]), "max_retries", 0),
    ],
)
def test_with_options_clears_an_option_set_to_none(option, value, column, cleared):
    job = jobs.with_every_option.with_options(**{option: value})

    job.send()
    job.with_options(**{option: None}).send()

    given, none = Task.objects.order_by("pk")
    assert getattr(given, column) != cleared
    assert getattr(none, column) == cleared


@pytest.mark.parametrize(("option", "default"), [("priority", 0), ("queue_name", "default"), ("backend", "default")])
def test_with_options_resets_a_framework_option_set_to_none(option, default):
    job = jobs.with_every_option.with_options(priority=5)

    copy = job.with_options(**{option: None})

    assert getattr(copy, option) == default


@pytest.mark.django_db
def test_a_calls_retry_policy_replaces_its_tasks_attempts_and_backoff():
    policy = RetryPolicy.fixed([7], auto_retry_for=["X"], jitter=False)

    jobs.with_attempts.with_options(retry_policy=policy).send()
    jobs.with_attempts.send()

    own, default = Task.objects.order_by("pk")
    assert (own.max_retries, own.retry_policy["intervals"], own.retry_policy["auto_retry_for"]) == (1, [7.0], ["X"])
    assert (default.max_retries, default.retry_policy["auto_retry_for"]) == (3, ["*"])


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("own", "of_call", "retries", "intervals"),
    [
        ({"max_attempts": 4}, {"max_attempts": 7}, 6, [2.0]),
        ({"max_attempts": 4}, {"max_attempts": 1}, 0, None),
        ({"max_attempts": 4}, {"retry_policy": None}, 0, None),
        ({"backoff": 5}, {"retry_policy": None}, 0, None),
        ({"max_attempts": 4, "backoff": 5}, {"max_attempts": 2}, 1, [5.0]),
        ({"max_attempts": 4}, {"backoff": 5}, 3, [5.0]),
        ({"retry_policy": FIXED}, {"max_attempts": 1}, 0, None),
        ({"retry_policy": FIXED}, {"max_attempts": 2}, 1, [7.0]),
        ({"retry_policy": FIXED}, {"max_attempts": 5}, 4, [7.0, 8.0, 8.0, 8.0]),
        ({"backoff": FIXED}, {"max_attempts": 2}, 1, [7.0]),
        ({"retry_policy": FIXED}, {"backoff": 5}, 2, [5.0]),
        ({"retry_policy": FIXED}, {"max_attempts": 5, "backoff": 5}, 4, [5.0]),
        ({"retry_policy": FIXED}, {"priority": 5}, 2, [7.0, 8.0]),
        ({}, {"max_attempts": 3}, 2, [2.0]),
        # A constant policy has the delay itself, also one that is outside the bounds of other policies.
        ({"backoff": 0.25}, {}, 2, [0.25]),
        ({"backoff": 200_000}, {}, 2, [200_000.0]),
    ],
    ids=repr,
)
def test_a_calls_retry_options_override_those_of_its_task(own, of_call, retries, intervals):
    job = task(**own)(jobs.triple.func)

    job.with_options(**of_call).send(1)

    row = Task.objects.get()
    assert row.max_retries == retries
    assert (row.retry_policy or {}).get("intervals") == intervals


@pytest.mark.parametrize("options", [{"max_attempts": 0}, {"max_attempts": "3"}, {"backoff": 0}, {"backoff": max}])
def test_with_options_refuses_bad_attempts_and_backoff_by_name(options):
    with pytest.raises(InvalidTask, match=f"{next(iter(options))} (of a call )?is "):
        jobs.triple.with_options(**options)


@pytest.mark.parametrize("name", ["eta", "delay", "good_untill", "func", "takes_context"])
def test_with_options_names_an_unknown_option_and_the_known_ones(name):
    with pytest.raises(TypeError) as caught:
        jobs.triple.with_options(**{name: 1})

    assert f"with_options() got unknown option {name}; allowed: " in str(caught.value)
    assert all(known in str(caught.value) for known in ("good_until", "priority", "run_after", "unique_key"))


@pytest.mark.django_db
@pytest.mark.parametrize(
    "value",
    [datetime.datetime(2030, 1, 1), "2030-01-01", 60, datetime.timedelta(hours=1), datetime.date(2030, 1, 1), True],
    ids=repr,
)
def test_good_until_must_be_an_aware_datetime(value):
    with pytest.raises(InvalidTask) as caught:
        jobs.triple.with_options(good_until=value).send(1)

    assert f"good_until is {value!r}; allowed: an aware datetime" in str(caught.value)
    assert not Task.objects.exists()


@pytest.mark.django_db
def test_each_send_is_checked_against_the_deadline():
    now = timezone.now()
    job = jobs.triple.with_options(
        run_after=datetime.timedelta(minutes=1), good_until=now + datetime.timedelta(minutes=2)
    )
    job.send(1)

    with patch.object(timezone, "now", return_value=now + datetime.timedelta(minutes=3)):
        for send in (lambda: job.send(1), lambda: job.send_many([{"a": 1}])):
            with pytest.raises(InvalidTask, match="good_until is"):
                send()

    assert Task.objects.count() == 1


@pytest.mark.django_db
def test_a_deadline_before_the_time_at_which_the_task_is_due_is_refused():
    now = timezone.now()
    job = jobs.triple.with_options(good_until=now + datetime.timedelta(minutes=5))

    for send in (
        lambda: job.schedule(600, 1),
        lambda: job.schedule(now + datetime.timedelta(minutes=5, seconds=1), 1),
        lambda: job.using(run_after=now + datetime.timedelta(minutes=6)).enqueue(1),
        lambda: job.with_options(run_after=datetime.timedelta(minutes=6)).send_many([{"a": 1}]),
        lambda: job.with_options(unique=Unique.debounce(600)).send(1),
        lambda: call_command(
            "horsies_task",
            "enqueue",
            jobs.triple.module_path,
            "--good-until=2031-01-01T00:00Z",
            "--at=2031-01-01T00:01Z",
            "--args=[1]",
        ),
    ):
        with pytest.raises((InvalidTask, CommandError), match=r"good_until.* is .*; allowed: a later good_until"):
            send()
    assert not Task.objects.exists()
    job.schedule(240, 1)
    assert Task.objects.count() == 1


def test_a_task_sent_after_its_deadline_expires(drain):
    job = jobs.triple.with_options(good_until=timezone.now() - datetime.timedelta(seconds=1))
    handle = job.send(1)

    drain(no_reaper=False)

    assert handle.status() == TaskStatus.EXPIRED
    assert handle.get(0).err.error_code == "TASK_EXPIRED"
    assert not TaskAttempt.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": "5"}, "timeout is '5'"),
        ({"retention": "a while"}, "'a while' is not a duration"),
        ({"retention": datetime.timedelta(days=-1)}, "is not a duration"),
        ({"retention": float("inf")}, "is not a duration"),
        ({"retention": "99999999999999w"}, "is not a duration"),
        ({"unique_key": ""}, "unique_key is ''"),
        ({"unique_key": "x" * 256}, "unique_key is 'xxx"),
        ({"unique_key": 5}, "unique_key is 5"),
        ({"unique_key": "a\0b"}, "unique_key is "),
        ({"unique_key": "\ud800"}, "unique_key is "),
        ({"queue_name": "a\0b"}, "queue_name is "),
        ({"queue_name": "\ud800"}, "queue_name is "),
        ({"queue_name": ""}, "queue_name is ''"),
        ({"retry_policy": "often"}, "retry_policy is 'often'"),
        ({"priority": 101}, "priority must be a whole number"),
        ({"metadata": 5}, "metadata is 5"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_bad_option_of_a_call_raises_invalid_task_and_inserts_nothing(options, message):
    with pytest.raises(InvalidTask) as caught:
        jobs.triple.with_options(**options).send(1)

    assert message in str(caught.value)
    assert not Task.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("metadata", [{"x": float("nan")}, {"x": "\0"}, {"x": object()}], ids=stable)
def test_unstorable_metadata_is_refused_by_name_and_inserts_nothing(metadata):
    with pytest.raises((TypeError, ValueError, InvalidTask), match="metadata"):
        jobs.triple.with_options(metadata=metadata).send(1)

    assert not Task.objects.exists()


# unique_key.


@pytest.mark.django_db
def test_a_send_with_a_taken_unique_key_returns_the_live_tasks_handle():
    unique = jobs.triple.with_options(unique_key="nightly")
    first = unique.send(1)

    second = unique.send(2)

    assert second == first
    assert Task.objects.get().args == [1]


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
def test_a_unique_key_makes_a_new_task_once_the_first_has_ended(drain, end):
    job = (jobs.fail if end == "failed" else jobs.acoroutine).with_options(unique_key="nightly")
    arguments = () if end == "failed" else (1,)
    first = job.send(*arguments)
    if end == "cancelled":
        first.cancel()
    drain()

    second = job.send(*arguments)

    assert first.status() == end.upper()
    assert second != first
    assert second.status() == TaskStatus.PENDING
    assert Task.objects.count() == 2


@pytest.mark.django_db
def test_a_taken_unique_key_leaves_the_callers_transaction_usable():
    unique = jobs.triple.with_options(unique_key="nightly")
    with transaction.atomic():
        first = unique.send(1)

        second = unique.send(2)
        third = jobs.triple.send(3)

    assert second == first
    assert {row.pk for row in Task.objects.all()} == {first.id, third.id}


@pytest.mark.django_db
def test_sends_with_different_unique_keys_or_none_make_separate_tasks():
    for key in ("a", "b", None, None):
        jobs.triple.with_options(unique_key=key).send(1)

    count = Task.objects.count()

    assert count == 4


@pytest.mark.django_db
def test_bad_arguments_are_refused_even_if_the_unique_key_is_taken():
    unique = jobs.triple.with_options(unique_key="nightly")
    unique.send(1)

    with pytest.raises(TypeError, match="'a'"):
        unique.send()

    assert Task.objects.count() == 1


# Constraints of the database.


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ({"status": "LOST"}, "horsies_task_status_is_known"),
        ({"status": "pending"}, "horsies_task_status_is_known"),
        ({"status": "COMPLETED"}, "horsies_completed_task_has_completed_at"),
        ({"status": "FAILED"}, "horsies_failed_task_has_failed_at"),
        ({"status": "CANCELLED"}, "horsies_cancelled_task_has_cancelled_at"),
        ({"status": "EXPIRED"}, "horsies_expired_task_has_expired_at"),
        ({"status": "EXPIRED", "completed_at": timezone.now()}, "horsies_expired_task_has_expired_at"),
        ({"priority": 101}, "horsies_task_priority_is_in_range"),
        ({"priority": -101}, "horsies_task_priority_is_in_range"),
    ],
)
def test_check_constraints_refuse_invalid_states_times_and_priorities(change, constraint):
    jobs.triple.send(1)

    with pytest.raises(DatabaseError, match=constraint), transaction.atomic():
        Task.objects.update(**change)

    assert Task.objects.get().status == TaskStatus.PENDING


@pytest.mark.django_db
def test_the_database_refuses_two_live_tasks_with_one_unique_key():
    live = {"task_name": "x", "unique_key": "k"}
    Task.objects.create(**live)

    Task.objects.create(**live, status="COMPLETED", completed_at=timezone.now())
    with pytest.raises(DatabaseError), transaction.atomic():
        Task.objects.create(**live, status="RUNNING")

    assert sorted(Task.objects.values_list("status", flat=True)) == ["COMPLETED", "PENDING"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "change", [{"attempt": 1}, {"attempt": 2, "outcome": "LOST"}], ids=["twice", "unknown outcome"]
)
def test_the_database_refuses_a_duplicate_attempt_and_an_unknown_outcome(change):
    task = Task.objects.create(task_name="x")
    times = dict.fromkeys(("due_at", "started_at", "finished_at"), task.sent_at)
    written = {"task": task, "attempt": 1, "outcome": "FAILED", **times}
    TaskAttempt.objects.create(**written)

    with pytest.raises(DatabaseError), transaction.atomic():
        TaskAttempt.objects.create(**{**written, **change})

    assert TaskAttempt.objects.count() == 1
