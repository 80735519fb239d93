"""Which node waits for which, as numbers. Nothing here is recursive: a chain may have a hundred thousand nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def dependents_of(waits_for: Sequence[Iterable[int]]) -> list[list[int]]:
    """Return for each node which nodes wait for it, in their order."""
    dependents: list[list[int]] = [[] for _ in waits_for]
    for index, sources in enumerate(waits_for):
        for source in sources:
            dependents[source].append(index)
    return dependents


def cycles_in(waits_for: Sequence[Sequence[int]], dependents: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return cycles that have no node in common, each as nodes of which every one waits for the one before it.

    Without the nodes of those there is no other cycle.
    """
    open_count = [len(sources) for sources in waits_for]
    is_done = [False] * len(waits_for)

    def settle(settled: list[int]) -> None:
        """Take these as done, and every node that waits for nothing else."""
        for index in settled:
            is_done[index] = True
        while settled:
            for dependent in dependents[settled.pop()]:
                open_count[dependent] -= 1
                if open_count[dependent] == 0 and not is_done[dependent]:
                    is_done[dependent] = True
                    settled.append(dependent)

    settle([index for index, count in enumerate(open_count) if count == 0])
    cycles: list[list[int]] = []
    for index in range(len(waits_for)):
        while not is_done[index]:
            cycles.append(_find_cycle(index, waits_for, is_done))
            settle(list(cycles[-1]))
    return cycles


def _find_cycle(start: int, waits_for: Sequence[Sequence[int]], is_done: Sequence[bool]) -> list[int]:
    """Go from a node that can't settle to one that it waits for and that can't either, until one comes again."""
    seen: dict[int, int] = {}
    path: list[int] = []
    here = start
    while here not in seen:
        seen[here] = len(path)
        path.append(here)
        here = next(source for source in waits_for[here] if not is_done[source])
    return path[seen[here] :][::-1]
