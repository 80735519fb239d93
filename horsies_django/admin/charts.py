"""Bar charts as inline SVG, with a text summary and a table of the same numbers.

The style sheet colours them by class, so a chart follows the admin's light or dark theme and needs no inline style.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.utils.formats import date_format, number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..ops.metrics.history import COMPLETED, FAILED, OUTCOMES, RETRIED, TimeBucket

#: Units of the SVG's viewBox; the picture is stretched to the available width.
HEIGHT: Final = 100
STEP: Final = 10
GAP: Final = 2

LABELS: Final = {
    COMPLETED: gettext_lazy("completed"),
    RETRIED: gettext_lazy("retried"),
    FAILED: gettext_lazy("failed"),
}


@dataclass(frozen=True, slots=True)
class Chart:
    """Ended attempts over time. ``key`` is unique on its page."""

    key: str
    title: str
    bars: Sequence[TimeBucket]
    time_format: str  # for Django's ``date`` filter

    @property
    def total(self) -> dict[str, int]:
        """The number of attempts by outcome."""
        return {outcome: sum(bar.counts[outcome] for bar in self.bars) for outcome in OUTCOMES}

    @property
    def highest(self) -> int:
        """The height of the highest bar, in attempts."""
        return max((bar.counts.total() for bar in self.bars), default=0)

    @property
    def summary(self) -> str:
        """The chart in one or two sentences."""
        if not self.highest:
            return _("%(title)s: no attempts finished.") % {"title": self.title}
        peak = max(self.bars, key=lambda bar: bar.counts.total())
        return _("%(title)s: %(counts)s. Peak at %(time)s: %(most)s.") % {
            "title": self.title,
            "counts": describe_outcomes(self.total),
            "time": self.time_of(peak),
            "most": number_format(self.highest, force_grouping=True),
        }

    @property
    def first(self) -> str:
        """The time of the first bar."""
        return self.time_of(self.bars[0]) if self.bars else ""

    @property
    def last(self) -> str:
        """The time of the last bar."""
        return self.time_of(self.bars[-1]) if self.bars else ""

    @property
    def rows(self) -> list[tuple[str, list[int]]]:
        """The table's rows: times at which attempts ended, the latest first."""
        bars = [bar for bar in reversed(self.bars) if bar.counts.total()]
        return [(self.time_of(bar), [bar.counts[outcome] for outcome in OUTCOMES]) for bar in bars]

    @property
    def legend(self) -> list[tuple[str, Any, str]]:
        """The outcome, label and total of each colour."""
        return [
            (outcome, LABELS[outcome], number_format(number, force_grouping=True))
            for outcome, number in self.total.items()
        ]

    @property
    def headings(self) -> list[Any]:
        """The table's headings after the time."""
        return [LABELS[outcome] for outcome in OUTCOMES]

    def time_of(self, bar: TimeBucket) -> str:
        """Return the start of a bar in the reader's time zone."""
        return date_format(_local(bar.start), self.time_format)

    def svg(self) -> SafeString:
        """Return the chart as SVG."""
        scale = _scale(self.highest)
        drawn = [_bar_svg(at, bar, scale, self.time_of(bar)) for at, bar in enumerate(self.bars)]
        return format_html(
            '<svg class="horsies-chart" role="img" aria-label="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">'
            "{}</svg>",
            self.summary,
            str(len(self.bars) * STEP),
            str(HEIGHT),
            format_html_join("", "{}", ((bar,) for bar in drawn)),
        )


def describe_outcomes(counts: dict[str, int]) -> str:
    """Return counts by outcome in words. Zeros are left out, unless all are zero."""
    outcomes = [outcome for outcome in OUTCOMES if counts[outcome]] or [COMPLETED]
    return ", ".join(f"{number_format(counts[outcome], force_grouping=True)} {LABELS[outcome]}" for outcome in outcomes)


def _scale(highest: int) -> Callable[[int], float]:
    """Return a function from a number to a bar's height. Anything above zero gets a visible height."""
    return lambda number: max(1.5, number * HEIGHT / highest) if number else 0.0


def _bar_svg(at: int, bar: TimeBucket, scale: Callable[[int], float], time: str) -> SafeString | str:
    """Return one bar, with failures at the bottom so that they stay visible however many attempts succeeded."""
    if not bar.counts.total():
        return ""
    pieces, y = [], float(HEIGHT)
    for outcome in reversed(OUTCOMES):
        height = min(scale(bar.counts[outcome]), y)
        y -= height
        if height:
            pieces.append((outcome, str(at * STEP), f"{y:.1f}", str(STEP - GAP), f"{height:.1f}"))
    rects = format_html_join("", '<rect class="horsies-bar-{}" x="{}" y="{}" width="{}" height="{}"/>', pieces)
    return format_html(
        "<g><title>{}: {}</title>{}</g>",
        time,
        describe_outcomes({outcome: bar.counts[outcome] for outcome in OUTCOMES}),
        rects,
    )


def _local(moment: datetime) -> datetime:
    return localtime(moment) if settings.USE_TZ else moment
