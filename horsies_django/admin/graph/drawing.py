"""The SVG of a graph. The style sheet colours it by class; it has no scripts, and all text is escaped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ...core.durations import format_duration
from ...core.workflow_status import NodeKind
from .boxes import GraphBox
from .labels import KINDS, MARKS, STATES, describe_counts, mark_counts, status_label, truncate
from .layout import HEIGHT, WIDTH, Layout, Route

#: Characters of a name that fit into a box, and of the line below.
_NAME: Final = 21
_LINE: Final = 26

#: The style sheet sizes a graph in ``em`` by its own width. There is no other way to pass that width without an inline
#: style, which a strict Content-Security-Policy forbids.
_EMS: Final = 20

#: Corner radius by kind.
_CORNER_RADIUS: Final = {NodeKind.SLEEP: HEIGHT // 2, NodeKind.EVENT: 2}


@dataclass(frozen=True, slots=True)
class DrawingStyle:
    """What a drawing needs besides the layout: ``now`` ends running nodes, ``critical`` has positions of boxes."""

    address: Callable[[GraphBox], str]
    now: datetime | None
    critical: Sequence[int] = ()
    title: str = ""


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
    lasted = _duration_text(box, style.now)
    words = [
        status_label(status) if not box.counts else f"{status_label(status)}: {describe_counts(box.counts)}",
        lasted,
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
        _texts(box, label, status, lasted),
        _bar(box.counts),
        _corner_marks(node.kind, node.is_conditional),
    )


def _duration_text(box: GraphBox, now: datetime | None) -> str:
    if box.began is None or box.status in ("SKIPPED", "PENDING", "READY"):
        return ""
    end = box.ended or now
    return format_duration(end - box.began) if end else ""


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


def _texts(box: GraphBox, label: str, status: str, lasted: str) -> SafeString:
    words = mark_counts(box.counts) if box.counts else status_label(status)
    line = f"{words} · {lasted}" if lasted else words
    line = words if box.counts and len(line) > _LINE else line
    return format_html(
        '<text class="horsies-mark" x="20" y="31" text-anchor="middle">{}</text>'
        '<text class="horsies-name" x="36" y="22">{}</text><text class="horsies-line" x="36" y="39">{}</text>',
        MARKS.get(status, "?"),
        truncate(label, _NAME),
        truncate(line, _LINE),
    )


def _bar(counts: Mapping[str, int]) -> SafeString | str:
    """Return the number of nodes in each state as a bar at the bottom of the box."""
    total = sum(counts.values())
    if not total:
        return ""
    return format_html_join(
        "", '<rect class="horsies-part horsies-is-{}" x="{}" y="43" width="{}" height="3"/>', _segments(counts, total)
    )


def _segments(counts: Mapping[str, int], total: int) -> Iterable[tuple[str, str, str]]:
    left, room = 8.0, WIDTH - 22
    for state in STATES:
        if count := counts.get(state, 0):
            yield state.lower(), f"{left:.1f}", f"{room * count / total:.1f}"
            left += room * count / total


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
