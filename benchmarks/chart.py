"""The chart: bars, one group for each measure, as SVG that any browser shows."""

from __future__ import annotations

from html import escape
from typing import Final

from .measures.catalog import MEASURES
from .results import Figure, Results
from .table import number

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
    """Draw the figure that each measure is compared by."""
    groups: list[str] = []
    top = 0
    for name in MEASURES:
        if found := _found(results, name):
            groups.append(_group(name, found, top))
            top += _HEAD + _ROW * len(found)
    body = "".join(groups)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + 10}" width="{_WIDTH}">'
        f"<style>{_STYLE}</style>{body}</svg>\n"
    )


def _found(results: Results, measure: str) -> list[tuple[str, Figure]]:
    figures = [(peer, results.figure(measure, peer, MEASURES[measure].figure)) for peer in results.rounds[measure]]
    present = [(peer, figure) for peer, figure in figures if figure is not None]
    return sorted(present, key=lambda each: each[1].median, reverse=not MEASURES[measure].less_is_better)


def _group(name: str, found: list[tuple[str, Figure]], top: int) -> str:
    measure = MEASURES[name]
    most = max(figure.high for _, figure in found) or 1.0
    title = f"{name}: {measure.about} [{measure.figure}{', less is better' if measure.less_is_better else ''}]"
    parts = [f'<text class="title" x="10" y="{top + 28}">{escape(title)}</text>']
    scale = (_WIDTH - _LEFT - 90) / most
    for row, (peer, figure) in enumerate(found):
        parts.append(_bar(peer, figure, top + _HEAD + row * _ROW, scale))
    return "".join(parts)


def _bar(peer: str, figure: Figure, y: int, scale: float) -> str:
    kind = "ours" if peer.startswith("horsies-django") else "bar"
    middle, low, high = (value * scale for value in (figure.median, figure.low, figure.high))
    return (
        f'<text x="{_LEFT - 8}" y="{y + 11}" text-anchor="end">{escape(peer)}</text>'
        f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{middle:.1f}" height="15"/>'
        f'<line class="spread" x1="{_LEFT + low:.1f}" x2="{_LEFT + high:.1f}" y1="{y + 7.5}" y2="{y + 7.5}"/>'
        f'<text x="{_LEFT + high + 6:.1f}" y="{y + 11}">{number(figure.median)}</text>'
    )
