"""A bar for each box of a graph from its start to its end, on a common time axis."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ...core.durations import format_duration
from .boxes import GraphBox
from .drawing import DrawingStyle
from .labels import status_label, truncate

#: Maximum number of bars: those on the critical path, then the longest ones.
MAX_BARS: Final = 40

_LABEL: Final = 190
_WIDTH: Final = 920
_END: Final = 90
_LINE: Final = 24
_TICKS: Final = 5


def draw_timeline(boxes: Sequence[GraphBox], style: DrawingStyle) -> SafeString | str:
    """Return the bars of the boxes that have begun, ordered by start; empty if there are none."""
    known = [(number, *times) for number, box in enumerate(boxes) if (times := _times(box, style.now))]
    if not known:
        return ""
    critical = set(style.critical)
    longest = sorted(known, key=lambda bar: (bar[0] not in critical, bar[1] - bar[2], bar[0]))[:MAX_BARS]
    bars = sorted(longest, key=lambda bar: (bar[1], bar[0]))
    first = min(began for _number, began, _ended in known)
    whole = max(ended for _number, _began, ended in known) - first or timedelta(milliseconds=1)
    height = _LINE * len(bars) + 28
    lines = [
        _bar(
            boxes[number],
            style,
            number in critical,
            24 + place * _LINE,
            (began - first) / whole,
            (ended - first) / whole,
        )
        for place, (number, began, ended) in enumerate(bars)
    ]
    return format_html(
        '<svg class="horsies-graph horsies-bars" xmlns="http://www.w3.org/2000/svg" width="{}" height="{}"'
        ' viewBox="0 0 {} {}" role="group" aria-label="{}">{}{}</svg>',
        _WIDTH,
        height,
        _WIDTH,
        height,
        _("Node timeline"),
        _axis(whole, height),
        format_html_join("", "{}", ((line,) for line in lines)),
    )


def _times(box: GraphBox, now: datetime | None) -> tuple[datetime, datetime] | None:
    if box.began is None or box.status in ("PENDING", "READY", "SKIPPED"):
        return None
    ended = box.ended or now or box.began
    return box.began, max(box.began, ended)


def _axis(whole: timedelta, height: int) -> SafeString:
    room = _WIDTH - _LABEL - _END
    ticks = [(_LABEL + room * place // _TICKS, whole * place / _TICKS) for place in range(_TICKS + 1)]
    return format_html_join(
        "",
        '<path class="horsies-tick" d="M{} 18V{}"/>'
        '<text class="horsies-kind" x="{}" y="12" text-anchor="middle">{}</text>',
        ((x, height - 4, x, format_duration(time)) for x, time in ticks),
    )


def _bar(box: GraphBox, style: DrawingStyle, is_critical: bool, y: int, start: float, end: float) -> SafeString:
    room = _WIDTH - _LABEL - _END
    left, width = _LABEL + room * start, max(2.0, room * (end - start))
    times = _times(box, style.now)
    lasted = format_duration(times[1] - times[0]) if times else ""
    title = ", ".join(
        [box.label, status_label(box.status), lasted] + ([_("on the critical path")] if is_critical else [])
    )
    return format_html(
        '<a class="horsies-node horsies-is-{}{}" href="{}"><title>{}</title>'
        '<text class="horsies-name" x="{}" y="{}" text-anchor="end">{}</text>'
        '<rect class="horsies-box" x="{}" y="{}" width="{}" height="15" rx="3"/>'
        '<text class="horsies-line" x="{}" y="{}">{}</text></a>',
        box.status.lower(),
        " horsies-critical" if is_critical else "",
        style.address(box),
        title,
        _LABEL - 10,
        y + 12,
        truncate(box.label, 24),
        f"{left:.1f}",
        y,
        f"{width:.1f}",
        f"{left + width + 5:.1f}",
        y + 12,
        lasted,
    )
