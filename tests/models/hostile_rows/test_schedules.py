"""A schedule that can not be read or computed is disabled with a reason; the others continue."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError

from horsies_django.core.backends import config_of
from horsies_django.core.schedule_enums import MAX_CATCH_UP
from horsies_django.db.clock import database_now
from horsies_django.models import Schedule, Task
from horsies_django.schedules.fire_due import _due
from horsies_django.schedules.scheduler import Scheduler
from tests.schedules.conftest import make, make_due, utc

HOSTILE = {
    "next_run_at -infinity": {"next_run_at": "'-infinity'"},
    "last_slot_at infinity": {"last_slot_at": "'infinity'"},
    "every 1e308": {"timing": "'every:1e308'", "next_run_at": "NULL"},
    "every 309 digits": {"timing": f"'every:{'9' * 200}'", "next_run_at": "NULL"},
    "jitter 1e300": {"jitter": "1e300"},
    "jitter NaN": {"jitter": "'NaN'"},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_schedule_is_disabled_with_a_reason_and_others_are_sent(case, write):
    make("good")
    bad = make("bad")
    make_due(5)
    assert write(Schedule, bad.pk, **HOSTILE[case]) == 1
    scheduler = Scheduler(config_of("default"), "default")

    for _ in range(3):
        scheduler._fire_next()

    assert Task.objects.filter(schedule_id__isnull=False).exclude(schedule_id=bad.pk).count() == 1
    row = Schedule.objects.get(name="bad")
    assert (row.enabled, row.disabled_by) == (False, "TIMING")
    assert row.last_error
    assert Schedule.objects.get(name="good").enabled


def test_catch_up_is_bounded_even_if_the_row_allows_billions_of_runs(write):
    row = make(timing="every:1", catch_up="all")
    make_due(3 * 365 * 86_400)
    assert write(Schedule, row.pk, max_catch_up_runs="2147483647") == 1

    due, last = _due(row := Schedule.objects.get(), row.slots, database_now("default"))

    assert len(due) == MAX_CATCH_UP
    assert (last - due[0]).total_seconds() == MAX_CATCH_UP - 1
    assert database_now("default") - due[0] <= timedelta(seconds=MAX_CATCH_UP + 60)


@pytest.mark.django_db
@pytest.mark.parametrize("column", ["start_at", "end_at"])
@pytest.mark.parametrize("moment", [utc(1, 1, 1), utc(9999, 12, 31)])
def test_schedule_validation_refuses_dates_out_of_range(column, moment):
    row = Schedule(name="s", timing="every:60", task_name="tests.jobs.tasks.noop", **{column: moment})

    with pytest.raises(ValidationError) as raised:
        row.clean()

    assert "allowed: a time from 1900 to 9997" in str(raised.value.message_dict[column])


@pytest.mark.django_db
def test_schedule_validation_refuses_a_deadline_out_of_range():
    row = Schedule(name="s", timing="every:60", task_name="tests.jobs.tasks.noop", options={"good_for": 1e308})

    with pytest.raises(ValidationError) as raised:
        row.clean()

    assert "good_for is 1e+308" in str(raised.value.message_dict["options"])
