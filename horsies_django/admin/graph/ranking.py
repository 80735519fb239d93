"""Assign boxes to columns: each is one column after the last of its dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

#: From a box to one that depends on it, by position.
Edge: TypeAlias = tuple[int, int]


def assign_columns(count: int, edges: Iterable[Edge]) -> tuple[list[int], list[Edge]]:
    """Return the column of each of ``count`` boxes, and the edges that go forward.

    Only damaged rows have others: an edge to nowhere is left out, and one edge of each cycle.
    """
    after = _targets_by_source(count, edges)
    open_count = [0] * count
    for targets in after:
        for target in targets:
            open_count[target] += 1
    columns = [0] * count
    is_done = [number == 0 for number in open_count]
    todo = [place for place in range(count) if is_done[place]]
    forward: list[Edge] = []
    for forced in range(count + 1):
        while todo:
            place = todo.pop()
            for target in after[place]:
                if is_done[target]:
                    continue
                forward.append((place, target))
                columns[target] = max(columns[target], columns[place] + 1)
                open_count[target] -= 1
                if open_count[target] == 0:
                    is_done[target] = True
                    todo.append(target)
        if forced < count and not is_done[forced]:  # all others wait for a cycle
            is_done[forced] = True
            todo.append(forced)
    return columns, sorted(forward)


def transitive_reduction(columns: Sequence[int], edges: Sequence[Edge]) -> list[Edge]:
    """Return the edges without those implied by a longer path. All must go forward in ``columns``."""
    after: list[list[int]] = [[] for _ in columns]
    for source, target in edges:
        after[source].append(target)
    reachable = [0] * len(columns)  # as bits of an integer
    kept: list[Edge] = []
    for place in sorted(range(len(columns)), key=lambda place: -columns[place]):
        seen = 0
        for target in sorted(after[place], key=lambda target: columns[target]):
            if not seen >> target & 1:
                kept.append((place, target))
                seen |= 1 << target | reachable[target]
        reachable[place] = seen
    return sorted(kept)


def _targets_by_source(count: int, edges: Iterable[Edge]) -> list[list[int]]:
    after: list[set[int]] = [set() for _ in range(count)]
    for source, target in edges:
        if source != target and 0 <= source < count and 0 <= target < count:
            after[source].add(target)
    return [sorted(targets) for targets in after]
