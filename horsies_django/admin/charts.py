"""Charts of bars as inline SVG, with a text summary and a table of the same numbers.

A chart has one or more panels above one time axis. Each panel has its own linear scale that begins at 0. A page that
shows a :class:`Chart` of :class:`Panel` and :class:`Series` includes a template, and adds the style sheet
``horsies_django/charts.css`` to its Media::

    {% include "admin/horsies_django/chart.html" with chart=chart %}

``attempt_charts`` has the charts of attempts. The ``key`` of a chart is unique on its page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from ..core.numbers import format_about, format_brief, format_number

#: Pixels above each panel, below the last, and of each interval of a scale.
TITLE: Final = 26
TIMES: Final = 20
INTERVAL: Final = 30

#: The share of a bucket's width that its bar takes.
BAR: Final = 0.8

#: Round steps of durations, in seconds; a shorter or a longer one is 1, 2 or 5 times a power of ten of seconds or days.
_DAY: Final = 86_400
_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200)


@dataclass(frozen=True, slots=True)
class Series:
    """One colour of a panel: a value for each bucket; None is no value.

    Attributes:
        key: The suffix of its CSS classes, which give its colour: an outcome, ``p50`` or ``p95``.
        label: Its name in the legend and the table.
        values: Counts or seconds.
        urls: The URL of what each bucket counts; empty for no links.
    """

    key: str
    label: Any
    values: Sequence[float | None]
    urls: Sequence[str | None] = ()

    @property
    def total(self) -> float:
        """The sum of its values."""
        return sum(value or 0 for value in self.values)


@dataclass(frozen=True, slots=True)
class Panel:
    """Series on one scale, which begins at 0.

    Attributes:
        title: A short text above the panel; empty for none.
        series: The first is the lowest of a stack. Bars of durations stand in front of each other, the last in front.
        intervals: The maximum number of intervals between grid lines, which sets the height.
        is_time: Whether the values are seconds from histograms, not counts.
        threshold: A value that is marked by a dashed line.
        urls: The URL of all series of a bucket; empty for no links.
    """

    title: Any
    series: Sequence[Series]
    intervals: int = 5
    is_time: bool = False
    threshold: float | None = None
    urls: Sequence[str | None] = ()

    @property
    def height(self) -> int:
        """The height in pixels."""
        return self.intervals * INTERVAL

    @property
    def ticks(self) -> list[float]:
        """The values of the grid lines, from 0 to the top of the scale."""
        columns = zip(*(series.values for series in self.series), strict=True)
        heights = [[value or 0.0 for value in column] for column in columns]
        highest = max([self.threshold or 0.0, *map(max if self.is_time else sum, heights)])
        step = _round_step(highest / self.intervals, is_time=self.is_time)
        return [at * step for at in range(max(1, math.ceil(highest / step - 1e-9)) + 1)]

    def shown_at(self, at: int) -> list[tuple[Series, float]]:
        """Return the series with something to show in a bucket, and their values."""
        values = [(series, series.values[at]) for series in self.series]
        return [(series, value) for series, value in values if value or (self.is_time and value is not None)]

    def format(self, value: float | None) -> str:
        """Return a value with its unit."""
        if value is None:
            return "-"
        return format_about(value) if self.is_time else format_number(value)


@dataclass(frozen=True, slots=True)
class Chart:
    """Panels over the same buckets of time.

    Attributes:
        key: The prefix of its elements' ids, unique on its page.
        title: Its heading; the summary begins with it.
        starts: The start of each bucket.
        length: The length of each bucket.
        panels: From the top.
        empty_text: What the summary says if there are no values; by default that no attempts are counted.
    """

    key: str
    title: Any
    starts: Sequence[datetime]
    length: timedelta
    panels: Sequence[Panel]
    empty_text: Any = None

    @property
    def legend(self) -> list[tuple[Series, str]]:
        """Each series, and its total if it counts."""
        series = [(panel, series) for panel in self.panels for series in panel.series]
        return [(series, "" if panel.is_time else panel.format(series.total)) for panel, series in series]

    @property
    def is_empty(self) -> bool:
        """Whether no series has a value other than 0."""
        return not any(series.total for series, _total in self.legend)

    @property
    def has_links(self) -> bool:
        """Whether any bucket is a link."""
        return any(panel.urls for panel in self.panels)

    @property
    def nothing(self) -> str:
        """The sentence for a chart without values."""
        return str(self.empty_text or _("no attempts counted."))

    @property
    def summary(self) -> str:
        """The chart in one sentence: totals of counts, and the highest and the latest of durations."""
        words = [f"{total} {series.label}" for series, total in self.legend if total and series.total]
        for panel in self.panels:
            for series in panel.series if panel.is_time else ():
                if points := [value for value in series.values if value is not None]:
                    values = {"most": panel.format(max(points)), "latest": panel.format(points[-1])}
                    words.append(f"{series.label} " + _("at most %(most)s, last %(latest)s") % values)
        return f"{self.title}: {self.nothing if self.is_empty else ', '.join(words)}"

    @property
    def rows(self) -> list[tuple[str, list[tuple[str, str | None]]]]:
        """The table's rows: times with any value, the latest first, with the text and the URL of each cell."""
        series = [(panel, series) for panel in self.panels for series in panel.series]
        return [
            (
                self.time_at(at),
                [
                    (panel.format(of.values[at]), of.urls[at] if of.urls and of.values[at] else None)
                    for panel, of in series
                ],
            )
            for at in reversed(range(len(self.starts)))
            if any(panel.shown_at(at) for panel in self.panels)
        ]

    @property
    def thresholds(self) -> list[str]:
        """The values of the dashed lines."""
        return [format_brief(panel.threshold) for panel in self.panels if panel.threshold]

    def time_at(self, at: int) -> str:
        """Return the start of a bucket in the reader's zone, short but unambiguous in its chart."""
        moment = localtime(self.starts[at])
        if self.length < timedelta(hours=1):
            return date_format(moment, "H:i")
        return date_format(moment, "D H:i" if self.length < timedelta(hours=2) else "D j M, H:i")

    @property
    def svg(self) -> SafeString:
        """The picture. It has no viewBox: heights are pixels, widths are percentages, and texts keep their size.

        The labels of the scales lie left of it, in a margin that the style sheet leaves.
        """
        top, panels = 0, list[SafeString]()
        for number, panel in enumerate(self.panels):
            top += TITLE
            panels.append(_draw_panel(self, number, panel, top))
            top += panel.height
        return format_html(
            '<svg class="horsies-chart" role="{}" aria-label="{}" width="100%" height="{}">{}{}</svg>',
            "group" if self.has_links else "img",  # the contents of an image are hidden from screen readers
            self.summary,
            top + TIMES,
            _draw_times(self, top),
            _join(panels),
        )


