"""The critical path: of what each node waited for, that which ended last. To be faster, make this shorter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .boxes import GraphNode


def critical_path(nodes: Sequence[GraphNode]) -> list[GraphNode]:
    """Return the nodes that the end of a workflow waited for, first to last; while it runs, what runs longest.

    Takes rows as they are: a node without times is not on it, and a circle ends it.
    """
    by_index = {node.position: node for node in nodes}
    here = _last_node(nodes)
    path: list[GraphNode] = []
    seen: set[int] = set()
    while here is not None and here.position not in seen:
        seen.add(here.position)
        path.append(here)
        here = _latest_source(here, [by_index[index] for index in here.waits_for if index in by_index])
    return path[::-1]


def _last_node(nodes: Sequence[GraphNode]) -> GraphNode | None:
    running = [node for node in nodes if node.began is not None and node.ended is None]
    if running:
        return min(running, key=lambda node: (node.began, node.position))
    ran = [node for node in nodes if node.ended is not None and node.status != "SKIPPED"]
    return max(ran, key=_end_key, default=None)


def _latest_source(node: GraphNode, sources: Sequence[GraphNode]) -> GraphNode | None:
    """The source that ended last before the node began: with ``join`` ANY others may have ended later."""
    ended = [source for source in sources if source.ended is not None]
    in_time = [source for source in ended if node.began is not None and source.ended <= node.began]  # type: ignore[operator]  # ended ones
    return max(in_time or ended, key=_end_key, default=None)


def _end_key(node: GraphNode) -> tuple[Any, int]:
    return node.ended, -node.position  # of ended ones
