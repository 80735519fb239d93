"""A small bar chart of failed attempts, for a row of a table. The numbers are in the row and on the group's page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

#: Units of the SVG's viewBox.
HEIGHT: Final = 20
STEP: Final = 2

#: Maximum bars; longer series are merged.
MAX_BARS: Final = 60


def trend_bars(series: Sequence[int]) -> SafeString | str:
    """Return the bars, the highest as high as the chart; nothing for a series without numbers."""
    size = -(-len(series) // MAX_BARS) or 1
    bars = [sum(series[at : at + size]) for at in range(0, len(series), size)]
    highest = max(bars, default=0)
    if not highest:
        return ""
    heights = ((at, max(1.0, number * HEIGHT / highest)) for at, number in enumerate(bars) if number)
    return format_html(
        '<svg class="horsies-trend-bars" aria-hidden="true" focusable="false" viewBox="0 0 {} {}"'
        ' preserveAspectRatio="none">{}</svg>',
        str(len(bars) * STEP),
        str(HEIGHT),
        format_html_join(
            "",
            '<rect x="{}" y="{}" width="{}" height="{}"/>',
            ((str(at * STEP), f"{HEIGHT - height:.1f}", str(STEP * 0.8), f"{height:.1f}") for at, height in heights),
        ),
    )
