"""Compute the vertical position of each point: close to its neighbours, in column order, with minimum distances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from .ordering import Points

_SWEEPS: Final = 6

#: The pull to be straight of a part of an edge, by how many of its ends are boxes: long edges pull most.
_WEIGHTS: Final = (8.0, 2.0, 1.0)


def place_points(
    columns: Points, before: Points, after: Points, apart: Callable[[int, int], int], boxes: int
) -> list[int]:
    """Return the vertical position of each point's centre, the smallest being 0.

    ``apart`` returns the minimum distance of two successive points. Points below ``boxes`` are boxes,
    the others are bends of edges.
    """
    offsets = {number: _offsets(column, apart) for number, column in enumerate(columns)}
    found = [0.0] * sum(map(len, columns))
    for number, column in enumerate(columns):
        for point, offset in zip(column, offsets[number], strict=True):
            found[point] = float(offset)

    def settle(number: int, *neighbours: Points) -> None:
        """Move the points of a column as close as possible to the weighted mean of their neighbours."""
        column = columns[number]
        wanted, weights = [], []
        for point in column:
            pulls = [(one, _WEIGHTS[(one < boxes) + (point < boxes)]) for side in neighbours for one in side[point]]
            weight = sum(pull for _, pull in pulls)
            wanted.append(sum(found[one] * pull for one, pull in pulls) / weight if weight else found[point])
            weights.append(weight or 0.01)
        for point, height in zip(column, _spread(wanted, weights, offsets[number]), strict=True):
            found[point] = height

    for sweep in range(_SWEEPS):
        for number in range(len(columns)) if sweep % 2 == 0 else reversed(range(len(columns))):
            settle(number, before if sweep % 2 == 0 else after)
    for number in range(len(columns)):
        settle(number, before, after)
    return _rounded_down(columns, offsets, found)


def _offsets(column: Sequence[int], apart: Callable[[int, int], int]) -> list[int]:
    offsets = [0]
    for one, next_ in pairwise(column):
        offsets.append(offsets[-1] + apart(one, next_))
    return offsets[: len(column)]


def _spread(wanted: Sequence[float], weights: Sequence[float], offsets: Sequence[int]) -> list[float]:
    """Return the positions closest to the wanted ones, by weighted least squares, with the minimum distances.

    This is isotonic regression by pooling adjacent violators, after the minimum distances are subtracted.
    """
    pools: list[tuple[float, float, int]] = []
    for want, weight, offset in zip(wanted, weights, offsets, strict=True):
        mean, total, size = want - offset, weight, 1
        while pools and pools[-1][0] >= mean:
            other, others, more = pools.pop()
            mean = (mean * total + other * others) / (total + others)
            total, size = total + others, size + more
        pools.append((mean, total, size))
    means = [mean for mean, _, size in pools for _ in range(size)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def _rounded_down(columns: Points, offsets: dict[int, list[int]], found: Sequence[float]) -> list[int]:
    """Round down so that the minimum distances still hold."""
    whole = [0] * len(found)
    for number, column in enumerate(columns):
        least: int | None = None
        for point, offset in zip(column, offsets[number], strict=True):
            base = int((found[point] - offset) // 1)
            least = base if least is None else max(least, base)
            whole[point] = least + offset
    lowest = min(whole, default=0)
    return [height - lowest for height in whole]
