"""Order the points of each column so that few edges cross (Sugiyama's method with barycentres)."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

#: Number of sweeps over the columns, alternating forward and backward.
_SWEEPS: Final = 8

#: The points of each column, or the neighbours of each point in an adjacent column. Points are numbers.
Points = list[list[int]]


def minimize_crossings(columns: Points, before: Points, after: Points) -> Points:
    """Return the columns with their points ordered so that few edges cross.

    ``before`` and ``after`` are each point's neighbours in the adjacent columns.
    """
    here = _depth_first_order(columns, after)
    best, fewest = here, _count_crossings(here, after)
    for sweep in range(_SWEEPS):
        if fewest == 0:
            break
        here = _sweep(here, after, backward=True) if sweep % 2 else _sweep(here, before, backward=False)
        if (count := _count_crossings(here, after)) < fewest:
            best, fewest = here, count
    return best


def _depth_first_order(columns: Points, after: Points) -> Points:
    """Return the points of each column in depth-first order."""
    column_of = {point: number for number, column in enumerate(columns) for point in column}
    found: Points = [[] for _ in columns]
    seen: set[int] = set()
    todo = [point for column in reversed(columns) for point in reversed(column)]
    while todo:
        point = todo.pop()
        if point not in seen:
            seen.add(point)
            found[column_of[point]].append(point)
            todo += [target for target in reversed(after[point]) if target not in seen]
    return found


def _sweep(columns: Points, neighbours: Points, *, backward: bool) -> Points:
    """Sort each column by the mean position of its points' neighbours in the previous column of the sweep."""
    result = [list(column) for column in columns]
    numbers = range(len(columns) - 2, -1, -1) if backward else range(1, len(columns))
    for number in numbers:
        beside = {point: place for place, point in enumerate(result[number + 1 if backward else number - 1])}
        column = result[number]
        wanted = {
            point: sum(beside[one] for one in neighbours[point]) / len(neighbours[point])
            if neighbours[point]
            else place
            for place, point in enumerate(column)
        }
        column.sort(key=wanted.__getitem__)
    return result


def _count_crossings(columns: Points, after: Points) -> int:
    """Return the number of crossing pairs of edges."""
    count = 0
    for column, following in pairwise(columns):
        place = {point: number for number, point in enumerate(following)}
        ends: list[int] = []
        for point in column:
            targets: Sequence[int] = sorted(place[target] for target in after[point])
            count += sum(len(ends) - bisect_right(ends, target) for target in targets)
            for target in targets:
                insort(ends, target)
    return count