def _draw_times(chart: Chart, bottom: int) -> SafeString:
    """Draw the labels of the times, and their grid lines through all panels."""
    return format_html_join(
        "",
        '<line class="horsies-chart-grid" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>'
        '<text class="horsies-chart-tick horsies-chart-tick-time" x="{0}" y="{3}" aria-hidden="true">{4}</text>',
        (
            (_percent(at / len(chart.starts)), TITLE, bottom + 4, bottom + 16, label)
            for at, label in _time_ticks(chart.starts, chart.length)
        ),
    )


def _draw_panel(chart: Chart, number: int, panel: Panel, top: int) -> SafeString:
    ticks, bottom = panel.ticks, top + panel.height
    scale = panel.height / ticks[-1]
    parts = [
        format_html(
            '<line class="horsies-chart-grid{0}" x1="0" x2="100%" y1="{1}" y2="{1}"/>'
            '<text class="horsies-chart-tick horsies-chart-tick-value" x="-6" y="{2}" aria-hidden="true">{3}</text>',
            "" if value else " horsies-chart-grid-zero",
            _pixels(bottom - value * scale),
            _pixels(bottom - value * scale + 4),
            format_brief(value) if panel.is_time and value else format_number(value, 0),
        )
        for value in ticks
    ]
    if panel.title:
        text = '<text class="horsies-chart-panel-title" x="0" y="{}">{}</text>'
        parts.append(format_html(text, top - 12, panel.title))
    if panel.threshold:
        line = '<line class="horsies-chart-threshold" x1="0" x2="100%" y1="{0}" y2="{0}"/>'
        parts.append(format_html(line, _pixels(bottom - panel.threshold * scale)))
    parts += [_draw_bucket(chart, number, panel, at, bottom, scale) for at in range(len(chart.starts))]
    return _join(parts)


