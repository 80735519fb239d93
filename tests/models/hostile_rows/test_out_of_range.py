"""Values out of range are refused: by a send with an error, and of plain SQL by the database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from django.db import IntegrityError, transaction

from horsies_django.core.compat import InvalidTask
from horsies_django.models import Task
from tests.jobs import tasks

#: In UTC this is the year 10000.
DATE_LINE = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-12)))


@pytest.mark.django_db
@pytest.mark.parametrize("moment", [datetime(1, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")), DATE_LINE])
@pytest.mark.parametrize("option", ["run_after", "good_until"])
def test_send_refuses_dates_out_of_range(option, moment):
    with pytest.raises(InvalidTask, match=rf"{option} is .*; allowed: a time from 1900 to 9997 \(UTC\)"):
        tasks.noop.with_options(**{option: moment}).send()


@pytest.mark.django_db
def test_send_refuses_a_timeout_out_of_range():
    with pytest.raises(InvalidTask, match=r"timeout is 1e\+300; allowed: a positive number of seconds, 3153600000"):
        tasks.noop.with_options(timeout=1e300).send()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "columns", [{"run_after": datetime(9999, 12, 31, tzinfo=UTC)}, {"retention": timedelta(-1)}, {"timeout": 1e300}]
)
def test_the_database_refuses_values_that_can_not_be_read(columns):
    key = tasks.noop.send().id

    with pytest.raises(IntegrityError), transaction.atomic():
        Task.objects.filter(pk=key).update(**columns)
