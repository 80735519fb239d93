"""Schedule patterns and their timing texts."""

from datetime import time

import pytest

from horsies_django import Cron, Daily, Every, Hourly, Monthly, Weekly
from horsies_django.core.schedule_patterns import parse

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("pattern", "timing"),
    [
        (Every(seconds=300), "every:300"),
        (Every(days=1, hours=2, minutes=3, seconds=4), "every:93784"),
        (Every(minutes=0.5), "every:30"),
        (Cron("0 9 * * MON-FRI"), "cron:0 9 * * MON-FRI"),
        (Cron("  30  0 9 * * * "), "cron:30 0 9 * * *"),
        (Cron("@daily"), "cron:0 0 * * *"),
        (Cron("0 0 L * *"), "cron:0 0 L * *"),
        (Cron("0 0 * * 5#3"), "cron:0 0 * * 5#3"),
        (Hourly(), "cron:0 * * * *"),
        (Hourly(15, 30), "cron:30 15 * * * *"),
        (Daily("09:00"), "cron:0 9 * * *"),
        (Daily(time(9, 0, 5)), "cron:5 0 9 * * *"),
        (Weekly("monday", "09:00"), "cron:0 9 * * MON"),
        (Weekly(["fri", "MON"], time(9, 30)), "cron:30 9 * * MON,FRI"),
        (Monthly(31, "00:00"), "cron:0 0 31 * *"),
        (Monthly("L", "23:59"), "cron:59 23 L * *"),
    ],
)
def test_the_timing_text_of_a_pattern_parses_back_to_itself(pattern, timing):
    assert pattern.timing == timing
    assert parse(timing).timing == timing


@pytest.mark.parametrize(
    ("expression", "field"),
    [
        ("61 * * * *", "the minute is '61'"),
        ("0 24 * * *", "the hour is '24'"),
        ("0 0 32 * *", "the day of the month is '32'"),
        ("0 0 * 13 *", "the month is '13'"),
        ("0 0 * * FOO", "the day of the week is 'FOO'"),
        ("61 0 0 * * *", "the second is '61'"),
        ("*/0 * * * *", "the minute is '*/0'"),
        ("*/99999999999999999999 * * * *", "the minute is '*/99999999999999999999'"),
        ("R * * * *", "the minute is 'R'"),
        ("H H * * *", "the hour is 'H'"),
        ("0 0 30 2 *", "never matches"),
        ("* * * *", "has 4 fields"),
        ("* * * * * * *", "has 7 fields"),
        ("", "has 0 fields"),
    ],
)
def test_an_invalid_cron_expression_is_quoted_with_its_invalid_field(expression, field):
    problems = " ".join(Cron(expression).problems())

    assert repr(expression) in problems
    assert field in problems
    with pytest.raises(ValueError, match="allowed"):
        parse(f"cron:{expression}")


@pytest.mark.parametrize(
    ("expression", "reading"),
    [
        ("0 0 */2 * MON", "either is sufficient; cron requires both"),
        ("0 0 1 * */2", "either is sufficient; cron requires both"),
        ("*/61 * * * *", "means 0; the step is longer than the range, so only the first value matches"),
        ("0 0-3/5 * * *", "means 0; the step is longer than the range"),
        ("59-1 * * * *", "means 0, 1, 59; cron refuses it"),
        ("0 0 * * 1,FRI-MON", "means 0, 1, 5, 6; cron refuses it"),
        ("0 5/15 0 * * *", "means 5, 20, 35, 50; cron ignores the step"),
        ("0 0 * * 7-7", "means *; cron reads 0"),
    ],
)
def test_a_cron_expression_that_cron_reads_differently_is_described(expression, reading):
    (warning,) = Cron(expression).warnings()

    assert repr(expression) in warning
    assert reading in warning


@pytest.mark.parametrize(
    "expression",
    [
        "*/5 9-17 * * MON-FRI",
        "0 0 * * */2",
        "0 0 1,15 * 1",
        "0 0 */2 * ?",
        "0 0 ? * */2",
        "0 0 * * SAT-SUN",
        "0 0 * JAN-DEC 0-7",
        "*/60 */24 * * *",
        "0 0 L * *",
        "0 0 15W * 5#3",
        "@daily",
        "1-9/3 0-10/10 * * *",
    ],
)
def test_a_cron_expression_that_cron_reads_alike_or_that_only_exists_here_is_not_described(expression):
    assert list(Cron(expression).problems()) == list(Cron(expression).warnings()) == []


def test_all_invalid_cron_fields_are_reported_together():
    assert len(list(Cron("61 24 * * *").problems())) == 2


@pytest.mark.parametrize("day", ["0", "7", "SUN"])
def test_cron_weekdays_0_and_7_are_sunday(day):
    from tests.schedules.test_slots import local_slots

    assert local_slots(f"cron:0 0 * * {day}", "UTC", "2026-11-20T00:00", 1) == ["2026-11-22T00:00:00+00:00"]


@pytest.mark.parametrize(
    "pattern",
    [
        Every(),
        Every(seconds=-1),
        Every(seconds=0.25),
        Every(seconds=True),
        Every(seconds="5"),
        Every(days=40_000),
        Cron(5),
        Hourly(60),
        Hourly(second="0"),
        Daily("25:00"),
        Daily(9),
        Weekly([], "09:00"),
        Weekly("someday", "09:00"),
        Weekly(7, "09:00"),
        Monthly(0, "09:00"),
        Monthly(1, "9 o'clock"),
    ],
)
def test_an_invalid_pattern_reports_the_allowed_values_and_has_no_timing(pattern):
    assert all("allowed" in problem for problem in pattern.problems())
    with pytest.raises(ValueError, match="allowed"):
        pattern.timing  # noqa: B018


@pytest.mark.parametrize("timing", ["", "5 minutes", "every:", "every:0", "every:-5", "every:1.5", "at:noon"])
def test_an_invalid_timing_text_is_refused_with_the_allowed_values(timing):
    with pytest.raises(ValueError, match="allowed"):
        parse(timing)
