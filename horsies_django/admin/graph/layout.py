"""Compute positions of boxes in columns from left to right, and routes of edges between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from statistics import fmean
from typing import Final, TypeAlias

#: From a box to one that depends on it, by number.
Edge: TypeAlias = tuple[int, int]

#: The size of a box and the space around it, in pixels.
WIDTH: Final = 208
HEIGHT: Final = 68
MARGIN: Final = 16
_COLUMN_GAP: Final = 64
_BOX_GAP: Final = 18
_LINE_GAP: Final = 12

#: The number of passes that order the columns, alternating forward and backward.
_SWEEPS: Final = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout in pixels: the boxes' upper left corners, and the points of each edge between two boxes."""

    width: int
    height: int
    places: tuple[tuple[int, int], ...]
    routes: Mapping[Edge, tuple[tuple[int, int], ...]]


def compute_layout(count: int, edges: Iterable[Edge]) -> Layout:
    """Return the layout of ``count`` boxes, each one column after the last of its sources.

    Edges that a longer path implies are not drawn. If the edges have a cycle, none is drawn.
    """
    try:
        ranks, drawn = _ranks(count, edges)
    except CycleError:
        ranks, drawn = [0] * count, []
    grid = _Grid(ranks, drawn)
    grid.order_columns()
    heights = grid.heights()
    lefts = [MARGIN + rank * (WIDTH + _COLUMN_GAP) for rank in range(len(grid.columns))]
    top = min(heights.values(), default=0) - MARGIN - HEIGHT // 2
    middles = {point: round(height - top) for point, height in heights.items()}
    return Layout(
        lefts[-1] + WIDTH + MARGIN,
        max(middles.values(), default=0) + HEIGHT // 2 + MARGIN,
        tuple((lefts[ranks[box]], middles[box] - HEIGHT // 2) for box in range(count)),
        {edge: tuple(_points(way, lefts[ranks[edge[0]] :], middles)) for edge, way in grid.ways.items()},
    )


def _ranks(count: int, edges: Iterable[Edge]) -> tuple[list[int], list[Edge]]:
    """Return the column of each box, and the edges that no longer path implies. Raises CycleError."""
    sources: list[set[int]] = [set() for _ in range(count)]
    targets: list[set[int]] = [set() for _ in range(count)]
    for source, target in edges:
        sources[target].add(source)
        targets[source].add(target)
    order = list(TopologicalSorter(dict(enumerate(sources))).static_order())
    ranks = [0] * count
    for box in order:
        ranks[box] = max((ranks[source] + 1 for source in sources[box]), default=0)
    reachable = [0] * count  # bits of an integer
    drawn: list[Edge] = []
    for box in reversed(order):
        for target in sorted(targets[box], key=lambda target: ranks[target]):
            if not reachable[box] >> target & 1:
                drawn.append((box, target))
                reachable[box] |= 1 << target | reachable[target]
    return ranks, sorted(drawn)


class _Grid:
    """Boxes, and the points at which edges pass a column, by number. A point has neighbours in adjacent columns only.

    Edges from the same box share their points as far as their ways coincide.
    """

    def __init__(self, ranks: Sequence[int], edges: Iterable[Edge]) -> None:
        self._boxes = len(ranks)
        self.columns: list[list[int]] = [[] for _ in range(max(ranks, default=0) + 1)]
        for box, rank in enumerate(ranks):
            self.columns[rank].append(box)
        self._before: dict[int, list[int]] = defaultdict(list)
        self._after: dict[int, list[int]] = defaultdict(list)
        self._passing: dict[tuple[int, int], int] = {}
        self.ways = {
            (source, target): self._way(source, target, range(ranks[source] + 1, ranks[target]))
            for source, target in edges
        }

    def _way(self, source: int, target: int, between: Iterable[int]) -> list[int]:
        way = [source]
        for rank in between:
            if (source, rank) not in self._passing:
                point = self._passing[source, rank] = self._boxes + len(self._passing)
                self.columns[rank].append(point)
                self._connect(way[-1], point)
            way.append(self._passing[source, rank])
        self._connect(way[-1], target)
        return [*way, target]

    def _connect(self, point: int, following: int) -> None:
        self._after[point].append(following)
        self._before[following].append(point)

    def order_columns(self) -> None:
        """Sort each column by the mean position of its points' neighbours, so that few edges cross."""
        row = {point: float(place) for column in self.columns for place, point in enumerate(column)}
        for sweep in range(_SWEEPS):
            near = self._after if sweep % 2 else self._before
            for column in reversed(self.columns) if sweep % 2 else self.columns:
                wanted = {point: fmean(map(row.__getitem__, near[point] or [point])) for point in column}
                column.sort(key=lambda point: (wanted[point], point))
                row.update((point, float(place)) for place, point in enumerate(column))

    def heights(self) -> dict[int, float]:
        """Return the middle of each point: as close to those before it as the distances in its column allow."""
        heights: dict[int, float] = {}
        for column in self.columns:
            free, placed, wanted = 0.0, list[float](), list[float]()
            for point, following in pairwise([*column, column[-1]] if column else []):
                sources = self._before[point]
                wanted.append(fmean(map(heights.__getitem__, sources)) if sources else free)
                placed.append(max(free, wanted[-1]) if placed else wanted[-1])
                free = placed[-1] + self._distance(point, following)
            shift = fmean(wanted) - fmean(placed) if placed else 0.0
            heights.update((point, height + shift) for point, height in zip(column, placed, strict=True))
        return heights

    def _distance(self, point: int, following: int) -> float:
        boxes = (point < self._boxes) + (following < self._boxes)
        return boxes * HEIGHT / 2 + (_BOX_GAP if boxes == 2 else _LINE_GAP)


def _points(way: Sequence[int], lefts: Sequence[int], middles: Mapping[int, int]) -> Iterable[tuple[int, int]]:
    """Yield the points of an edge: its source, both sides of each column between, and its target."""
    for number, (left, point) in enumerate(zip(lefts, way, strict=False)):
        if number:
            yield left, middles[point]
        if number < len(way) - 1:
            yield left + WIDTH, middles[point]
