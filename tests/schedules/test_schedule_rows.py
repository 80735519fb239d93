"""Schedule rows: enabling, disabling, running now, saving, validation."""

from datetime import datetime, timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from horsies_django import TaskHandle, WorkflowHandle
from horsies_django.db.clock import database_now
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Schedule, Task
from horsies_django.testing import travel_to
from tests.schedules.conftest import make, utc

pytestmark = pytest.mark.django_db


def test_enable_and_disable_return_the_number_of_changed_schedules():
    make("a", timing="every:60")
    make("b")

    assert Schedule.objects.filter(name="a").disable() == 1
    row = Schedule.objects.get(name="a")
    assert (row.enabled, row.disabled_by, row.next_run_at) == (False, "OPERATOR", None)

    assert Schedule.objects.enable() == 1
    row.refresh_from_db()
    assert (row.enabled, row.disabled_by) == (True, "")
    assert row.next_run_at > database_now("default")
    assert Schedule.objects.enable() == 0


def test_a_schedule_without_slots_left_can_not_be_enabled():
    make(end_at=utc(2020, 1, 1))

    assert Schedule.objects.get().disabled_by == "END"
    assert Schedule.objects.enable() == 0


def test_run_now_sends_at_once_and_keeps_the_next_run():
    make("task")
    Schedule.objects.create(name="workflow", timing="every:60", workflow_name="tests.schedules.import", enabled=False)
    planned = Schedule.objects.get(name="task").next_run_at

    handles = Schedule.objects.order_by("name").run_now()

    assert {type(handle) for handle in handles} == {TaskHandle, WorkflowHandle}
    row = Schedule.objects.get(name="task")
    assert (row.next_run_at, row.run_count) == (planned, 1)
    assert Task.objects.get(pk=row.last_task_id).schedule_id == row.pk
    assert not Schedule.objects.get(name="workflow").enabled


def test_run_now_names_the_schedule_that_can_not_be_sent():
    make("odd")
    Schedule.objects.update(kwargs={"nope": 1})

    with pytest.raises(TypeError) as raised:
        Schedule.objects.all().run_now()

    assert raised.value.__notes__ == ["schedule 'odd' could not be run"]


def test_saving_recomputes_the_next_run_only_if_the_timing_changed():
    row = make(timing="every:3600")
    planned = row.next_run_at

    row.kwargs = {}
    row.max_catch_up_runs = 5
    row.save()
    assert Schedule.objects.get().next_run_at == planned

    row.timing = "every:60"
    row.save()
    assert Schedule.objects.get().next_run_at < planned


def delayed():
    """Return a schedule, and a time at which its jitter still delays a run of it."""
    row = make(timing="every:3600", jitter=3_000)
    return row, row.next_slot_at + (row.next_run_at - row.next_slot_at) / 2


@pytest.mark.parametrize("by", ["save", "update"])
def test_a_run_that_its_jitter_delays_stays_planned_if_its_end_changes(scheduler, by):
    row, now = delayed()
    planned = row.next_run_at
    with travel_to(now):
        row.end_at = now + timedelta(days=9)
        row.save() if by == "save" else Schedule.objects.update(end_at=row.end_at)
        assert scheduler.run_once().fired == ()

    assert Schedule.objects.get().next_run_at == planned


@pytest.mark.parametrize("by", ["save", "update"])
@pytest.mark.parametrize("jitter", [0.0, 3_500])
def test_a_run_that_its_jitter_delays_follows_a_new_jitter(scheduler, jitter, by):
    row, now = delayed()
    slot = row.next_slot_at
    with travel_to(now):
        row.jitter = jitter
        row.save() if by == "save" else Schedule.objects.update(jitter=jitter)

    with travel_to(slot + timedelta(seconds=3_550)):
        assert [one.slot for one in scheduler.run_once().fired] == [slot]


def test_a_run_that_its_jitter_delays_is_dropped_if_its_slot_is_outside_the_new_window():
    row, now = delayed()
    with travel_to(now):
        row.end_at = row.next_slot_at - timedelta(seconds=1)
        row.save()

    row.refresh_from_db()
    assert (row.next_run_at, row.disabled_by) == (None, "END")


def test_saving_a_stale_row_keeps_the_changes_of_the_scheduler():
    stale = Schedule.objects.get(pk=make().pk)
    Schedule.objects.update(next_run_at=NowPlus(500), run_count=7)
    planned = Schedule.objects.get().next_run_at

    stale.max_catch_up_runs = 5
    stale.save()

    row = Schedule.objects.get()
    assert (row.next_run_at, row.run_count, row.max_catch_up_runs) == (planned, 7, 5)


