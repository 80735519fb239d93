"""A bar for each box of a graph from its start to its end, on a common time axis."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ...core.durations import format_duration
from .boxes import GraphBox
from .drawing import DrawingStyle
from .labels import MARKS, status_label, truncate
from .node_times import NodeTimes

#: Maximum number of bars: those on the critical path, then the longest ones.
MAX_BARS: Final = 40

_LABEL: Final = 190
_WIDTH: Final = 920
_END: Final = 200
_LINE: Final = 24
_TICKS: Final = 5


#: The height of a bar while the node runs and while it waits, so that colour is not the only difference.
_RUNS: Final = 15
_WAITS: Final = 5


class _Scale(NamedTuple):
    """The time axis: its start, and how long it is."""

    first: datetime
    whole: timedelta

    def x(self, time: datetime) -> float:
        """Return the place of a time."""
        return _LABEL + (_WIDTH - _LABEL - _END) * ((time - self.first) / self.whole)


def draw_timeline(boxes: Sequence[GraphBox], style: DrawingStyle) -> SafeString | str:
    """Return the bars of the boxes that have begun, ordered by start; empty if there are none."""
    known = [(number, times) for number, box in enumerate(boxes) if (times := box.times(style.now))]
    if not known:
        return ""
    critical = set(style.critical)
    longest = sorted(known, key=lambda bar: (bar[0] not in critical, -bar[1].took, bar[0]))[:MAX_BARS]
    bars = sorted(longest, key=lambda bar: (bar[1].began, bar[0]))
    first = min(times.began for _number, times in known)
    whole = max(times.drawn(style.until).ended for _number, times in known) - first or timedelta(milliseconds=1)
    height = _LINE * len(bars) + 28
    lines = [
        _bar(boxes[number], times, style, number in critical, 24 + place * _LINE, _Scale(first, whole))
        for place, (number, times) in enumerate(bars)
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


def _axis(whole: timedelta, height: int) -> SafeString:
    room = _WIDTH - _LABEL - _END
    ticks = [(_LABEL + room * place // _TICKS, whole * place / _TICKS) for place in range(_TICKS + 1)]
    return format_html_join(
        "",
        '<path class="horsies-tick" d="M{} 18V{}"/>'
        '<text class="horsies-kind" x="{}" y="12" text-anchor="middle">{}</text>',
        ((x, height - 4, x, format_duration(time)) for x, time in ticks),
    )


def _bar(box: GraphBox, times: NodeTimes, style: DrawingStyle, is_critical: bool, y: int, scale: _Scale) -> SafeString:
    words = [times.words()] if box.ended else []  # a time that grows is beside the bar
    words += [_("on the critical path")] if is_critical else []
    title = ", ".join([box.label, status_label(box.status), *words])
    drawn = times.drawn(style.until)
    return format_html(
        '<a class="horsies-node horsies-is-{}{}" href="{}"><title>{}</title>'
        '<text class="horsies-mark" x="4" y="{}">{}</text><text class="horsies-name" x="{}" y="{}">{}</text>{}'
        '<text class="horsies-line" x="{}" y="{}">{}</text></a>',
        box.status.lower(),
        " horsies-critical" if is_critical else "",
        style.address(box),
        title,
        y + 12,
        MARKS.get(box.status, "?"),
        22,
        y + 12,
        truncate(box.label, 21),
        format_html_join(
            "",
            '<rect class="{}" x="{}" y="{}" width="{}" height="{}" rx="2"/>',
            (_part(is_run, scale.x(start), scale.x(end), y) for is_run, start, end in drawn.parts()),
        ),
        f"{scale.x(drawn.ended) + 7:.1f}",
        y + 12,
        times.words(tag="tspan"),
    )


def _part(is_run: bool, left: float, right: float, y: int) -> tuple[str, str, str, str, int]:
    height = _RUNS if is_run else _WAITS
    kind = "horsies-runs" if is_run else "horsies-waits"
    return kind, f"{left:.1f}", f"{y + (_RUNS - height) / 2:.1f}", f"{max(1.5, right - left):.1f}", height
