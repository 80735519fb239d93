"""Compute positions of boxes in columns from left to right, and routes of edges between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from .ordering import Points, minimize_crossings
from .placing import place_points
from .ranking import Edge, assign_columns, transitive_reduction

#: The size of a box and the space around it, in pixels.
WIDTH: Final = 208
HEIGHT: Final = 68
MARGIN: Final = 16
_BOX_GAP: Final = 18
_LINE_GAP: Final = 12

#: The space between two columns, wide enough to tell the edges apart.
_MIN_GAP: Final = 48
_MAX_GAP: Final = 140

#: If there are more edges than this, those implied by a longer path are not drawn.
MAX_EDGES: Final = 250

#: Maximum number of bends. Beyond it the longest edges have none and may run behind boxes.
_MAX_BENDS: Final = 3_000


@dataclass(frozen=True, slots=True)
class Route:
    """The route of an edge in pixels: from its box, past the columns between, to its target."""

    source: int
    target: int
    points: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout in pixels. ``places`` are the boxes' upper left corners; ``left_out`` counts implied edges."""

    width: int
    height: int
    places: tuple[tuple[int, int], ...]
    routes: tuple[Route, ...]
    left_out: int = 0


def compute_layout(count: int, edges: Iterable[Edge]) -> Layout:
    """Return the layout of ``count`` boxes.

    Accepts any edges; those to nowhere, and one of each cycle, are not drawn.
    """
    if count == 0:
        return Layout(2 * MARGIN, 2 * MARGIN, (), ())
    ranks, forward = assign_columns(count, edges)
    drawn = transitive_reduction(ranks, forward) if len(forward) > MAX_EDGES else forward
    grid = _Grid(ranks, drawn)
    columns = minimize_crossings(grid.columns, grid.before, grid.after)

    def apart(one: int, other: int) -> int:
        return (grid.size(one) + grid.size(other)) // 2 + (_BOX_GAP if max(one, other) < count else _LINE_GAP)

    middles = place_points(columns, grid.before, grid.after, apart, count)
    lefts = _column_offsets(columns, grid.after)
    ys = [middle + MARGIN + HEIGHT // 2 for middle in middles]
    lowest = max(y + grid.size(point) // 2 for point, y in enumerate(ys))
    return Layout(
        width=lefts[-1] + WIDTH + MARGIN,
        height=lowest + MARGIN,
        places=tuple((lefts[ranks[box]], ys[box] - HEIGHT // 2) for box in range(count)),
        routes=tuple(_route(edge, grid.ways[edge], ranks, lefts, ys) for edge in drawn),
        left_out=len(forward) - len(drawn),
    )


class _Grid:
    """Boxes and bends of edges as points in columns; each point has edges to the next column only.

    Edges of the same box share their bends as far as their routes coincide.
    """

    def __init__(self, ranks: Sequence[int], edges: Sequence[Edge]) -> None:
        self.count = len(ranks)
        self.columns: Points = [[] for _ in range(max(ranks) + 1)]
        for box, rank in enumerate(ranks):
            self.columns[rank].append(box)
        self.before: Points = [[] for _ in ranks]
        self.after: Points = [[] for _ in ranks]
        self.ways: dict[Edge, list[int]] = {}
        self._lines: dict[Edge, int] = {}
        for source, target in sorted(edges, key=lambda edge: (ranks[edge[1]] - ranks[edge[0]], edge)):
            self._connect(source, target, ranks)

    def size(self, point: int) -> int:
        """Return a point's height."""
        return HEIGHT if point < self.count else 2

    def _connect(self, source: int, target: int, ranks: Sequence[int]) -> None:
        between = range(ranks[source] + 1, ranks[target])
        missing = [rank for rank in between if (source, rank) not in self._lines]
        if len(self._lines) + len(missing) > _MAX_BENDS:
            self.ways[source, target] = []
            return
        way = [self._bend(source, rank) for rank in between]
        self.ways[source, target] = way
        last = way[-1] if way else source
        self.after[last].append(target)
        self.before[target].append(last)

    def _bend(self, source: int, rank: int) -> int:
        """Return the point where the edges of a box pass a column."""
        if (source, rank) in self._lines:
            return self._lines[source, rank]
        point = len(self.after)
        last = self._lines.get((source, rank - 1), source)
        self._lines[source, rank] = point
        self.columns[rank].append(point)
        self.after.append([])
        self.before.append([last])
        self.after[last].append(point)
        return point


def _column_offsets(columns: Points, after: Points) -> list[int]:
    """Return the left edge of each column."""
    lefts = [MARGIN]
    for column in columns[:-1]:
        edges = sum(len(after[point]) for point in column)
        lefts.append(lefts[-1] + WIDTH + min(_MAX_GAP, _MIN_GAP + 2 * edges))
    return lefts


def _route(edge: Edge, way: Sequence[int], ranks: Sequence[int], lefts: Sequence[int], ys: Sequence[int]) -> Route:
    source, target = edge
    points = [(lefts[ranks[source]] + WIDTH, ys[source])]
    for number, point in enumerate(way, start=ranks[source] + 1):
        points += [(lefts[number], ys[point]), (lefts[number] + WIDTH, ys[point])]
    points.append((lefts[ranks[target]], ys[target]))
    return Route(source, target, tuple(points))