def test_a_manually_set_next_run_is_saved():
    row = make()
    row.next_run_at = utc(2026, 1, 1)
    row.save(update_fields=["next_run_at"])
    assert Schedule.objects.get().next_run_at == utc(2026, 1, 1)

    Schedule.objects.update(next_run_at=utc(2026, 1, 2))
    assert Schedule.objects.get().next_run_at == utc(2026, 1, 2)


def test_a_schedule_needs_either_a_task_or_a_workflow():
    with pytest.raises(IntegrityError), transaction.atomic():
        make(workflow_name="tests.schedules.import")
    with pytest.raises(IntegrityError), transaction.atomic():
        make(task=None)


@pytest.mark.once
@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("timing", "cron:61 * * * *", "the minute is '61'"),
        ("timing", "tomorrow", "allowed: cron:"),
        ("timezone", "Mars/Olympus", "'Mars/Olympus'"),
        ("task_name", "os.remove", "not a registered task"),
        ("task_name", "tests.jobs.tasks.gone", "gone"),
        ("kwargs", {"seconds": 1, "nope": 1}, "nope"),
        ("kwargs", {"seconds": "long"}, "seconds"),
        ("args", [1, 2], "too many"),
        ("args", {}, "a list"),
        ("options", {"colour": 1}, "'colour'"),
        ("options", {"priority": 1_000}, "priority"),
        ("options", {"good_for": -1}, "good_for is -1"),
        ("options", [], "a dict"),
        ("jitter", -1, "0 to 86400"),
        ("max_catch_up_runs", 0, "from 1 to 10000"),
        ("max_catch_up_runs", 10_001, "from 1 to 10000"),
        ("overlap", "queue", "'skip'"),
        ("catch_up", "some", "'latest'"),
        ("end_at", utc(2025, 1, 1), "before start_at"),
        ("end_at", datetime(2031, 1, 1), "allowed: an aware datetime"),
        ("backend", "nowhere", "'nowhere'"),
    ],
)
def test_validation_reports_a_mistake_at_its_field(column, value, message):
    given = {"kwargs": {"seconds": 1}} if column not in ("args",) else {}
    row = Schedule(
        **{
            "name": "s",
            "timing": "every:60",
            "task_name": "tests.jobs.tasks.nap",
            "start_at": utc(2026, 1, 1),
            **given,
            column: value,
        }
    )

    with pytest.raises(ValidationError) as raised:
        row.clean()

    assert set(raised.value.message_dict) == {column}
    assert message in " ".join(raised.value.message_dict[column])


@pytest.mark.once
@pytest.mark.parametrize(
    ("columns", "column"),
    [
        ({"workflow_name": "nowhere"}, "workflow_name"),
        ({"workflow_name": "tests.schedules.import", "kwargs": {"nope": 1}}, "kwargs"),
        ({"workflow_name": "tests.schedules.import", "options": {"timeout": 1}}, "options"),
        ({"workflow_name": "tests.schedules.import", "task_name": "tests.jobs.tasks.noop"}, "workflow_name"),
        ({}, "task_name"),
    ],
)
def test_validation_reports_a_workflow_schedules_mistake_at_its_field(columns, column):
    with pytest.raises(ValidationError) as raised:
        Schedule(name="s", timing="every:60", **columns).clean()

    assert set(raised.value.message_dict) == {column}


def test_validation_accepts_valid_schedules_and_sends_nothing():
    start = database_now("default") + timedelta(days=1)
    Schedule(name="a", timing="every:60", task_name="tests.jobs.tasks.nap", args=[1], start_at=start).clean()
    Schedule(name="b", timing="every:60", workflow_name="tests.schedules.import").clean()

    assert not Task.objects.exists()


@pytest.mark.parametrize(("timing", "jitter", "most"), [("every:60", 60, 60), ("cron:*/5 * * * *", 600, 300)])
def test_validation_refuses_jitter_as_long_as_the_gap_between_slots(timing, jitter, most):
    row = Schedule(name="s", task_name="tests.jobs.tasks.noop", timing=timing, jitter=jitter)

    with pytest.raises(ValidationError) as raised:
        row.full_clean()
    assert f"less than {most} " in raised.value.message_dict["jitter"][0]

    row.jitter = most - 1
    row.full_clean()
