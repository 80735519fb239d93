"""Slots on real dates: daylight saving time in three zones, months without a day, windows, jitter."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from horsies_django.core.schedule_patterns import parse
from horsies_django.core.schedule_slots import Slots
from tests.schedules.conftest import utc

pytestmark = pytest.mark.once


def local_slots(timing, zone, start, n, **options):
    """Return the first slots after a local time, in that zone."""
    at = datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(zone))
    slots = Slots(parse(timing), ZoneInfo(zone), **options).upcoming(at, n)
    return [slot.astimezone(ZoneInfo(zone)).isoformat() for slot in slots]


@pytest.mark.parametrize(
    ("zone", "wall", "before", "expected"),
    [
        ("America/New_York", "30 2", "2026-03-07T12:00", ["2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"]),
        ("Europe/Berlin", "30 2", "2026-03-28T12:00", ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
        (
            "Australia/Lord_Howe",
            "15 2",
            "2026-10-03T12:00",
            ["2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"],
        ),
    ],
)
def test_a_nonexistent_local_time_runs_at_the_first_instant_after_the_gap(zone, wall, before, expected):
    assert local_slots(f"cron:{wall} * * *", zone, before, 2) == expected
    assert local_slots(f"cron:{wall} * * *", zone, before, 1, skip_nonexistent=True) == expected[1:]


@pytest.mark.parametrize(
    ("zone", "wall", "before", "expected"),
    [
        ("America/New_York", "30 1", "2026-10-31T12:00", ["2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"]),
        ("Europe/Berlin", "30 2", "2026-10-24T12:00", ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]),
        (
            "Australia/Lord_Howe",
            "45 1",
            "2026-04-04T12:00",
            ["2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"],
        ),
    ],
)
def test_a_local_time_that_exists_twice_runs_once_at_the_earlier_instant(zone, wall, before, expected):
    assert local_slots(f"cron:{wall} * * *", zone, before, 2) == expected


def test_several_slots_in_one_gap_run_once_after_it():
    slots = local_slots("cron:*/20 * * * *", "Europe/Berlin", "2026-03-29T01:30", 3)

    assert slots == ["2026-03-29T01:40:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T03:20:00+02:00"]


def test_slots_of_a_repeated_hour_do_not_run_again():
    zone = ZoneInfo("Europe/Berlin")
    slots = Slots(parse("cron:*/30 * * * *"), zone)
    second_time = datetime(2026, 10, 25, 2, 10, tzinfo=zone, fold=1)

    assert slots.after(second_time) == utc(2026, 10, 25, 2, 0)
    assert slots.missed(utc(2026, 10, 24, 23, 45), second_time, 10) == [utc(2026, 10, 25), utc(2026, 10, 25, 0, 30)]


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kolkata"])
@pytest.mark.parametrize("timing", ["cron:*/25 * * * *", "cron:30 1,2 * * *", "cron:10 0 */3 * * SUN", "every:1000"])
def test_upcoming_and_missed_return_the_same_slots(zone, timing):
    anchor = utc(2026, 1, 1)
    slots = Slots(parse(timing), ZoneInfo(zone), anchor=anchor)
    for day in ("2026-03-08", "2026-03-29", "2026-04-05", "2026-10-04", "2026-10-25", "2026-11-01"):
        first = datetime.fromisoformat(day + "T00:00+00:00") - timedelta(hours=16)
        last = first + timedelta(hours=44)

        forwards = [slot for slot in slots.upcoming(first, 1_000) if slot <= last]

        assert forwards == [slot for slot in slots.missed(first, last, 1_000) if slot > first]
        assert forwards == sorted(set(forwards))


def test_an_interval_counts_from_the_previous_slot():
    slots = Slots(parse("every:90"), ZoneInfo("Europe/Berlin"), anchor=utc(2026, 10, 24, 23, 59, 30))

    assert slots.upcoming(utc(2026, 10, 25, 0, 1, 10), 2) == [utc(2026, 10, 25, 0, 2, 30), utc(2026, 10, 25, 0, 4)]


def test_the_first_slot_of_an_interval_is_one_interval_away():
    now = utc(2026, 1, 1, 12)

    assert Slots(parse("every:300"), ZoneInfo("UTC")).after(now) == now + timedelta(seconds=300)


@pytest.mark.parametrize("timing", ["cron:0 0 31 * *", "cron:0 0 0 31 * *"])
def test_months_without_the_day_are_skipped(timing):
    slots = local_slots(timing, "UTC", "2026-01-01T00:00", 3)

    assert [slot[:10] for slot in slots] == ["2026-01-31", "2026-03-31", "2026-05-31"]


def test_a_cron_expression_of_six_fields_begins_with_the_seconds():
    assert local_slots("cron:30 5 * * * *", "UTC", "2026-01-01T00:00", 1) == ["2026-01-01T00:05:30+00:00"]


@pytest.mark.parametrize("timing", ["cron:0 * * * *", "every:3600"])
def test_slots_begin_and_end_with_their_window(timing):
    window = {"start_at": utc(2026, 1, 1, 6), "end_at": utc(2026, 1, 1, 8)}
    slots = Slots(parse(timing), ZoneInfo("UTC"), **window)

    assert slots.upcoming(utc(2026, 1, 1), 9) == [utc(2026, 1, 1, hour) for hour in (6, 7, 8)]
    assert slots.after(utc(2026, 1, 1, 8)) is None
    assert slots.missed(utc(2026, 1, 1), utc(2026, 1, 2), 9) == [utc(2026, 1, 1, hour) for hour in (6, 7, 8)]


def test_jitter_is_deterministic_and_differs_by_slot_and_schedule():
    first, same, other = (Slots(parse("every:60"), ZoneInfo("UTC"), name, jitter=30) for name in ("a", "a", "b"))
    times = [utc(2026, 1, 1, 0, minute) for minute in range(50)]
    delays = [(first.due_at(at) - at).total_seconds() for at in times]

    assert [first.due_at(at) for at in times] == [same.due_at(at) for at in times]
    assert first.due_at(times[0]) != other.due_at(times[0])
    assert all(0 <= delay < 30 for delay in delays)
    assert max(delays) - min(delays) > 20


def test_jitter_does_not_move_a_slot_past_end_at():
    slots = Slots(parse("every:60"), ZoneInfo("UTC"), "a", jitter=50, end_at=utc(2026, 1, 1, 0, 10, 1))

    assert slots.due_at(utc(2026, 1, 1, 0, 10)) == slots.end_at
    assert slots.due_at(utc(2026, 1, 1, 0, 9)) < slots.end_at


@pytest.mark.parametrize(
    ("timing", "gap"),
    [
        ("every:90", 90),
        ("cron:* * * * *", 60),
        ("cron:*/7 * * * *", 240),
        ("cron:0 9 * * *", 82_800),  # when clocks go forward
        ("cron:0 0 1 * *", 2_419_200),
        ("cron:0 0 29 2 *", 31_536_000),
    ],
)
def test_shortest_gap_returns_the_shortest_time_between_two_slots(timing, gap):
    assert Slots(parse(timing), ZoneInfo("Europe/Berlin"), anchor=utc(2026, 1, 1)).shortest_gap() == gap


def test_missed_finds_the_latest_slots_of_years_of_seconds():
    slots = Slots(parse("cron:* * * * * *"), ZoneInfo("Europe/Berlin"))
    now = utc(2026, 6, 1)

    assert slots.missed(utc(2020, 1, 1), now, 2) == [now - timedelta(seconds=1), now]
