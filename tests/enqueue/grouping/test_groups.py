"""Calls are gathered by key until a size, an age or a quiet time, and then one run gets them as a list."""

import datetime
import enum
import os
import signal
import threading
from collections import Counter

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.db.models.functions import Now
from django.utils import timezone

from horsies_django import Gather, TaskStatus, reclaim, task
from horsies_django.core.compat import InvalidTask
from horsies_django.models import Task, TaskAttempt, TaskItem, Worker
from tests.conftest import wait_until
from tests.enqueue.grouping import jobs
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)


LATER = datetime.timedelta(hours=1)


def calls_of(handle):
    return list(TaskItem.objects.filter(task=handle.id).order_by("position").values_list("kwargs", flat=True))


def test_calls_with_one_key_form_one_task_that_runs_when_it_is_full(drain):
    handles = [jobs.three.send(key="a", value=value) for value in range(2)]
    drain()
    assert {handle.status() for handle in handles} == {TaskStatus.PENDING}

    handles.append(jobs.three.send(key="a", value=2))
    drain()

    assert len({handle.id for handle in handles}) == 1
    assert [handle.value(timeout=0) for handle in handles] == [[0, 1, 2]] * 3
    assert not any(handle.replayed for handle in handles)


def make_due():
    """Make every scheduled task due."""
    Task.objects.scheduled().update(enqueued_at=Now(), run_after=Now())


def group_of(handle):
    return Task.objects.get(pk=handle.value(timeout=0))


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_delayed_call_joins_the_group_of_its_key_when_it_is_due(drain):
    delayed = jobs.three.schedule(LATER, key="a", value=9)
    first = jobs.three.send(key="a", value=1)
    drain()
    assert (delayed.status(), calls_of(first)) == (TaskStatus.PENDING, [{"key": "a", "value": 1}])

    Task.objects.filter(pk=delayed.id).update(enqueued_at=Now())
    drain()
    jobs.three.send(key="a", value=3)
    drain()

    assert group_of(delayed).pk == first.id
    assert first.value(timeout=0) == [1, 9, 3]


@pytest.mark.slow
@pytest.mark.sqlite
def test_delayed_calls_open_groups_of_functions_and_of_coroutines(drain):
    many = jobs.three.with_options(run_after=LATER).send_many({"key": "a", "value": value} for value in range(4))
    async_calls = [jobs.coroutine.with_options(run_after=LATER).send(value=value) for value in (5, 6)]
    assert (Task.objects.scheduled().count(), TaskItem.objects.count()) == (6, 0)

    make_due()
    # A call that waits too long for a group that another call is joining tries again a moment later.
    wait_until(lambda: drain() or all(handle.status().is_terminal for handle in [*many, *async_calls]))

    groups = Counter(group_of(handle).pk for handle in many)
    assert sorted(groups.values()) == [1, 3]
    assert [group_of(handle).is_async for handle in async_calls] == [True, True]
    assert sorted(Task.objects.get(pk=group_of(async_calls[0]).pk).result["ok"]) == [1, 5, 6]


def test_a_delayed_call_gives_its_queue_and_options_to_its_group(drain):
    job = jobs.three.with_options(queue_name="emails", priority=7, timeout=9, retention=60, metadata={"tenant": "acme"})
    delayed = job.schedule(LATER, key="a", value=1)

    make_due()
    drain()

    group = group_of(delayed)
    assert (group.queue_name, group.priority, group.timeout, group.metadata) == ("emails", 7, 9.0, {"tenant": "acme"})
    assert (group.retention, group.max_retries) == (datetime.timedelta(seconds=60), 0)


def test_an_overdue_call_joins_its_group_and_a_cancelled_one_never_does(drain):
    overdue = jobs.three.with_options(run_after=timezone.now() - LATER).send(key="a", value=1)
    cancelled = jobs.three.schedule(LATER, key="a", value=2)
    assert cancelled.cancel()

    make_due()
    drain()

    assert calls_of_group(overdue) == [{"key": "a", "value": 1}]


def calls_of_group(handle):
    return list(TaskItem.objects.filter(task=handle.value(timeout=0)).values_list("kwargs", flat=True))


