"""The options of Unique, and the keys that it gives to calls."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from horsies_django import TaskStatus, Unique, task
from horsies_django.core.compat import InvalidTask
from horsies_django.core.unique import UniqueUntil
from horsies_django.models import Task
from tests.enqueue.dedupe import jobs

LIVE = {TaskStatus.PENDING, TaskStatus.CLAIMED, TaskStatus.RUNNING}


@pytest.mark.once
@pytest.mark.parametrize(
    ("options", "until"),
    [
        ({}, UniqueUntil.DONE),
        ({"on_conflict": "replace"}, UniqueUntil.STARTED),
        ({"on_conflict": "replace", "until": "done"}, UniqueUntil.DONE),
        ({"period": 60}, UniqueUntil.PERIOD),
        ({"period": 60, "until": "success"}, UniqueUntil.SUCCESS),
        ({"states": ("PENDING", "CLAIMED")}, UniqueUntil.STARTED),
        ({"states": LIVE}, UniqueUntil.DONE),
        ({"states": set(TaskStatus) - {TaskStatus.COMPLETED}}, UniqueUntil.SUCCESS),
        ({"states": set(TaskStatus), "period": "1h"}, UniqueUntil.PERIOD),
    ],
)
def test_until_is_derived_from_the_other_options(options, until):
    assert Unique(**options).until == until


@pytest.mark.once
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "args"}, "by is 'args'; allowed: a tuple of 'args'"),
        ({"by": ()}, "by is ()"),
        ({"by": (1,)}, "by is (1,)"),
        ({"key": ""}, "key is ''; allowed: a text"),
        ({"until": "soon"}, "until is 'soon'; allowed: 'started', 'done' or 'success'"),
        ({"until": "period"}, "until is 'period'"),
        ({"states": {"RUNNING"}}, "allowed: PENDING, CLAIMED; PENDING, CLAIMED, RUNNING; "),
        ({"states": set(TaskStatus)}, "all of them beside a period"),
        ({"states": LIVE, "until": "started"}, "states says until 'done' and until is 'started'"),
        ({"period": 0}, "period is 0; allowed: seconds above 0"),
        ({"period": "an hour"}, "period is 'an hour'"),
        ({"on_conflict": "wait"}, "on_conflict is 'wait'; allowed: 'skip', 'replace', 'raise'"),
        ({"wait": 5}, "Unique.debounce()"),
        ({"wait": 5, "on_conflict": "replace", "until": "done"}, "Unique.debounce()"),
        ({"max_wait": 5}, "allowed: beside wait"),
    ],
)
def test_a_bad_option_raises_one_error_with_the_allowed_values(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Unique(**options)


@pytest.mark.once
def test_max_wait_must_not_be_shorter_than_wait():
    with pytest.raises(ValueError, match="max_wait"):
        Unique.debounce(60, max_wait=59)
    assert Unique.debounce("1m", max_wait=60).limit == timedelta(minutes=1)


@pytest.mark.once
@pytest.mark.parametrize(
    ("func", "unique", "message"),
    [
        (jobs.plain.func, "skip", "unique is 'skip'; allowed: a Unique, or None"),
        (jobs.plain.func, Unique(by=("user",)), "by names 'user'; allowed: user_id, page, note"),
        (jobs.plain.func, Unique(key="{user}"), "key names 'user'"),
        (jobs.queue_named.func, Unique(by=("queue",)), "by names 'queue', which is a parameter as well"),
        (jobs.with_context.func, Unique(by=("context",)), "by names 'context'"),
    ],
)
def test_the_decorator_refuses_unique_options_that_do_not_fit_the_function(func, unique, message):
    with pytest.raises(InvalidTask) as caught:
        task(unique=unique, takes_context=func is jobs.with_context.func)(func)

    assert message in str(caught.value)


@pytest.mark.once
def test_a_debounced_task_refuses_run_after_and_schedule():
    debounced = jobs.plain.with_options(unique=Unique.debounce(5))

    with pytest.raises(InvalidTask, match="allowed: one of them"):
        debounced.with_options(run_after=timezone.now() + timedelta(days=1))
    with pytest.raises(InvalidTask, match="allowed: one of them"):
        debounced.schedule(60, 1)


def key_of(unique, *args, job=jobs.plain, **kwargs):
    return Task.objects.get(pk=job.with_options(unique=unique).send(*args, **kwargs).id).unique_key


@pytest.mark.django_db
@pytest.mark.once
@pytest.mark.parametrize(
    ("unique", "call", "same", "other"),
    [
        (Unique(), ((1,), {}), ((), {"user_id": 1, "page": 1, "note": ""}), ((1,), {"note": "x"})),
        (Unique(by=("args", "kwargs")), ((1,), {}), ((), {"user_id": 1}), ((2,), {})),
        (Unique(by=("user_id",)), ((1,), {}), ((1, 2), {"note": "x"}), ((2,), {})),
        (Unique(by=("page", "user_id")), ((1,), {}), ((), {"page": 1, "user_id": 1}), ((1, 2), {})),
        (Unique(key="user {user_id}"), ((1,), {}), ((1, 2), {}), ((2,), {})),
        (Unique(key=lambda user_id, page=1, note="": f"{user_id}"), ((1,), {}), ((1, 2), {}), ((2,), {})),
        (Unique(by=("note",)), ((1,), {"note": "x" * 500}), ((2,), {"note": "x" * 500}), ((1,), {"note": "x" * 501})),
    ],
)
def test_calls_with_equal_key_arguments_are_duplicates_however_they_are_passed(unique, call, same, other):
    job = jobs.plain.with_options(unique=unique)

    first, again, another = (job.send(*args, **kwargs) for args, kwargs in (call, same, other))

    assert (again.id, again.replayed) == (first.id, True)
    assert another.replayed is False


@pytest.mark.django_db
@pytest.mark.once
def test_a_key_can_consist_of_the_task_alone_or_of_task_and_queue():
    alone = jobs.plain.with_options(unique=Unique(by=("task",)))
    by_queue = jobs.anything.with_options(unique=Unique(by=("queue", "task")))

    assert alone.send(1) == alone.send(2)
    assert by_queue.send(1) == by_queue.send(2)
    assert by_queue.with_options(queue_name="other").send(3).replayed is False
    assert alone.with_options(queue_name="other").send(3).replayed is True


@pytest.mark.django_db
@pytest.mark.once
def test_variadic_arguments_are_part_of_the_key():
    job = jobs.anything.with_options(unique=Unique())
    by_name = jobs.anything.with_options(unique=Unique(by=("a",), until="success"))

    assert job.send(1, a=2) == job.send(1, a=2)
    assert job.send(1, a=3).replayed is False
    assert job.send(1, 2, a=2).replayed is False
    assert by_name.send(7, a=1) == by_name.send(8, a=1)
    assert by_name.send(7, a=2).replayed is False


@pytest.mark.django_db
@pytest.mark.once
def test_a_key_is_readable_unless_it_is_long_nested_or_sensitive():
    assert key_of(Unique(by=("user_id", "page")), 7) == 'tests.enqueue.dedupe.jobs.plain {"page":1,"user_id":7}'
    assert key_of(Unique(by=("user_id", "queue")), 7) == 'tests.enqueue.dedupe.jobs.plain@default {"user_id":7}'
    assert key_of(Unique(by=("task",)), 7) == "tests.enqueue.dedupe.jobs.plain"
    assert key_of(Unique(key="user {user_id}"), 7) == "user 7"
    for hashed in (
        key_of(Unique(), "DE02", job=jobs.pay),
        key_of(Unique(by=("a",)), job=jobs.anything, a={"password": "DE02"}),
        key_of(Unique(by=("password",)), job=jobs.anything, password="DE02"),
        key_of(Unique(), 1, note="DE02" + "é" * 300),
    ):
        assert "DE02" not in hashed
        assert " #" in hashed
        assert len(hashed) < 255


@pytest.mark.django_db
@pytest.mark.once
@pytest.mark.parametrize("returned", [5, "", "x" * 256, "a\0b"])
def test_a_callable_that_returns_an_invalid_key_is_refused(returned):
    with pytest.raises(ValueError, match=r"the unique key of tests\.enqueue\.dedupe\.jobs\.plain is "):
        jobs.plain.with_options(unique=Unique(key=lambda *_, **__: returned)).send(1)
    assert not Task.objects.exists()


@pytest.mark.django_db
@pytest.mark.once
def test_the_unique_key_of_one_call_replaces_the_computed_key():
    job = jobs.plain.with_options(unique=Unique(until="success"), unique_key="mine")

    row = Task.objects.get(pk=job.send(1).id)

    assert (row.unique_key, row.unique_until) == ("mine", "success")
    assert job.send(2).replayed is True
