"""The SVG of a graph, and the words of states and kinds in it.

The style sheet colours the SVG by class. It has no scripts, and all text is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final
from unicodedata import east_asian_width

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...core.numbers import format_duration, format_number
from ...core.workflow_status import NodeKind, WorkflowTaskStatus
from ..formatting import format_time
from .boxes import GraphBox
from .layout import HEIGHT, WIDTH, Edge, Layout

#: The mark before a state's label, as in the lists, so that colour is never the only sign.
MARKS: Final[Mapping[str, str]] = {
    "PENDING": "○",
    "READY": "◌",
    "ENQUEUED": "◔",
    "RUNNING": "◑",
    "COMPLETED": "●",
    "FAILED": "✕",
    "SKIPPED": "⊘",
}

#: The order of states in counts, and all states of nodes.
STATES: Final = ("COMPLETED", "FAILED", "SKIPPED", "RUNNING", "ENQUEUED", "READY", "PENDING")

#: States without a time of their own.
UNSTARTED: Final = ("PENDING", "READY", "SKIPPED")

#: Labels of kinds; a plain task has none.
KINDS: Final[Mapping[str, Any]] = {
    NodeKind.MAP: gettext_lazy("map"),
    NodeKind.SUBWORKFLOW: gettext_lazy("subworkflow"),
    NodeKind.SLEEP: gettext_lazy("sleep"),
    NodeKind.EVENT: gettext_lazy("event"),
}

#: Characters of a name that fit into a box, and of the lines below.
_NAME: Final = 21
_LINE: Final = 27

#: The baselines of the name and the lines below it, by their number.
_BASELINES: Final = {2: (30, 47), 3: (20, 35, 50)}

#: The style sheet sizes a graph in ``em`` by its own width. There is no other way to pass that width without an inline
#: style, which a strict Content-Security-Policy forbids.
_EMS: Final = 20

#: The least width of a part of a bar in percent, so that one failed node of a thousand is seen.
_MIN_PERCENT: Final = 0.8

_ARROWS: Final = format_html(
    "<defs>{}</defs>",
    format_html_join(
        "",
        '<marker id="horsies-arrow{}" class="horsies-arrow{}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8"'
        ' markerHeight="8" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z"/></marker>',
        (("", ""), ("-critical", " horsies-critical")),
    ),
)


def draw(
    boxes: Sequence[GraphBox], layout: Layout, title: str, address: Callable[[GraphBox], str], critical: Sequence[int]
) -> SafeString:
    """Return the SVG of these boxes. ``address`` returns the URL of a box; ``critical`` has the numbers of a path."""
    ways = set(pairwise(critical))
    edges = sorted(layout.routes, key=lambda edge: edge in ways)  # critical edges on top
    return format_html(
        '<svg class="horsies-graph horsies-drawn" xmlns="http://www.w3.org/2000/svg" font-size="{}" width="{}"'
        ' height="{}" viewBox="0 0 {} {}" role="group" aria-label="{}">{}{}{}</svg>',
        f"{layout.width / _EMS:.2f}",
        layout.width,
        layout.height,
        layout.width,
        layout.height,
        title,
        _ARROWS,
        format_html_join("", "{}", ((_edge(edge, layout, boxes, ways),) for edge in edges)),
        format_html_join(
            "",
            "{}",
            (
                (_box(box, *place, address(box), is_critical=number in critical),)
                for number, (box, place) in enumerate(zip(boxes, layout.places, strict=True))
            ),
        ),
    )


def _edge(edge: Edge, layout: Layout, boxes: Sequence[GraphBox], critical: Collection[Edge]) -> SafeString:
    return format_html(
        '<path class="horsies-edge{}{}" fill="none" stroke="currentColor" marker-end="url(#horsies-arrow{})" d="{}"/>',
        " horsies-critical" if edge in critical else "",
        " horsies-goes" if boxes[edge[1]].status in ("RUNNING", "ENQUEUED") else "",
        "-critical" if edge in critical else "",
        _path(layout.routes[edge]),
    )


def _path(points: Sequence[tuple[int, int]]) -> str:
    """Return the SVG path of an edge: curves between the columns, straight lines past their boxes."""
    parts = [f"M{points[0][0]} {points[0][1]}"]
    for (x, y), (next_x, next_y) in pairwise(points):
        middle = (x + next_x) // 2
        parts.append(f"L{next_x} {next_y}" if y == next_y else f"C{middle} {y} {middle} {next_y} {next_x} {next_y}")
    return "".join(parts)


def _box(box: GraphBox, x: int, y: int, address: str, *, is_critical: bool) -> SafeString:
    node, time = box.first, time_of(box.status, box.began, box.ended)
    state = status_label(box.status)
    words = [box.label if box.is_folded else node.node_id, state]
    if box.counts:
        words[1] = f"{state}: {describe_counts(box.counts)}"
    kind = ", ".join(filter(None, (str(KINDS.get(node.kind, "")), _("conditional") if node.is_conditional else "")))
    words += [time, kind, node.error_code or "", _("on the critical path") if is_critical else ""]
    lines = [f"{state}: {node.error_code}" if node.error_code and box.status == "FAILED" else state, time]
    if box.counts:
        lines[0] = _mark_counts(box.counts)
    return format_html(
        '<a class="horsies-node horsies-is-{}{}" href="{}"><title>{}</title>'
        '<g transform="translate({} {})">{}{}{}{}</g></a>',
        box.status.lower(),
        " horsies-critical" if is_critical else "",
        address,
        ", ".join(filter(None, words)),
        x,
        y,
        _shape(box),
        _texts(MARKS.get(box.status, "?"), box.label, [line for line in lines if line]),
        _parts(box.counts, "horsies-part ", 8, 55, WIDTH - 22, 4),
        format_html('<text class="horsies-kind" x="{}" y="-3" text-anchor="end">{}</text>', WIDTH - 4, kind)
        if kind
        else "",
    )


def _shape(box: GraphBox) -> SafeString:
    """Return the shape of a box: stacked for several nodes."""
    is_many = box.is_folded or box.first.kind == NodeKind.MAP
    width, height = (WIDTH - 6, HEIGHT - 6) if is_many else (WIDTH, HEIGHT)
    rects = [("horsies-behind", shift, shift, width, height) for shift in ((6, 3) if is_many else ())]
    rects.append(("horsies-box", 0, 0, width, height))
    return format_html_join("", '<rect class="{}" x="{}" y="{}" width="{}" height="{}" rx="8"/>', rects)


def _texts(mark: str, label: str, lines: Sequence[str]) -> SafeString:
    name_at, *line_at = _BASELINES[len(lines) + 1]
    return format_html(
        '<text class="horsies-mark" x="20" y="{}" text-anchor="middle">{}</text>'
        '<text class="horsies-name" x="36" y="{}">{}</text>{}',
        HEIGHT // 2 + 4,
        mark,
        name_at,
        _truncate(label, _NAME),
        format_html_join(
            "",
            '<text class="horsies-line" x="36" y="{}">{}</text>',
            ((at, _truncate(line, _LINE)) for at, line in zip(line_at, lines, strict=True)),
        ),
    )


def state_bar(counts: Mapping[str, int]) -> SafeString:
    """Return the nodes of a workflow by state as a bar, with a text for screen readers."""
    return format_html(
        '<svg class="horsies-split" viewBox="0 0 100 10" preserveAspectRatio="none" focusable="false" role="img"'
        ' aria-label="{}">{}</svg>',
        describe_counts(counts),
        _parts(counts, "", 0, 0, 100, 10),
    )


def _parts(counts: Mapping[str, int], kind: str, left: float, top: int, room: float, height: int) -> SafeString:
    """Return the rectangles of a bar, one for each state."""
    total = sum(counts.values())
    widths = {state: max(_MIN_PERCENT, 100 * counts[state] / total) for state in STATES if counts.get(state)}
    rects = []
    for state, width in widths.items():
        part = width * room / sum(widths.values())
        rects.append((f"{kind}horsies-is-{state.lower()}", f"{left:.2f}", top, f"{part:.2f}", height))
        left += part
    return format_html_join("", '<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>', rects)


def time_of(status: str, began: datetime | None, ended: datetime | None) -> str:
    """Return how long a node took, or since when it has been open; empty if it has not begun."""
    if began is None or status in UNSTARTED:
        return ""
    return _("since %s") % format_time(began, exactly=False) if ended is None else format_duration(ended - began)


def status_label(status: str) -> str:
    """Return the label of a state."""
    return str(WorkflowTaskStatus(status).label)


def describe_counts(counts: Mapping[str, int]) -> str:
    """Return the counts by state in words."""
    return ", ".join(f"{format_number(counts[state])} {status_label(state)}" for state in STATES if counts.get(state))


def _mark_counts(counts: Mapping[str, int]) -> str:
    """Return the counts by state with marks; failures come first and in words.

    Between two numbers, the mark of a failure would look like a multiplication: "● 3  ✕ 2".
    """
    failed = [f"{format_number(counts['FAILED'])} {status_label('FAILED')}"] if counts.get("FAILED") else []
    others = [
        f"{MARKS[state]} {format_number(counts[state])}" for state in STATES if state != "FAILED" and counts.get(state)
    ]
    return "  ".join([*failed, *others])


def _truncate(text: str, cells: int) -> str:
    """Truncate text to a number of cells; a wide character takes two."""
    used = 0
    for place, letter in enumerate(text):
        used += 2 if east_asian_width(letter) in "WF" else 1
        if used > cells:
            return text[: max(0, place - 1)] + "…"
    return text