def test_a_delayed_call_gives_its_backend_to_its_group(drain, settings):
    settings.TASKS = {**settings.TASKS, "other": settings.TASKS["default"]}
    delayed = jobs.three.using(backend="other").schedule(LATER, key="a", value=1)

    make_due()
    drain()

    assert group_of(delayed).backend == "other"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda send: send(jobs.by_kind, kind=Text.RED), "is 'Text.RED', and once the call is stored it is 'red'"),
        (lambda send: send(jobs.by_kind, kind=(1, 2)), "allowed: a key that stays the same"),
        (lambda send: send(jobs.by_colour, colour=Text.RED), "has no attribute 'value'"),
    ],
)
def test_a_delayed_call_is_refused_if_storing_it_changes_its_key(call, message):
    with pytest.raises(ValueError, match="the key of a call for later") as caught:
        call(lambda task, **kwargs: task.schedule(LATER, **kwargs))

    assert message in str(caught.value)
    call(lambda task, **kwargs: task.send(**kwargs))
    assert Task.objects.get().item_count == 1


class Text(str, enum.Enum):  # noqa: UP042  # not StrEnum: format() gives a member's name
    RED = "red"


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_a_delayed_call_holds_no_slot_while_a_sender_locks_its_group(worker):
    first = jobs.mail.send(customer_id=1, text="x")
    is_held, may_commit = threading.Event(), threading.Event()

    def hold_group():
        try:
            with transaction.atomic():
                jobs.mail.send(customer_id=1, text="y")
                is_held.set()
                may_commit.wait(300)
        finally:
            connection.close()

    sender = threading.Thread(target=hold_group)
    sender.start()
    try:
        assert is_held.wait(20)
        mail_now = jobs.mail.with_options(run_after=datetime.timedelta())
        many = mail_now.send_many({"customer_id": 1, "text": text} for text in "ab")
        worker("--threads", "1", "--shutdown-timeout", "1")
        assert [tasks.noop.send().get(timeout=20).is_ok() for _ in range(3)] == [True] * 3
        assert not any(handle.status().is_terminal for handle in many)
    finally:
        may_commit.set()
        sender.join(20)

    assert [handle.value(timeout=20) for handle in many] == [str(first.id)] * 2
    assert sorted(call["text"] for call in calls_of(first)) == ["a", "b", "x", "y"]
    assert set(Task.objects.filter(pk__in=[handle.id for handle in many]).values_list("attempt", flat=True)) <= {1}


@pytest.mark.slow
def test_delayed_calls_join_exactly_once_though_a_worker_is_killed(worker):
    count = 150
    due_now = jobs.three.with_options(run_after=datetime.timedelta())
    delayed = list(due_now.send_many({"key": "a", "value": value} for value in range(count - 10)))
    delayed += jobs.three.with_options(run_after=LATER).send_many(
        {"key": "a", "value": value} for value in range(count - 10, count)
    )
    killed = worker("--threads", "4")
    wait_until(lambda: TaskItem.objects.exists())
    os.killpg(killed.process.pid, signal.SIGKILL)
    killed.wait()
    assert TaskItem.objects.count() < count  # even if the kill was late

    joins = Task.objects.filter(pk__in=[handle.id for handle in delayed])
    joins.scheduled().update(enqueued_at=Now(), run_after=Now())
    wait_until(lambda: reclaim(0.5) >= 0 and not Task.objects.active().exists())  # no live worker could be slow
    worker("--threads", "4")
    wait_until(lambda: joins.completed().count() == count)

    calls = TaskItem.objects.values_list("kwargs", flat=True)
    assert sorted(call["value"] for call in calls) == list(range(count))


def test_calls_with_different_keys_form_different_tasks(drain):
    one, other = jobs.mail.send(customer_id=1, text="x"), jobs.mail.send(customer_id=2, text="y")

    assert one.id != other.id
    assert Counter(Task.objects.values_list("group_key", flat=True)) == {"customer-1": 1, "customer-2": 1}
    assert (calls_of(one), calls_of(other)) == ([{"customer_id": 1, "text": "x"}], [{"customer_id": 2, "text": "y"}])


@pytest.mark.slow
def test_a_worker_runs_a_group_once_it_is_full_old_enough_or_quiet(worker):
    quiet, due_times = jobs.quiet.send(), Task.objects.values_list("enqueued_at", flat=True)
    first_due = due_times.get(pk=quiet.id)
    jobs.quiet.send()
    assert due_times.get(pk=quiet.id) > first_due
    worker("--poll-interval", "0.2")
    old = [jobs.soon.send(value=value) for value in range(3)]
    full = [async_to_sync(jobs.coroutine.asend)(value=value) for value in (1, 2)]

    assert full[0].value(timeout=20) == [1, 1, 2]
    assert sorted(value for handle in set(old) for value in handle.value(timeout=20)) == [0, 1, 2]
    assert quiet.value(timeout=20) == 2