def _draw_bucket(chart: Chart, number: int, panel: Panel, at: int, bottom: int, scale: float) -> SafeString:
    """Draw an area as high as the panel, which shows the values when it is pointed at, and its bars."""
    if not (shown := panel.shown_at(at)):
        return SafeString("")
    buckets = len(chart.starts)
    words = f"{chart.time_at(at)}: " + ", ".join(f"{panel.format(value)} {series.label}" for series, value in shown)
    rect = '<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>'
    parts = [
        format_html("<title>{}</title>", words),
        format_html(
            rect,
            "horsies-chart-column",
            _percent(at / buckets),
            bottom - panel.height,
            _percent(1 / buckets),
            panel.height,
        ),
    ]
    y = float(bottom)
    for series, value in shown:
        y = (bottom if panel.is_time else y) - value * scale
        x, width = _percent((at + (1 - BAR) / 2) / buckets), _percent(BAR / buckets)
        css = f"horsies-chart-bar horsies-chart-bar-{series.key}"
        parts.append(format_html(rect, css, x, _pixels(y), width, _pixels(value * scale)))
    bars = _join(parts)
    if not panel.urls or (url := panel.urls[at]) is None:
        return format_html("<g>{}</g>", bars)
    # The id stays the same when the chart moves on.
    key = f"horsies-{chart.key}-{chart.starts[at]:%Y%m%d%H%M}-{number}"
    return format_html('<a id="{}" href="{}" aria-label="{}">{}</a>', key, url, words, bars)


def _round_step(least: float, *, is_time: bool) -> float:
    """Return the lowest round step that is not below ``least``: at least 1, and 1 ms of durations."""
    if is_time and 1 < least <= _STEPS[-1]:
        return next(step for step in _STEPS if step >= least)
    unit = _DAY if is_time and least > 1 else 1
    least = max(least / unit, 0.001 if is_time else 1)
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9)) * unit


def _time_ticks(starts: Sequence[datetime], length: timedelta) -> Iterator[tuple[int, str]]:
    """Yield the positions and labels of round times: each ten minutes, each four hours, or each midnight."""
    for at, moment in enumerate(map(localtime, starts)):
        if length < timedelta(hours=1):
            if not moment.minute % 10:
                yield at, date_format(moment, "H:i")
        elif length < timedelta(hours=2):
            if not moment.hour % 4:
                yield at, date_format(moment, "H:i" if moment.hour else "D j")
        elif moment.hour < length / timedelta(hours=1):
            yield at, date_format(moment, "D")


def _join(parts: Iterable[SafeString]) -> SafeString:
    return format_html_join("", "{}", ((part,) for part in parts))


def _percent(share: float) -> str:
    return f"{share * 100:.3f}".rstrip("0").rstrip(".") + "%"


def _pixels(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def small_bars(
    values: Sequence[float | None],
    key: str,
    words: str = "",
    threshold: float | None = None,
    lowest_top: float = 0.0,
) -> SafeString:
    """Return values as bars without axes, for a cell of a table; nothing if all are 0.

    ``key`` gives their colour. ``words`` are the same as text; without them, the numbers stand beside the picture. A
    threshold is a dashed line. The top of the scale is the highest of these, or ``lowest_top`` without a threshold.
    """
    highest = max([threshold or lowest_top, *(value or 0.0 for value in values)])
    if not any(values):
        return SafeString("")
    rect = '<rect class="horsies-chart-bar horsies-chart-bar-{}" x="{}" y="{}" width="8" height="{}"/>'
    heights = [(at * 10, max(1.0, value * 20 / highest)) for at, value in enumerate(values) if value]
    bars = format_html_join("", rect, ((key, str(x), _pixels(20 - height), _pixels(height)) for x, height in heights))
    parts = [format_html("<title>{}</title>", words) if words else SafeString(""), bars]
    if threshold:
        line = '<line class="horsies-chart-threshold" x1="0" x2="100%" y1="{0}" y2="{0}"/>'
        parts.append(format_html(line, _pixels(20 - threshold * 20 / highest)))
    return format_html(
        '<svg class="horsies-small-bars" {} focusable="false" viewBox="0 0 {} 20" preserveAspectRatio="none">{}</svg>',
        format_html('role="img" aria-label="{}"', words) if words else SafeString('aria-hidden="true"'),
        str(len(values) * 10),
        _join(parts),
    )
