"""Draws the results as an SVG bar chart with a group of bars for each measure."""

from __future__ import annotations

from html import escape
from typing import Final

from .measures.catalog import MEASURES
from .results import Results, Summary
from .table import format_number

_WIDTH: Final = 900
_LEFT: Final = 190
_ROW: Final = 22
_HEAD: Final = 46
_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#333}.title{font-weight:600;font-size:15px}"
    ".bar{fill:#9db4c8}.ours{fill:#2f7d4f}.spread{stroke:#333;stroke-width:1.5}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.spread{stroke:#ddd}}"
)


def svg(results: Results) -> str:
    """Return the chart: the main metric of each measure, the best peer first."""
    groups: list[str] = []
    top = 0
    for name in MEASURES:
        if ranked := _ranked(results, name):
            groups.append(_group(name, ranked, top))
            top += _HEAD + _ROW * len(ranked)
    body = "".join(groups)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + 10}" width="{_WIDTH}">'
        f"<style>{_STYLE}</style>{body}</svg>\n"
    )


def _ranked(results: Results, measure: str) -> list[tuple[str, Summary]]:
    summaries = [
        (peer, results.summary(measure, peer, MEASURES[measure].main_metric)) for peer in results.rounds[measure]
    ]
    present = [(peer, summary) for peer, summary in summaries if summary is not None]
    return sorted(present, key=lambda each: each[1].median, reverse=not MEASURES[measure].lower_is_better)


def _group(name: str, ranked: list[tuple[str, Summary]], top: int) -> str:
    measure = MEASURES[name]
    longest = max(summary.high for _, summary in ranked) or 1.0
    title = f"{name}: {measure.about} [{measure.main_metric}{', lower is better' if measure.lower_is_better else ''}]"
    parts = [f'<text class="title" x="10" y="{top + 28}">{escape(title)}</text>']
    scale = (_WIDTH - _LEFT - 90) / longest
    for row, (peer, summary) in enumerate(ranked):
        parts.append(_bar(peer, summary, top + _HEAD + row * _ROW, scale))
    return "".join(parts)


def _bar(peer: str, summary: Summary, y: int, scale: float) -> str:
    kind = "ours" if peer.startswith("horsies-django") else "bar"
    middle, low, high = (value * scale for value in (summary.median, summary.low, summary.high))
    return (
        f'<text x="{_LEFT - 8}" y="{y + 11}" text-anchor="end">{escape(peer)}</text>'
        f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{middle:.1f}" height="15"/>'
        f'<line class="spread" x1="{_LEFT + low:.1f}" x2="{_LEFT + high:.1f}" y1="{y + 7.5}" y2="{y + 7.5}"/>'
        f'<text x="{_LEFT + high + 6:.1f}" y="{y + 11}">{format_number(summary.median)}</text>'
    )