def test_quiet_never_delays_a_group_beyond_max_delay():
    job = task_with(Gather("x", max_delay=200, quiet=150))
    handle = job.send(value=1)
    Task.objects.update(sent_at=Now() - datetime.timedelta(seconds=100))

    job.send(value=2)

    row = Task.objects.get(pk=handle.id)
    assert (row.enqueued_at - row.sent_at).total_seconds() == pytest.approx(200, abs=0.01)
    assert row.deferred


def test_a_call_that_joins_an_overdue_group_leaves_it_due():
    job = task_with(Gather("x", max_delay=2, quiet=1.5))
    handle = job.send(value=1)
    Task.objects.update(sent_at=Now() - datetime.timedelta(seconds=5))

    job.send(value=2)

    assert not Task.objects.get(pk=handle.id).deferred
    assert Task.objects.due().count() == 1


def task_with(gather):
    return task(gather=gather)(jobs.soon.func)


def test_the_first_claim_closes_a_group_for_good():
    first = jobs.mail.send(customer_id=1)
    Task.objects.update(enqueued_at=Now(), deferred=False)
    with transaction.atomic():
        claims = Task.objects.claim("w", start=0, prefetch=1)

    second = jobs.mail.send(customer_id=1)
    Task.objects.release(claims, "w")
    third = jobs.mail.send(customer_id=1)

    assert (first.id != second.id, second.id) == (True, third.id)
    assert [len(calls_of(handle)) for handle in (first, second)] == [1, 2]
    assert set(Task.objects.values_list("status", flat=True)) == {TaskStatus.PENDING}


def test_a_manual_retry_runs_the_same_calls_and_takes_no_more(drain):
    first = jobs.three.send(key="a", value=1)
    first.cancel()
    other = jobs.three.send(key="a", value=2)

    assert first.retry()
    drain()

    assert first.value(timeout=0) == [1]
    assert other.status() is TaskStatus.PENDING


def test_a_rollback_removes_a_call_from_its_group():
    before = jobs.three.send(key="a", value=1)
    with transaction.atomic():
        jobs.three.send(key="a", value=2)
        jobs.three.send(key="b", value=2)
        transaction.set_rollback(True)

    assert [calls_of(before), Task.objects.count()] == [[{"key": "a", "value": 1}], 1]
    assert Task.objects.get().item_count == 1


def test_send_many_fills_several_groups_and_returns_a_handle_per_call(drain):
    calls = [{"key": "ab"[number % 2], "value": number} for number in range(14)]

    handles = jobs.three.send_many(calls)

    sizes = Counter(handle.id for handle in handles)
    assert sorted(sizes.values()) == [1, 1, 3, 3, 3, 3]
    drain()
    assert all(
        call["value"] in handle.value(timeout=0)
        for call, handle in zip(calls, handles, strict=True)
        if sizes[handle.id] == 3
    )


def test_enqueue_returns_the_result_of_the_shared_task(drain):
    results = [jobs.three.enqueue(key="a", value=value) for value in range(3)]
    drain()

    results[0].refresh()
    assert len({result.id for result in results}) == 1
    assert results[0].return_value == [0, 1, 2]


@pytest.mark.slow
def test_a_worker_that_dies_loses_no_call(worker, tmp_path):
    worker("--processes", "1")
    handles = jobs.kill_runner_once.send_many({"path": str(tmp_path / "died"), "value": value} for value in (1, 2))

    assert handles[0].value(timeout=40) == [1, 2]
    assert TaskAttempt.objects.filter(task=handles[0].id).count() == 2


