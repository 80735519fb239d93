"""Charts: scales that don't distort, axes with round numbers, links, and a text for everything that is drawn."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.utils.html import strip_tags

from horsies_django.admin.charts import Chart, Kind, Panel, Series, Unit, draw, sparkline
from horsies_django.admin.charts.axis import count_axis, duration_axis

START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def chart(*panels, count=3, length=timedelta(hours=1)):
    return Chart("k", "Title", [START + at * length for at in range(count)], length, panels)


def bars(svg):
    """Return the key, the top and the height of each bar."""
    found = re.findall(r'horsies-chart-bar-(\w+)" x="[^"]*" y="([^"]*)" width="[^"]*" height="([^"]*)"', svg)
    return [(key, float(y), float(height)) for key, y, height in found]


def test_bars_are_as_high_as_their_values_and_zero_is_not_drawn():
    panel = Panel("", [Series("failed", "failed", [1, 0, 500_000]), Series("completed", "completed", [0, 0, 500_000])])

    drawn = bars(draw(chart(panel)))

    assert [key for key, *_ in drawn] == ["failed", "failed", "completed"]
    (_, _, tiny), (_, low, half), (_, high, other) = drawn
    assert half == other == pytest.approx(panel.height / 2)
    assert tiny < 0.01
    assert high + other == pytest.approx(low)


def test_each_panel_has_its_own_scale_and_no_bar_leaves_it():
    many = Panel("many", [Series("completed", "completed", [1_000_000, 0, 7])])
    few = Panel("few", [Series("failed", "failed", [3, 0, 2])], intervals=2)

    (_, top, full), _, (_, first, high), (_, second, low) = bars(draw(chart(many, few)))

    assert full == many.height
    assert high / low == pytest.approx(3 / 2)
    assert top + full < first < second < first + high == pytest.approx(second + low)


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
    axis = count_axis(highest, 5)

    assert [label for _, label in axis.ticks] == labels
    assert axis.share(axis.top) == 1
    assert axis.share(highest) == highest / axis.top


@pytest.mark.parametrize(
    ("highest", "labels"),
    [
        (0.0, ["0", "1 ms"]),
        (0.35, ["0", "100 ms", "200 ms", "300 ms", "400 ms"]),
        (1.3, ["0", "0.5 s", "1.0 s", "1.5 s"]),
        (38.0, ["0", "10 s", "20 s", "30 s", "40 s"]),
        (200.0, ["0", "1 min", "2 min", "3 min", "4 min"]),
        (20_000.0, ["0", "2 h", "4 h", "6 h"]),
        (900_000.0, ["0", "5 d", "10 d", "15 d"]),
    ],
)
def test_durations_have_round_numbers_with_a_unit_on_their_axis(highest, labels):
    assert [label for _, label in duration_axis(highest, 4).ticks] == labels


def test_lines_are_on_a_linear_scale_and_interrupted_where_there_is_no_value():
    panel = Panel("", [Series("p95", "p95", [1.0, 2.0, None, 4.0])], Kind.LINES, Unit.SECONDS, intervals=4)

    (path,) = re.findall(r'horsies-chart-line-p95" d="([^"]*)"', draw(chart(panel, count=4)))

    height = panel.height
    assert path == f"M5 {height * 3 // 4}L15 {height // 2}M35 0h0"


def test_a_chart_without_links_is_an_image_with_its_numbers_as_text():
    panel = Panel("", [Series("p95", "wait time", [0.5, 3.0, None])], Kind.LINES, Unit.SECONDS, threshold=2.0)
    one = chart(panel)

    assert one.summary == "Title: wait time at most ≈ 3.0 s at Thu 13:00, last ≈ 3.0 s at Thu 13:00."
    assert f'role="img" aria-label="{one.summary}"' in draw(one)
    assert "<title>Thu 12:00: wait time ≈ 500 ms</title>" in draw(one)
    assert one.rows == [("Thu 13:00", [("≈ 3.0 s", None)]), ("Thu 12:00", [("≈ 500 ms", None)])]
    assert one.thresholds == ["2.0 s"]


def test_each_bucket_with_attempts_is_one_link_for_the_keyboard():
    urls = ["/a", "/b", "/c"]
    stacked = [Series("0", "default", [1, 0, 2], urls), Series("1", "<b>", [4, 0, 0], urls)]

    svg = draw(chart(Panel("", stacked, urls=["/all-a", "/all-b", "/all-c"])))

    links = re.findall(r"<a ([^>]*)>", svg)
    tabbed = [link for link in links if "tabindex" not in link]
    assert [re.search(r'href="[^"]*"', link)[0] for link in tabbed] == ['href="/all-a"', 'href="/all-c"']
    assert 'aria-label="Thu 12:00: 1 default, 4 &lt;b&gt;"' in tabbed[0]
    assert [re.search(r'href="([^"]*)"', link)[1] for link in links if "tabindex" in link] == ["/a", "/a", "/c"]
    assert 'role="group"' in svg


def test_a_sparkline_says_its_highest_and_its_latest_value_and_short_waits_stay_low():
    assert sparkline("p95", [None, None]) == ""

    short, long = sparkline("p95", [0.1, 0.05, None]), sparkline("p95", [0.1, 0.05, None], 0.1)

    assert strip_tags(short) == "p95: at most ≈ 100 ms, last ≈ 50 ms."
    assert [float(y) for y in re.findall(r"5 ([\d.]+)", re.search(r'p95" d="([^"]*)"', short)[1])] == [14.6, 15.3]
    assert "M5 2.00L15 9.00" in long
    assert "horsies-chart-threshold" in long
