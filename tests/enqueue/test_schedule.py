"""``schedule()`` and ``aschedule()``: sends with a delay or a due time."""

import datetime

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.utils import timezone

from horsies_django import TaskStatus
from horsies_django.core.compat import InvalidTask
from horsies_django.models import Task
from tests.conftest import wait_until
from tests.enqueue import jobs

HOUR = datetime.timedelta(hours=1)


def aschedule(*args):
    return async_to_sync(jobs.triple.aschedule)(*args)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("schedule", [jobs.triple.schedule, aschedule])
@pytest.mark.parametrize("delay", [3_600, 3_600.0, HOUR], ids=repr)
def test_a_delay_counts_from_the_time_of_the_call(schedule, delay):
    schedule(delay, 1)

    row = Task.objects.get()

    assert abs(row.enqueued_at - row.sent_at - HOUR) < datetime.timedelta(seconds=1)
    assert abs(timezone.now() - row.sent_at) < datetime.timedelta(minutes=1)
    assert row.run_after == row.enqueued_at
    assert list(Task.objects.scheduled()) == [row]
    assert not Task.objects.due().exists()


@pytest.mark.django_db
def test_a_delay_may_be_a_fraction_of_a_second():
    jobs.triple.schedule(0.25, 1)

    row = Task.objects.get()

    assert abs((row.enqueued_at - row.sent_at).total_seconds() - 0.25) < 0.1


@pytest.mark.django_db
@pytest.mark.parametrize("hours", [-5.5, 0, 9])
def test_a_due_time_of_any_time_zone_is_stored_to_the_microsecond(hours):
    eta = datetime.datetime(2031, 3, 30, 2, 30, 0, 123456, datetime.timezone(datetime.timedelta(hours=hours)))

    jobs.triple.schedule(eta, 1)

    row = Task.objects.get()
    assert row.enqueued_at == row.run_after == eta
    assert list(Task.objects.scheduled()) == [row]


@pytest.mark.django_db
def test_a_task_sent_without_a_time_is_due_at_once():
    jobs.triple.send(1)

    row = Task.objects.get()

    assert row.run_after is None
    assert list(Task.objects.due()) == [row]


@pytest.mark.parametrize(
    "delay", [0, 0.0, datetime.timedelta(0), timezone.now() - HOUR], ids=["0", "0.0", "timedelta", "past"]
)
def test_a_task_scheduled_without_delay_or_in_the_past_runs(drain, delay):
    handle = jobs.triple.schedule(delay, 1)

    drain()

    assert handle.value(0) == [1, 2, 3]


def test_a_task_that_is_not_due_does_not_run(drain):
    later, now = jobs.triple.schedule(600, 1), jobs.triple.send(2)

    drain()

    assert (later.status(), now.status()) == (TaskStatus.PENDING, TaskStatus.COMPLETED)


@pytest.mark.django_db
def test_the_delay_of_schedule_overrides_run_after():
    job = jobs.triple.with_options(run_after=timezone.now() + 5 * HOUR, priority=4)

    job.schedule(HOUR, 1)

    row = Task.objects.get()
    assert abs(row.enqueued_at - row.sent_at - HOUR) < datetime.timedelta(seconds=1)
    assert row.priority == 4


@pytest.mark.django_db
def test_schedule_does_not_delay_later_sends():
    jobs.triple.schedule(600, 1)

    jobs.triple.send(1)

    assert Task.objects.due().count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize("value", ["tomorrow", None, True, [60], datetime.date(2030, 1, 1), 5j], ids=repr)
def test_schedule_raises_type_error_for_a_value_that_is_not_a_time(value):
    with pytest.raises(TypeError) as caught:
        jobs.triple.schedule(value, 1)

    assert f"schedule() got {value!r}; allowed: seconds, a timedelta or an aware datetime." in str(caught.value)
    assert not Task.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("value", [-1, -0.5, datetime.timedelta(seconds=-1)], ids=repr)
def test_a_negative_delay_is_refused(value):
    with pytest.raises(InvalidTask, match="allowed: an aware datetime or a timedelta from 0 on"):
        jobs.triple.schedule(value, 1)

    assert not Task.objects.exists()


@pytest.mark.django_db
def test_a_naive_datetime_is_refused():
    with pytest.raises(InvalidTask, match="aware datetime"):
        jobs.triple.schedule(datetime.datetime(2030, 1, 1), 1)

    assert not Task.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300, 10**15], ids=repr)
def test_a_delay_that_a_timedelta_cannot_hold_is_refused(value):
    with pytest.raises((InvalidTask, TypeError, ValueError), match="allowed: "):
        jobs.triple.schedule(value, 1)

    assert not Task.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("value", [datetime.timedelta.max, datetime.timedelta(days=3_000_000)], ids=str)
def test_a_delay_past_the_year_9999_is_refused_without_a_query(value, django_assert_num_queries):
    with (
        django_assert_num_queries(0),
        pytest.raises((InvalidTask, TypeError, ValueError), match="allowed: "),
    ):
        jobs.triple.schedule(value, 1)

    assert not Task.objects.exists()


@pytest.mark.django_db
def test_schedule_checks_arguments_at_once():
    with pytest.raises(TypeError, match="'a'"):
        jobs.triple.schedule(60)

    assert not Task.objects.exists()


@pytest.mark.slow
def test_an_idle_worker_starts_a_delayed_task_when_it_is_due(worker):
    # Without LISTEN a worker finds new tasks only when it polls.
    can_listen = connection.vendor == "postgresql"
    worker("--poll-interval", "60" if can_listen else "1")

    def starts_on_time():
        handle = jobs.triple.schedule(0.5, 1)
        assert handle.get(30).is_ok()
        info = handle.info()
        late = (info.started_at - info.enqueued_at).total_seconds()
        assert late >= 0
        return late < (0.3 if can_listen else 1.3)

    wait_until(starts_on_time)  # the machine may stall during some of the starts