def test_deleting_a_task_deletes_its_items(drain):
    handle = jobs.three.send_many([{"key": "a", "value": 1}] * 3)[0]
    drain()

    Task.objects.filter(pk=handle.id).delete()

    assert not TaskItem.objects.exists()


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("count", [50])
def test_fifty_concurrent_senders_lose_no_call_and_overfill_no_group(count, drain):
    barrier, errors = threading.Barrier(count), []

    def send(number):
        try:
            barrier.wait(30)
            jobs.three.send(key="k", value=number)
        except Exception as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=send, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert not errors
    assert sorted(TaskItem.objects.values_list("kwargs__value", flat=True)) == list(range(count))
    assert Counter(Task.objects.values_list("item_count", flat=True)) == {3: 16, 2: 1}
    assert not Task.objects.exclude(item_count__lte=3).exists()
    drain()
    assert sum(len(row["ok"]) for row in Task.objects.filter(item_count=3).values_list("result", flat=True)) == 48


@pytest.mark.slow
def test_every_call_runs_once_while_senders_race_claims_and_runners_are_killed(worker):
    worker("--processes", "2", "--threads", "2", runners=2)
    errors = []

    def send(sender):
        try:
            for number in range(30):
                jobs.busy.send(value=sender * 100 + number)
        except Exception as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=send, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: Task.objects.filter(status=TaskStatus.COMPLETED).exists())
    for pid in Worker.objects.values_list("pid", flat=True):
        os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join(60)

    assert not errors
    wait_until(lambda: not Task.objects.exclude(status=TaskStatus.COMPLETED).exists(), limit=60)
    rows = Task.objects.values_list("result", "item_count")
    assert all(len(result["ok"]) == count <= 7 for result, count in rows)
    sent = [sender * 100 + number for sender in range(8) for number in range(30)]
    assert sorted(value for result, _ in rows for value in result["ok"]) == sent


# Errors.


@pytest.mark.once
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"by": "  "}, "by is '  '"),
        ({"by": "{0}{"}, "by is"),
        ({"by": 7}, "by is 7"),
        ({"by": "x", "max_size": 0}, "max_size is 0; allowed: a whole number from 1 to 10,000"),
        ({"by": "x", "max_delay": -1}, "max_delay is -1; allowed: seconds above 0"),
        ({"by": "x", "quiet": "soon"}, "quiet is 'soon'"),
        ({"by": "x", "max_delay": None}, "might wait for ever"),
    ],
)
def test_gather_refuses_invalid_fields(fields, message):
    with pytest.raises(ValueError, match="Gather: ") as caught:
        Gather(**fields)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("send", "message"),
    [
        (lambda: jobs.mail.send(5), "keyword arguments only"),
        (lambda: jobs.mail.send(text="x"), "needs 'customer_id', which is not among the arguments of the call: text"),
        (lambda: jobs.three.send(key=" ", value=1), "the key of a call is blank"),
        (lambda: jobs.three.send(key="x" * 300, value=1), "a text of 1 to 255 characters"),
        (lambda: jobs.three.send(key="x", value=object()), "argument 'value'"),
        (lambda: jobs.three.schedule(60, key=" ", value=1), "the key of a call is blank"),
        (lambda: jobs.three.with_options(run_after=LATER).send_many([{"value": 1}]), "needs 'key', which is not among"),
        (lambda: jobs.three.with_options(unique_key="u").send(key="x", value=1), "unique_key is 'u'; allowed: None"),
        (
            lambda: jobs.three.with_options(good_until=timezone.now()).send(key="x", value=1),
            "tests.enqueue.grouping.jobs.three groups its calls",
        ),
    ],
)
def test_an_invalid_call_of_a_gathering_task_is_refused_and_not_stored(send, message):
    with pytest.raises((TypeError, ValueError, InvalidTask)) as caught:
        send()

    assert message in str(caught.value)
    assert (Task.objects.count(), TaskItem.objects.count()) == (0, 0)


@pytest.mark.once
def test_a_gathering_function_must_take_one_list_of_calls():
    def two(items, more):
        """Take two arguments, one too many."""

    with pytest.raises(InvalidTask, match="allowed: one list of calls"):
        task(gather=Gather("x"))(as_module_level(two))
    with pytest.raises(InvalidTask, match="gather is 'x'; allowed: a Gather"):
        task(gather="x")(jobs.mail.func)


def as_module_level(function):
    function.__qualname__ = function.__name__
    return function


def test_a_key_may_come_from_a_callable():
    by_tens = task(gather=Gather(lambda value, **_: value // 10))(jobs.soon.func)

    handles = [by_tens.send(value=value) for value in (1, 5, 12)]

    assert [len(calls_of(handle)) for handle in handles] == [2, 2, 1]
    assert sorted(Task.objects.values_list("group_key", flat=True)) == ["0", "1"]
