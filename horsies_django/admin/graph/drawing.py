"""The SVG of a graph. The style sheet colours it by class; it has no scripts, and all text is escaped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ...core.workflow_status import NodeKind
from .boxes import GraphBox
from .labels import KINDS, MARKS, STATES, describe_counts, mark_counts, status_label, truncate
from .layout import HEIGHT, WIDTH, Layout, Route
from .node_times import NodeTimes

#: Characters of a name that fit into a box, and of the lines below.
_NAME: Final = 21
_LINE: Final = 27

#: The baselines of the lines in a box: of a name and a state; with a time, of all three.
_TWO_LINES: Final = (30, 47)
_THREE_LINES: Final = (20, 35, 50)

#: The bar at the bottom of a box: its left edge, its top, its height, and the width that it leaves free.
_BAR_LEFT: Final = 8.0
_BAR_TOP: Final = 55
_BAR_HEIGHT: Final = 4
_BAR_FREE: Final = 22

#: The style sheet sizes a graph in ``em`` by its own width. There is no other way to pass that width without an inline
#: style, which a strict Content-Security-Policy forbids.
_EMS: Final = 20

#: Corner radius by kind.
_CORNER_RADIUS: Final = {NodeKind.SLEEP: HEIGHT // 2, NodeKind.EVENT: 2}


@dataclass(frozen=True, slots=True)
class DrawingStyle:
    """What a drawing needs besides the layout: ``now`` ends running nodes, ``critical`` has positions of boxes.

    The timeline draws what has not ended up to ``until``.
    """

    address: Callable[[GraphBox], str]
    now: datetime | None
    critical: Sequence[int] = ()
    title: str = ""
    until: datetime | None = None


def draw(boxes: Sequence[GraphBox], layout: Layout, style: DrawingStyle) -> SafeString:
    """Return the SVG of these boxes."""
    ways = set(pairwise(style.critical))
    routes = sorted(layout.routes, key=lambda route: (route.source, route.target) in ways)  # critical edges on top
    return format_html(
        '<svg class="horsies-graph horsies-drawn" xmlns="http://www.w3.org/2000/svg" font-size="{}" width="{}"'
        ' height="{}" viewBox="0 0 {} {}" role="group" aria-label="{}">{}{}{}</svg>',
        f"{layout.width / _EMS:.2f}",
        layout.width,
        layout.height,
        layout.width,
        layout.height,
        style.title,
        _ARROWS,
        format_html_join("", "{}", ((_edge(route, boxes, ways),) for route in routes)),
        format_html_join(
            "",
            "{}",
            (
                (_box(box, *place, style, is_critical=number in set(style.critical)),)
                for number, (box, place) in enumerate(zip(boxes, layout.places, strict=True))
            ),
        ),
    )


_ARROWS: Final = format_html(
    "<defs>{}</defs>",
    format_html_join(
        "",
        '<marker id="horsies-arrow{}" class="horsies-arrow{}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8"'
        ' markerHeight="8" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z"/></marker>',
        (("", ""), ("-critical", " horsies-critical")),
    ),
)


def _edge(route: Route, boxes: Sequence[GraphBox], critical: Collection[tuple[int, int]]) -> SafeString:
    is_critical = (route.source, route.target) in critical
    status = boxes[route.target].status
    goes = " horsies-goes" if status in ("RUNNING", "ENQUEUED") else ""
    return format_html(
        '<path class="horsies-edge{}{}" fill="none" stroke="currentColor" marker-end="url(#horsies-arrow{})" d="{}"/>',
        " horsies-critical" if is_critical else "",
        goes,
        "-critical" if is_critical else "",
        edge_path(route.points),
    )


def edge_path(points: Sequence[tuple[int, int]]) -> str:
    """Return the SVG path of an edge: curves between the columns, straight lines past their boxes."""
    (x, y), *rest = points
    parts = [f"M{x} {y}"]
    is_gap = True
    for next_x, next_y in rest:
        middle = (x + next_x) // 2
        is_curve = is_gap and next_y != y
        parts.append(f"C{middle} {y} {middle} {next_y} {next_x} {next_y}" if is_curve else f"L{next_x} {next_y}")
        x, y, is_gap = next_x, next_y, not is_gap
    return "".join(parts)


def _box(box: GraphBox, x: int, y: int, style: DrawingStyle, *, is_critical: bool) -> SafeString:
    node = box.first
    status = box.status
    label = box.label
    times = box.times(style.now)
    words = [
        status_label(status) if not box.counts else f"{status_label(status)}: {describe_counts(box.counts)}",
        str(times.words()) if times and not times.is_open else "",  # a time that grows is in the box
    ]
    words += [str(KINDS[node.kind])] if node.kind in KINDS else []
    words += [_("conditional")] if node.is_conditional else []
    words += [node.error_code] if node.error_code else []
    words += [_("on the critical path")] if is_critical else []
    title = ", ".join(filter(None, [label if box.is_folded else node.node_id, *words]))
    return format_html(
        '<a class="horsies-node horsies-is-{}{}" href="{}"><title>{}</title>'
        '<g transform="translate({} {})">{}{}{}{}</g></a>',
        status.lower(),
        " horsies-critical" if is_critical else "",
        style.address(box),
        title,
        x,
        y,
        _shape(box),
        _texts(box, label, status, times),
        _count_bar(box.counts) if box.counts else _time_bar(times),
        _corner_marks(node.kind, node.is_conditional),
    )


def _shape(box: GraphBox) -> SafeString:
    """Return the shape of a box: stacked for several nodes, with a double line for a subworkflow."""
    round_ = _CORNER_RADIUS.get(NodeKind(box.first.kind), 8) if box.first.kind in NodeKind.values else 8
    is_many = box.is_folded or box.first.kind == NodeKind.MAP
    behind = [(6, 6), (3, 3)] if is_many else []
    rects = [("horsies-behind", x, y, WIDTH - 6, HEIGHT - 6, round_) for x, y in behind]
    size = (WIDTH - 6, HEIGHT - 6) if is_many else (WIDTH, HEIGHT)
    rects.append(("horsies-box", 0, 0, *size, round_))
    if box.first.kind == NodeKind.SUBWORKFLOW:
        rects.append(("horsies-inner", 4, 4, size[0] - 8, size[1] - 8, round_ - 3))
    return format_html_join("", '<rect class="{}" x="{}" y="{}" width="{}" height="{}" rx="{}"/>', rects)


def _texts(box: GraphBox, label: str, status: str, times: NodeTimes | None) -> SafeString:
    words = mark_counts(box.counts) if box.counts else status_label(status)
    if not box.counts and box.first.error_code and status == "FAILED":
        words = f"{words}: {box.first.error_code}"
    lines = [("horsies-line", truncate(words, _LINE))]
    lines += [("horsies-line horsies-time", _time_line(times))] if times else []
    name_at, *line_at = _THREE_LINES if times else _TWO_LINES
    return format_html(
        '<text class="horsies-mark" x="20" y="{}" text-anchor="middle">{}</text>'
        '<text class="horsies-name" x="36" y="{}">{}</text>{}',
        HEIGHT // 2 + 4,
        MARKS.get(status, "?"),
        name_at,
        truncate(label, _NAME),
        format_html_join(
            "",
            '<text class="{}" x="36" y="{}">{}</text>',
            ((kind, at, line) for (kind, line), at in zip(lines, line_at, strict=True)),
        ),
    )


def _time_line(times: NodeTimes) -> SafeString | str:
    """Return the time waited and run; of one that grows and is too long for the box, the part that grows."""
    words = times.words("brief")
    if not times.is_open:
        return truncate(words, _LINE)
    return times.words("brief", "tspan") if len(words) <= _LINE else times.growing_words("brief", "tspan")


def _count_bar(counts: Mapping[str, int]) -> SafeString | str:
    """Return the number of nodes in each state as a bar at the bottom of the box."""
    total = sum(counts.values())
    parts = ((f"horsies-part horsies-is-{state.lower()}", counts[state]) for state in STATES if counts.get(state))
    return _bar(parts, total)


def _time_bar(times: NodeTimes | None) -> SafeString | str:
    """Return what of its time a node waited and ran, in order, as a bar at the bottom of the box."""
    times = None if times is None else times.drawn()
    if times is None or times.runs is None or not times.took:
        return ""
    parts = (
        ("horsies-runs" if is_run else "horsies-waits", (end - start).total_seconds())
        for is_run, start, end in times.parts()
    )
    return _bar(parts, times.took.total_seconds())


def _bar(parts: Iterable[tuple[str, float]], total: float) -> SafeString | str:
    if not total:
        return ""
    return format_html_join(
        "",
        '<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>',
        (
            (kind, f"{left:.1f}", _BAR_TOP, f"{width:.1f}", _BAR_HEIGHT)
            for kind, left, width in _side_by_side(parts, total, WIDTH - _BAR_FREE)
        ),
    )


def _side_by_side(parts: Iterable[tuple[str, float]], total: float, room: float) -> Iterator[tuple[str, float, float]]:
    """Yield the kind, the left edge and the width of each part."""
    left = _BAR_LEFT
    for kind, amount in parts:
        width = room * amount / total
        yield kind, left, width
        left += width


def _corner_marks(kind: str, is_conditional: bool) -> SafeString:
    """Return the kind above the box's right edge, and a diamond at its left if the node has a condition."""
    word = KINDS.get(kind)
    return format_html(
        "{}{}",
        format_html('<text class="horsies-kind" x="{}" y="-3" text-anchor="end">{}</text>', WIDTH - 4, word)
        if word
        else "",
        format_html('<path class="horsies-if" d="M0 {}l7 7l-7 7l-7 -7z"/>', HEIGHT // 2 - 7) if is_conditional else "",
    )
