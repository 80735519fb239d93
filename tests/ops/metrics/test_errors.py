"""What fails most, by error group and period, and since when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from horsies_django.models import ErrorGroup, Rollup
from horsies_django.models.rollup import RollupSpan, minute_of
from horsies_django.ops.metrics.errors import failing_places, failure_report, latest_run
from horsies_django.ops.metrics.history import HOUR, PERIODS, attempt_history

pytestmark = pytest.mark.django_db

ONE, TWO, THREE = "a" * 12, "b" * 12, "c" * 12
NOW = datetime(2026, 3, 4, 12, 34, 56, tzinfo=UTC)
THIS_HOUR = NOW.replace(minute=0, second=0)


def start(span=RollupSpan.MINUTE, ago=0):
    """Return the start of the current minute or hour, or of an earlier one."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    return now - timedelta(minutes=ago) if span == "M" else now.replace(minute=0) - timedelta(hours=ago)


def failures(fingerprint, count, ago=0, span=RollupSpan.MINUTE, **columns):
    defaults = {"queue_name": "default", "task_name": "shop.charge", "outcome": "FAILED", "error_code": "X"}
    Rollup.objects.create(span=span, start=start(span, ago), fingerprint=fingerprint, count=count, **defaults | columns)


def group(fingerprint, **columns):
    seen = {"first_seen_at": NOW, "last_seen_at": NOW, "last_attempt_id": 1, "error_code": "X"}
    return ErrorGroup.objects.create(fingerprint=fingerprint, **seen | columns)


def test_the_groups_the_rest_and_the_failures_without_a_group_add_up():
    for number, fingerprint in enumerate((ONE, TWO, THREE), 1):
        failures(fingerprint, 10 * number)
        failures(fingerprint, number, will_retry=True)
    failures("", 5, outcome="WORKER_FAILURE")
    failures("", 100, outcome="COMPLETED", error_code="")

    report = failure_report("default", HOUR, limit=2)

    assert [(each.fingerprint, each.counts.failed, each.counts.retried) for each in report.groups] == [
        (THREE, 30, 3),
        (TWO, 20, 2),
    ]
    assert (report.other_groups, report.others.failed, report.others.retried) == (1, 10, 1)
    assert (report.ungrouped.total, report.total.total) == (5, 71)


def test_each_period_counts_its_own_minutes_or_hours_and_nothing_later_than_now():
    for ago in (1, 4, 7, 59, 62):
        failures(ONE, 1, ago)
    for ago in (1, 22, 25, 166, 169):
        failures(ONE, 1, ago, RollupSpan.HOUR)
    failures(ONE, 50, -2)
    failures(ONE, 50, -2, RollupSpan.HOUR)

    counted = {key: failure_report("default", period).total.total for key, period in PERIODS.items()}

    assert counted["5m"] in (1, 2)  # the minute may have changed since
    assert (counted["1h"], counted["24h"], counted["7d"]) in ((4, 2, 4), (3, 2, 4), (4, 1, 4), (4, 2, 3))


def test_a_report_of_one_task_or_queue_has_only_its_failures():
    failures(ONE, 3, task_name="shop.charge", queue_name="orders")
    failures(ONE, 4, task_name="shop.ship", queue_name="default")
    failures(TWO, 5, task_name="shop.ship", queue_name="orders")

    assert failure_report("default", HOUR, task="shop.ship").total.total == 9
    assert failure_report("default", HOUR, queue="orders").total.total == 8
    group(ONE)
    (only,) = failure_report("default", HOUR, task="shop.charge", queue="orders", with_details=True).groups
    assert (only.fingerprint, only.counts.total, only.places.tasks) == (ONE, 3, {"shop.charge": 3})
    assert failing_places("default", HOUR).tasks == {"shop.ship": 9, "shop.charge": 3}


def test_a_series_and_the_history_of_a_group_add_up_to_its_count():
    group(ONE)
    for ago in (0, 1, 1, 20):
        failures(ONE, 2, ago, queue_name=f"q{ago}{Rollup.objects.count()}")
    failures(TWO, 9)

    report = failure_report("default", HOUR, with_details=True)

    one = next(each for each in report.groups if each.fingerprint == ONE)
    assert (sum(one.series), max(one.series), len(one.series)) == (8, 4, 60)
    history = attempt_history("default", minute_of(report.now), HOUR, fingerprint=ONE)
    assert history.totals == {"failed": 8}
    assert history.values("failed") == list(one.series)


def run_of(*hours_ago, minutes_ago=(), first_seen=NOW - timedelta(days=20)):
    """Return the latest run of failures in these hours and minutes before ``NOW``."""
    minute = NOW.replace(second=0)
    starts = [("H", THIS_HOUR - timedelta(hours=ago)) for ago in hours_ago]
    starts += [("M", minute - timedelta(minutes=ago)) for ago in minutes_ago]
    for code, (span, begin) in enumerate(starts):
        columns = {"outcome": "FAILED", "fingerprint": ONE, "error_code": str(code), "count": 1}
        Rollup.objects.create(span=span, start=begin, **columns)
    return latest_run("default", group(ONE, first_seen_at=first_seen), NOW)


def test_a_run_of_failures_begins_after_the_last_pause_of_two_whole_hours():
    run = run_of(1, 2, 4, 5, 8, 9)

    assert (run.since, run.is_to_the_hour) == (THIS_HOUR - timedelta(hours=5), True)


def test_without_a_failure_there_is_no_run():
    assert run_of() is None


def test_a_recent_run_is_known_to_the_minute():
    run = run_of(0, 1, minutes_ago=(3, 70, 80))

    assert (run.since, run.is_to_the_hour) == (NOW.replace(second=0) - timedelta(minutes=80), False)


def test_the_first_run_begins_when_the_group_was_first_seen():
    first_seen = NOW - timedelta(hours=30, minutes=1, seconds=7)

    run = run_of(*range(31), first_seen=first_seen)

    assert (run.since, run.is_to_the_hour) == (first_seen, False)


def test_a_run_of_more_than_the_longest_period_is_longer_than_that():
    assert run_of(*range(168)).is_longer


def test_a_run_that_began_in_the_longest_period_is_not_longer():
    assert not run_of(*range(165)).is_longer
