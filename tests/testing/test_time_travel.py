"""Moving the package's clock in a test."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.models import functions
from django.test import TestCase, TransactionTestCase
from django.utils import timezone

from horsies_django import TaskStatus, Workflow, sleep
from horsies_django.db import now
from horsies_django.db.clock import database_now
from horsies_django.models import Schedule, Task
from horsies_django.testing import drain, travel, travel_to
from tests.jobs.models import Entry
from tests.testing import jobs


class TravelCases:
    """What holds in a transaction that is rolled back, and without one."""

    @pytest.mark.slow
    def test_a_workflow_that_sleeps_a_schedule_and_a_retry_come_due_without_waiting(self):
        first = jobs.note.node()(key="before the sleep")
        pause = sleep(timedelta(days=1), waits_for=[first])
        handle = Workflow("sleeps", [first, pause, jobs.note.node(waits_for=[pause])(key="after it")]).start()
        Schedule.objects.create(
            name="nightly", task_name=jobs.note.task_name, kwargs={"key": "nightly"}, timing="every:86400"
        )
        retried = jobs.fail_twice.send("retried")

        assert drain(schedules=True).counts[TaskStatus.PENDING] == 1
        with travel(days=1, hours=1):
            drain(schedules=True)
            with travel(days=1, hours=1):
                drain(schedules=True)

        assert handle.status() == "COMPLETED"
        assert retried.value(0) == 3
        assert Entry.objects.filter(key="nightly").count() == 2

    def test_times_that_are_written_meanwhile_are_those_of_the_journey(self):
        when = datetime(2031, 5, 4, 12, tzinfo=UTC)
        with travel_to(when):
            handle = jobs.note.send("a")
            scheduled = jobs.note.schedule(60, "b")
            drain()
            moved = database_now("default")

        info = handle.info()
        for moment in (info.sent_at, info.started_at, info.completed_at, moved):
            assert when <= moment < when + timedelta(minutes=5)
        assert when + timedelta(seconds=60) <= scheduled.info().enqueued_at < when + timedelta(minutes=5)
        assert abs(database_now("default") - timezone.now()) < timedelta(hours=1)

    def test_scheduled_tasks_deadlines_and_unique_periods_pass(self):
        scheduled = jobs.note.schedule(timedelta(days=2), "scheduled")
        late = jobs.note.with_options(good_until=timezone.now() + timedelta(days=2)).schedule(timedelta(days=1), "late")
        once = jobs.once_a_day.send("once")

        with travel(days=3):
            again = jobs.once_a_day.send("once")
            drain()

        assert scheduled.status() == TaskStatus.COMPLETED
        assert late.status() == TaskStatus.EXPIRED
        assert once.id != again.id

    @pytest.mark.slow
    def test_a_task_is_deleted_when_its_retention_is_over(self):
        handle = jobs.kept_three_days.send()
        drain()

        with travel(days=2):
            drain()
            assert handle.status() == TaskStatus.COMPLETED
        with travel(days=4):
            drain()
            assert handle.status() is None

    @pytest.mark.slow
    def test_what_was_stored_while_the_clock_was_a_year_ahead_goes_on_after_the_documented_calls(self):
        with travel(days=365):
            sent, retried, once = jobs.note.send("sent"), jobs.fail_twice.send("retried"), jobs.once_a_day.send("once")
            asleep = Workflow("sleeps", [sleep(timedelta(days=1))]).start()
            drain(queues=["default"])
            waiting = jobs.note.send("waiting")
        drain()
        assert [one.status() for one in (sent, waiting, retried)] == ["COMPLETED", "PENDING", "PENDING"]
        assert (asleep.status(), jobs.once_a_day.send("once").id) == ("RUNNING", once.id)

        now = timezone.now()
        Task.objects.filter(sent_at__gt=now).run_now()
        Task.objects.retrying().run_now()
        Task.objects.engine_tasks().filter(sent_at__gt=now).pending().update(enqueued_at=now)
        Task.objects.filter(sent_at__gt=now, unique_expires_at__gt=now).update(unique_expires_at=now)
        drain()

        assert [one.status() for one in (waiting, asleep)] == ["COMPLETED", "COMPLETED"]
        assert retried.info().retry_count == 2
        assert jobs.once_a_day.send("once").id != once.id

    def test_the_same_send_before_within_and_after_a_journey_has_three_times(self):
        handles = [jobs.note.send("a") for _ in range(3)]
        with travel(days=10):
            handles += [jobs.note.send("a") for _ in range(3)]
        handles += [jobs.note.send("a") for _ in range(3)]

        sent = [handle.info().sent_at for handle in handles]
        assert [moment - sent[0] > timedelta(days=9) for moment in sent] == [False] * 3 + [True] * 3 + [False] * 3

    def test_rows_that_are_saved_by_hand_meanwhile_have_its_times(self):
        with travel(days=10):
            row = Schedule.objects.create(name="by hand", task_name=jobs.note.task_name, timing="every:86400")
        Schedule.objects.bulk_create([Schedule(name="later", task_name=jobs.note.task_name, timing="every:86400")])

        row.refresh_from_db()
        assert row.created_at - Schedule.objects.get(name="later").created_at > timedelta(days=9)

    @travel(days=10)
    def test_a_decorated_function_travels(self):
        assert database_now("default") - timezone.now() > timedelta(days=9)


class TravelInATestCase(TravelCases, TestCase):
    pass


@pytest.mark.slow
class TravelInATransactionTestCase(TravelCases, TransactionTestCase):
    pass


def test_a_journey_ends_with_its_block_whatever_is_raised():
    def fail_abroad():
        with travel(days=1):
            assert now.offset() == timedelta(days=1)
            raise LookupError

    with pytest.raises(LookupError):
        fail_abroad()

    assert now.offset() == timedelta()
    assert not now.is_moved()


@pytest.mark.parametrize("arguments", [((), {}), ((timedelta(1),), {"days": 1})])
def test_travel_takes_one_duration(arguments):
    with pytest.raises(TypeError, match=r"travel\(days=7\)"):
        travel(*arguments[0], **arguments[1])


def test_travel_to_needs_an_aware_time():
    with pytest.raises(ValueError, match="allowed: an aware datetime"):
        travel_to(datetime(2030, 1, 1))


@pytest.mark.slow
def test_nothing_but_a_test_moves_the_clock():
    code = "import django; django.setup()\nfrom horsies_django.testing import travel\nwith travel(days=1): pass"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "RuntimeError: Time travel is for tests" in done.stderr


@pytest.mark.django_db
def test_without_a_journey_the_sql_of_now_is_that_of_django():
    def compiled(expression):
        query = Task.objects.values_list(expression).query
        return query.get_compiler(connection=connection).as_sql()

    assert compiled(now.Now()) == compiled(functions.Now())
    with travel(days=1):
        assert compiled(now.Now()) != compiled(functions.Now())


def test_the_clock_in_a_migration_is_djangos_own():
    path, *_ = now.Now().deconstruct()

    assert path == functions.Now().deconstruct()[0] == "django.db.models.functions.datetime.Now"
