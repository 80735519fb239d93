"""Small bars: a node's time waited and run, a step of the critical path, and the nodes of a workflow by state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from .labels import STATES, describe_counts
from .node_times import NodeTimes

#: A part of a bar: its CSS class and its amount. A part without a class is a gap.
Part = tuple[str, float]

#: The least width of a part in percent, so that one failed node of a thousand is seen.
_MIN_PERCENT = 0.8

#: The top and the height of a part. A wait is thin, so that colour is not the only difference.
_THIN = (3, 4)
_THICK = (0, 10)


def time_bar(times: NodeTimes | None) -> SafeString | str:
    """Return what of its time a node waited and ran, in order; empty if that is unknown. The words beside it say it."""
    times = None if times is None else times.drawn()
    if times is None or times.runs is None or not times.took:
        return ""
    return _svg(
        ((_kind(is_run), (end - start).total_seconds()) for is_run, start, end in times.parts()),
        'aria-hidden="true"',
    )


def step_bar(before: float, waited: float, ran: float, after: float) -> SafeString | str:
    """Return a step's place in the whole: what was before it, what it waited and ran, and what is after it."""
    return _svg((("", before), ("horsies-waits", waited), ("horsies-runs", ran), ("", after)), 'aria-hidden="true"')


def state_bar(counts: Mapping[str, int]) -> SafeString | str:
    """Return the nodes of a workflow by state, with a text for screen readers."""
    parts = [(f"horsies-is-{state.lower()}", float(counts.get(state, 0))) for state in STATES]
    return _svg(parts, format_html('role="img" aria-label="{}"', describe_counts(counts)))


def _kind(is_run: bool) -> str:
    return "horsies-runs" if is_run else "horsies-waits"


def _svg(parts: Iterable[Part], attributes: str) -> SafeString | str:
    parts = [part for part in parts if part[1] > 0]
    total = sum(amount for _kind, amount in parts)
    if not total:
        return ""
    widths = [max(_MIN_PERCENT if kind else 0.0, 100 * amount / total) for kind, amount in parts]
    scale = 100 / sum(widths)
    rects, left = [], 0.0
    for (kind, _amount), width in zip(parts, widths, strict=True):
        if kind:
            top, height = _THIN if kind == "horsies-waits" else _THICK
            rects.append((kind, f"{left:.2f}", top, f"{width * scale:.2f}", height))
        left += width * scale
    return format_html(
        '<svg class="horsies-split" viewBox="0 0 100 10" preserveAspectRatio="none" focusable="false" {}>{}</svg>',
        attributes if isinstance(attributes, SafeString) else SafeString(attributes),
        format_html_join("", '<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>', rects),
    )
