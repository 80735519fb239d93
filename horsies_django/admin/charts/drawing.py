"""Draws a chart as SVG.

The picture has no viewBox: heights are pixels and widths are percentages, so texts keep their size at any width. The
labels of the scales lie left of the picture, in a margin that the style sheet leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from .axis import Axis, time_ticks
from .chart import Chart
from .panel import Kind, Panel

#: Pixels above each panel, with a title and without, for its highest label; and below the last, for the times.
TITLE: Final = 26
NO_TITLE: Final = 10
TIMES: Final = 20

#: The share of a bucket's width that its bar takes.
BAR: Final = 0.8

#: Units of the width of a bucket in the nested picture of a line, which is stretched.
STEP: Final = 10


def draw(chart: Chart) -> SafeString:
    """Return the chart as SVG."""
    top, panels = 0, []
    for number, panel in enumerate(chart.panels):
        top += TITLE if panel.title else NO_TITLE
        panels.append(_panel(chart, number, panel, top))
        top += panel.height
    return format_html(
        '<svg class="horsies-chart" role="{}" aria-label="{}" width="100%" height="{}">{}{}</svg>',
        "group" if chart.has_links else "img",  # the contents of an image are hidden from screen readers
        chart.summary,
        top + TIMES,
        _time_axis(chart, top),
        _join(panels),
    )


def _time_axis(chart: Chart, bottom: int) -> SafeString:
    """Draw the labels of the times, and their grid lines through all panels."""
    ticks, top = time_ticks(chart.starts, chart.length), TITLE if chart.panels[0].title else NO_TITLE
    return format_html_join(
        "",
        '<line class="horsies-chart-grid" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>'
        '<text class="horsies-chart-tick horsies-chart-tick-time" x="{0}" y="{3}" aria-hidden="true">{4}</text>',
        ((_percent(at / len(chart.starts)), top, bottom + 4, bottom + 16, label) for at, label in ticks),
    )


def _panel(chart: Chart, number: int, panel: Panel, top: int) -> SafeString:
    axis, bottom = panel.axis, top + panel.height
    parts = [_scale(axis, top, panel.height)]
    if panel.title:
        parts.append(
            format_html('<text class="horsies-chart-panel-title" x="0" y="{}">{}</text>', top - 12, panel.title)
        )
    if panel.threshold:
        y = _pixels(bottom - axis.share(panel.threshold) * panel.height)
        parts.append(format_html('<line class="horsies-chart-threshold" x1="0" x2="100%" y1="{0}" y2="{0}"/>', y))
    if panel.kind is Kind.LINES:
        parts.append(_lines(panel, axis, top, len(chart.starts)))
    texts = [panel.text_at(at) for at in range(len(chart.starts))]
    parts += [_column(chart, number, panel, axis, top, at, text) for at, text in enumerate(texts) if text]
    return _join(parts)


def _scale(axis: Axis, top: int, height: int) -> SafeString:
    """Draw the grid lines of a scale and their labels."""
    lines = []
    for value, label in axis.ticks:
        y = top + height - axis.share(value) * height
        lines.append(("" if value else " horsies-chart-grid-zero", _pixels(y), _pixels(y + 4), label))
    return format_html_join(
        "",
        '<line class="horsies-chart-grid{0}" x1="0" x2="100%" y1="{1}" y2="{1}"/>'
        '<text class="horsies-chart-tick horsies-chart-tick-value" x="-6" y="{2}" aria-hidden="true">{3}</text>',
        lines,
    )


def _column(chart: Chart, number: int, panel: Panel, axis: Axis, top: int, at: int, text: str) -> SafeString:
    """Draw one bucket of a panel: an area as high as the panel, which is a link if it has a URL, and its bars."""
    time, url = f"{chart.time_at(at)}: ", panel.url_at(at)
    words = time + text
    buckets = len(chart.starts)
    area = format_html(
        '<title>{}</title><rect class="horsies-chart-column" x="{}" y="{}" width="{}" height="{}"/>',
        words,
        _percent(at / buckets),
        top,
        _percent(1 / buckets),
        panel.height,
    )
    is_one_link = bool(url) and len(panel.series) == 1
    bars = _join(_bars(panel, axis, top, at, buckets, time, has_links=not is_one_link))
    if url is None:
        return format_html("<g>{}</g>{}", area, bars)
    link = format_html('<a id="{}" href="{}" aria-label="{}">', chart.id_at(at, number), url, words)
    if is_one_link:
        return format_html("{}{}{}</a>", link, area, bars)
    return format_html('{}{}</a><g aria-hidden="true">{}</g>', link, area, bars)


def _bars(
    panel: Panel, axis: Axis, top: int, at: int, buckets: int, time: str, *, has_links: bool
) -> Iterator[SafeString]:
    """Draw the stacked bars of a bucket, each as high as its value: zero has no height, and one of a million none seen.

    The keyboard reaches the link of the bucket and the table's links, so bars of a stack are for the pointer only.
    """
    if panel.kind is Kind.LINES:
        return
    y = float(top + panel.height)
    for series in panel.series:
        if not (value := series.values[at]):
            continue
        height = axis.share(value) * panel.height
        y -= height
        bar = format_html(
            '<rect class="horsies-chart-bar horsies-chart-bar-{}" x="{}" y="{}" width="{}" height="{}"/>',
            series.key,
            _percent((at + (1 - BAR) / 2) / buckets),
            _pixels(y),
            _percent(BAR / buckets),
            _pixels(height),
        )
        if not has_links:
            yield bar
            continue
        title = format_html("<title>{}{} {}</title>", time, panel.format(value), series.label)
        if url := series.url_at(at):
            yield format_html('<a href="{}" tabindex="-1">{}{}</a>', url, title, bar)
        else:
            yield format_html("<g>{}{}</g>", title, bar)


def _lines(panel: Panel, axis: Axis, top: int, buckets: int) -> SafeString:
    """Draw lines in a nested picture that is stretched to the width. A bucket without a value is a gap."""
    drawn = []
    for series in panel.series:
        points = [
            None if value is None else (f"{(at + 0.5) * STEP:g}", _pixels((1 - axis.share(value)) * panel.height))
            for at, value in enumerate(series.values)
        ]
        drawn.append((series.key, line_path(points)))
    return format_html(
        '<svg x="0" y="{}" width="100%" height="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">{}</svg>',
        top,
        panel.height,
        buckets * STEP,
        panel.height,
        format_html_join("", '<path class="horsies-chart-line horsies-chart-line-{}" d="{}"/>', drawn),
    )


def line_path(points: list[tuple[str, str] | None]) -> str:
    """Return the path through points; it is interrupted at None, and a point alone is a dot."""
    parts, is_begun = [], False
    for at, point in enumerate(points):
        if point is None:
            is_begun = False
            continue
        parts.append(f"{'L' if is_begun else 'M'}{point[0]} {point[1]}")
        if not is_begun and (at + 1 == len(points) or points[at + 1] is None):
            parts.append("h0")
        is_begun = True
    return "".join(parts)


def _percent(share: float) -> str:
    return f"{share * 100:.3f}".rstrip("0").rstrip(".") + "%"


def _pixels(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def _join(parts: Iterable[SafeString]) -> SafeString:
    return format_html_join("", "{}", ((part,) for part in parts))
