"""A sparkline: one line without axes, on a linear scale from 0, with its highest and latest value as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ...core.durations import format_about
from .drawing import STEP, line_path

#: Pixels.
WIDTH: Final = 64
HEIGHT: Final = 18

#: Seconds at the top of the picture, at least, without a threshold: short waits are a line at the bottom.
MIN_TOP: Final = 1.0

#: Pixels above and below the line, so that its whole width is visible.
_MARGIN: Final = 2


def sparkline(title: Any, seconds: Sequence[float | None], threshold: float | None = None) -> SafeString | str:
    """Return durations of histograms over time as a small picture; empty if there are none.

    A threshold, in seconds, is a dashed line.
    """
    known = [value for value in seconds if value is not None]
    if not known:
        return ""
    top, inner = max([*known, threshold or MIN_TOP]), HEIGHT - 2 * _MARGIN
    points = [
        None if value is None else (f"{(at + 0.5) * STEP:g}", f"{HEIGHT - _MARGIN - value / top * inner:.2f}")
        for at, value in enumerate(seconds)
    ]
    words = _("%(title)s: at most %(most)s, last %(latest)s.") % {
        "title": title,
        "most": format_about(max(known)),
        "latest": format_about(known[-1]),
    }
    limit: SafeString | str = ""
    if threshold:
        y = f"{HEIGHT - _MARGIN - threshold / top * inner:.2f}"
        limit = format_html('<path class="horsies-chart-threshold" d="M0 {}H{}"/>', y, len(seconds) * STEP)
    return format_html(
        '<svg class="horsies-sparkline" role="img" aria-label="{}" width="{}" height="{}" viewBox="0 0 {} {}"'
        ' preserveAspectRatio="none"><title>{}</title>{}'
        '<path class="horsies-chart-line horsies-chart-line-p95" d="{}"/></svg>',
        words,
        WIDTH,
        HEIGHT,
        len(seconds) * STEP,
        HEIGHT,
        words,
        limit,
        line_path(points),
    )
