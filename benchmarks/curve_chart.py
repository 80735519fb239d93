"""Draws the measure ``curve`` as an SVG line chart: waits against the rate, both on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from .measures import loads
from .results import Results

_WIDTH: Final = 1000
_HEIGHT: Final = 640
_LEFT: Final = 80
_RIGHT: Final = 775
_TOP: Final = 50
_BOTTOM: Final = 570
_LEGEND: Final = _RIGHT + 25

#: The lowest wait of the axis in ms. Shorter waits are drawn on it.
_LEAST: Final = 0.1

#: Colours with enough contrast to white and to black. The first are for this queue.
_OURS: Final = ("#2f9e5b", "#86b817")
_OTHERS: Final = (
    *("#d1495b", "#e8853b", "#3f7fd6", "#7fb2ea", "#8a63d2", "#c65bb5"),
    *("#14a3a8", "#9a7b52", "#c9a400", "#7d8794", "#e07a9b"),
)
_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#333}.title{font-weight:600;font-size:15px}.rate{font-size:11px}"
    ".grid{stroke:#ddd;stroke-width:1}.axis{stroke:#888;stroke-width:1}.hollow{fill:#fff}"
    ".p50{fill:none;stroke-width:2}.p99{fill:none;stroke-width:1.3;stroke-dasharray:5 4;opacity:.65}"
    ".key{stroke:#777}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#3a3a3a}.hollow{fill:#111}.key{stroke:#999}}"
)


@dataclass(frozen=True, slots=True)
class _Point:
    """The waits in ms at a rate in tasks a second, and whether the senders reached it."""

    rate: float
    p50: float
    p99: float
    is_reached: bool


def curve_svg(results: Results) -> str | None:
    """Return the chart, or None without results of the measure."""
    curves = {peer: points for peer in results.rounds.get("curve", {}) if (points := _points(results, peer))}
    if not curves:
        return None
    colors = _colors(curves)
    highest = max(point.p99 for points in curves.values() for point in points)
    decades = max(1, math.ceil(math.log10(highest / _LEAST)))
    parts = [
        f'<text class="title" x="10" y="28">{escape(_TITLE)}</text>',
        *_grid(decades),
        *(_line(points, colors[peer], decades, "p99") for peer, points in curves.items()),
        *(_line(points, colors[peer], decades, "p50") for peer, points in curves.items()),
        *_legend(colors),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}">'
        f"<style>{_STYLE}</style>{''.join(parts)}</svg>\n"
    )


_TITLE: Final = f"curve: from the return of the enqueue call to the start of the body, {loads.CURVE_SENDERS} senders"


def _points(results: Results, peer: str) -> list[_Point]:
    points = []
    for load in loads.CURVE:
        found = [results.summary("curve", peer, name(load)) for name in (loads.p50, loads.p99, loads.sent)]
        medians = [summary.median for summary in found if summary is not None]
        if len(medians) == len(found):
            p50, p99, sent = medians
            points.append(_Point(load.rate, p50, p99, sent >= loads.REACHED * load.rate))
    return points


def _colors(peers: Iterable[str]) -> dict[str, str]:
    colors: dict[str, str] = {}
    ours = others = 0
    for peer in peers:
        if peer.startswith("horsies-django"):
            colors[peer] = _OURS[ours % len(_OURS)]
            ours += 1
        else:
            colors[peer] = _OTHERS[others % len(_OTHERS)]
            others += 1
    return colors


def _x(rate: float) -> float:
    first, last = (math.log10(loads.CURVE[index].rate) for index in (0, -1))
    # Leave some room for the first and the last point.
    return _LEFT + 15 + (_RIGHT - _LEFT - 30) * (math.log10(rate) - first) / (last - first)


def _y(milliseconds: float, decades: int) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * math.log10(max(_LEAST, milliseconds) / _LEAST) / decades


def _grid(decades: int) -> Iterable[str]:
    for load in loads.CURVE:
        x = _x(load.rate)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>'
        yield f'<text class="rate" x="{x:.1f}" y="{_BOTTOM + 20}" text-anchor="middle">{load.rate:,}</text>'
    for decade in range(decades + 1):
        value = _LEAST * 10**decade
        y = _y(value, decades)
        label = f"{value:,.0f}" if decade else f"≤ {value:g}"
        yield f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    middle = (_TOP + _BOTTOM) / 2
    yield f'<path class="axis" fill="none" d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}"/>'
    yield f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_BOTTOM + 48}" text-anchor="middle">tasks sent per second</text>'
    yield f'<text transform="translate(22 {middle}) rotate(-90)" text-anchor="middle">wait in ms</text>'


def _line(points: Sequence[_Point], color: str, decades: int, kind: str) -> str:
    wait: Callable[[_Point], float] = (lambda point: point.p50) if kind == "p50" else (lambda point: point.p99)
    places = [(_x(point.rate), _y(wait(point), decades), point.is_reached) for point in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
    dots = "".join(_dot(x, y, color, is_reached, 3.5 if kind == "p50" else 2.5) for x, y, is_reached in places)
    return f'<polyline class="{kind}" stroke="{color}" points="{path}"/>{dots}'


def _dot(x: float, y: float, color: str, is_reached: bool, radius: float) -> str:
    fill = f'fill="{color}"' if is_reached else 'class="hollow"'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" stroke="{color}" stroke-width="1.5" {fill}/>'


def _legend(colors: dict[str, str]) -> Iterable[str]:
    y = _TOP + 8
    for peer, color in colors.items():
        yield f'<line x1="{_LEGEND}" x2="{_LEGEND + 24}" y1="{y}" y2="{y}" stroke="{color}" stroke-width="3"/>'
        yield f'<text x="{_LEGEND + 32}" y="{y + 4}">{escape(peer)}</text>'
        y += 22
    y += 14
    for kind, text in (("p50", "half of the tasks (p50)"), ("p99", "99 of 100 (p99)")):
        yield f'<line class="{kind} key" x1="{_LEGEND}" x2="{_LEGEND + 24}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{_LEGEND + 32}" y="{y + 4}">{text}</text>'
        y += 22
    yield f'<circle class="hollow key" cx="{_LEGEND + 12}" cy="{y}" r="3.5" stroke-width="1.5"/>'
    for text in ("the senders sent less", f"than {loads.REACHED:.0%} of this rate".replace("%", " %")):
        yield f'<text x="{_LEGEND + 32}" y="{y + 4}">{text}</text>'
        y += 17
