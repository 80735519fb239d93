"""Charts: scales that don't distort, axes with round numbers, links, and a text for everything that is drawn."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.utils.html import strip_tags

from horsies_django.admin.charts import Chart, Panel, Series, small_bars

START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def chart(*panels, count=3, length=timedelta(hours=1)):
    return Chart("k", "Title", [START + at * length for at in range(count)], length, panels)


def bars(svg):
    """Return the key, the top and the height of each bar."""
    found = re.findall(r'horsies-chart-bar-(\w+)" x="[^"]*" y="([^"]*)" width="[^"]*" height="([^"]*)"', svg)
    return [(key, float(y), float(height)) for key, y, height in found]


def test_bars_are_as_high_as_their_values_and_zero_is_not_drawn():
    panel = Panel("", [Series("failed", "failed", [1, 0, 500_000]), Series("completed", "completed", [0, 0, 500_000])])

    drawn = bars(chart(panel).svg)

    assert [key for key, *_ in drawn] == ["failed", "failed", "completed"]
    (_, _, tiny), (_, low, half), (_, high, other) = drawn
    assert half == other == pytest.approx(panel.height / 2)
    assert tiny < 0.01
    assert high + other == pytest.approx(low)


def test_each_panel_has_its_own_scale_and_no_bar_leaves_it():
    many = Panel("many", [Series("completed", "completed", [1_000_000, 0, 7])])
    few = Panel("few", [Series("failed", "failed", [3, 0, 2])], intervals=2)

    (_, top, full), _, (_, first, high), (_, second, low) = bars(chart(many, few).svg)

    assert full == many.height
    assert high / low == pytest.approx(3 / 2)
    assert top + full < first < second < first + high == pytest.approx(second + low)


def labels_of(panel):
    """Return the labels of the scale."""
    return re.findall(r'horsies-chart-tick-value"[^>]*>([^<]*)<', chart(panel, count=1).svg)


@pytest.mark.parametrize(
    ("highest", "labels"),
    [
        (0, ["0", "1"]),
        (1, ["0", "1"]),
        (7, ["0", "2", "4", "6", "8"]),
        (4_321, ["0", "1,000", "2,000", "3,000", "4,000", "5,000"]),
        (5_000, ["0", "1,000", "2,000", "3,000", "4,000", "5,000"]),
    ],
)
def test_counts_have_round_numbers_on_their_axis(highest, labels):
    assert labels_of(Panel("", [Series("completed", "completed", [highest])])) == labels


@pytest.mark.parametrize(
    ("highest", "labels"),
    [
        (0.0, ["0", "1 ms"]),
        (0.35, ["0", "100 ms", "200 ms", "300 ms", "400 ms"]),
        (1.3, ["0", "500 ms", "1.0 s", "1.5 s"]),
        (38.0, ["0", "10 s", "20 s", "30 s", "40 s"]),
        (200.0, ["0", "60 s", "2 min", "3 min", "4 min"]),
        (20_000.0, ["0", "2 h", "4 h", "6 h"]),
        (900_000.0, ["0", "5 d", "10 d", "15 d"]),
    ],
)
def test_durations_have_round_numbers_with_a_unit_on_their_axis(highest, labels):
    assert labels_of(Panel("", [Series("p95", "p95", [highest])], intervals=4, is_time=True)) == labels


def test_durations_stand_in_front_of_each_other_and_a_bucket_without_a_value_has_no_bar():
    series = [Series("p95", "p95", [4.0, 2.0, None]), Series("p50", "p50", [1.0, 1.0, None])]
    panel = Panel("", series, intervals=4, is_time=True)

    drawn = bars(chart(panel).svg)

    assert [(key, height / panel.height) for key, _, height in drawn] == [
        ("p95", 1.0), ("p50", 0.25), ("p95", 0.5), ("p50", 0.25),
    ]  # fmt: skip
    assert len({top + height for _, top, height in drawn}) == 1


def test_a_chart_without_links_is_an_image_with_its_numbers_as_text():
    panel = Panel("", [Series("p95", "wait time", [0.5, 3.0, None])], is_time=True, threshold=2.0)
    one = chart(panel)

    assert one.summary == "Title: wait time at most ≈ 3.0 s, last ≈ 3.0 s"
    assert f'role="img" aria-label="{one.summary}"' in one.svg
    assert "<title>Thu 12:00: ≈ 500 ms wait time</title>" in one.svg
    assert one.rows == [("Thu 13:00", [("≈ 3.0 s", None)]), ("Thu 12:00", [("≈ 500 ms", None)])]
    assert one.thresholds == ["2.0 s"]


def test_each_bucket_with_attempts_is_one_link():
    stacked = [Series("failed", "default", [1, 0, 2]), Series("retried", "<b>", [4, 0, 0])]

    svg = chart(Panel("", stacked, urls=["/all-a", "/all-b", "/all-c"])).svg

    links = re.findall(r"<a ([^>]*)>", svg)
    assert [re.search(r'href="([^"]*)"', link)[1] for link in links] == ["/all-a", "/all-c"]
    assert 'aria-label="Thu 12:00: 1 default, 4 &lt;b&gt;"' in links[0]
    assert 'role="group"' in svg


def test_small_bars_say_what_they_show_and_short_waits_stay_low():
    assert small_bars([None, None], "p95") == ""

    low = small_bars([0.1, 0.05, None], "p95", "<short>", lowest_top=1.0)
    high = small_bars([0.1, 0.05, None], "p95", "long", 0.1, lowest_top=1.0)

    assert strip_tags(low) == "&lt;short&gt;"
    assert [height for _, _, height in bars(low)] == [2.0, 1.0]
    assert [height for _, _, height in bars(high)] == [20.0, 10.0]
    assert "horsies-chart-threshold" in high
