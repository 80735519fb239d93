"""Since when a latency has exceeded its threshold, from the wait times of the last minutes."""

from datetime import timedelta

import pytest

from horsies_django.models.rollup import start_of
from horsies_django.ops.metrics.latency import LatencyTrend, latency_warning

NOW = 30_000_000
LIMIT = timedelta(minutes=1)


def since(*p95, waits, second=59.0):
    """Return how many minutes ago the latency began to exceed a minute, and whether it may be longer."""
    warning = latency_warning("emails", waits, LIMIT, LatencyTrend(NOW * 60 + second, p95))
    return (start_of(NOW) - warning.since) // timedelta(minutes=1), warning.is_at_least


@pytest.mark.parametrize(
    ("waits", "threshold"), [(None, LIMIT), (60.0, LIMIT), (1e9, None)], ids=["none due", "in time", "no threshold"]
)
def test_there_is_no_warning_below_the_threshold_or_without_one(waits, threshold):
    assert latency_warning("emails", waits, threshold) is None
    assert latency_warning("emails", 61.0, LIMIT).threshold == 60.0


def test_the_latency_exceeds_its_threshold_since_the_oldest_task_has_waited_that_long():
    assert since(1.0, 1.0, 1.0, 1.0, 1.0, waits=60 + 3 * 60) == (3, False)


def test_earlier_minutes_with_long_waits_belong_to_the_same_run():
    assert since(1.0, 1.0, 90.0, 70.0, 1.0, waits=70) == (0, False)
    assert since(1.0, 1.0, 90.0, 70.0, 99.0, waits=70) == (2, False)


@pytest.mark.parametrize("offset", [0.0, 30.0, 59.4, 60 - 1e-3])
def test_the_beginning_is_the_same_whenever_one_looks(offset):
    """An offset is the second of the minute in which the task has waited for too long; 1 ms early is on time."""
    expected = 2 if offset < 59.9 else 1

    found = {since(1.0, 1.0, 1.0, waits=60 + 120 - offset + later, second=later) for later in (0.0, 10.5, 45.0, 59.9)}

    assert found == {(expected, False)}


def test_minutes_without_ended_attempts_do_not_end_a_run():
    assert since(1.0, 90.0, None, None, None, waits=70) == (3, False)


def test_a_run_that_fills_the_trend_may_be_longer():
    assert since(90.0, 90.0, None, waits=70) == (2, True)
    assert since(None, None, None, waits=70) == (0, True)
    assert since(1.0, 1.0, waits=60 + 50 * 60) == (50, True)
