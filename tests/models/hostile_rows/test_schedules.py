"""A schedule that can not be read or computed is disabled with a reason; the others continue."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError

from horsies_django.core.backends import config_of
from horsies_django.models import Schedule, Task
from horsies_django.schedules.scheduler import Scheduler
from tests.schedules.conftest import make, make_due, utc

TIMINGS = ["every:1e308", f"every:{'9' * 200}"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("timing", TIMINGS, ids=["1e308", "200 digits"])
def test_a_schedule_that_can_not_be_planned_is_disabled_with_a_reason_and_others_are_sent(timing):
    make("good")
    bad = make("bad")
    make_due(5)
    Schedule.objects.filter(pk=bad.pk).update(timing=timing, next_run_at=None)
    scheduler = Scheduler(config_of("default"), "default")

    for _ in range(3):
        scheduler._fire_next()

    assert Task.objects.filter(schedule_id__isnull=False).exclude(schedule_id=bad.pk).count() == 1
    row = Schedule.objects.get(name="bad")
    assert (row.enabled, row.disabled_by) == (False, "TIMING")
    assert row.last_error
    assert Schedule.objects.get(name="good").enabled


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
