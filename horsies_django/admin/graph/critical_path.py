"""The critical path: for each node, the dependency that ended last. A shorter path makes the workflow faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .boxes import GraphNode


def critical_path(nodes: Sequence[GraphNode]) -> list[GraphNode]:
    """Return the nodes on the critical path, first to last; while the workflow runs, up to the longest running node.

    Accepts incomplete rows: a node without times is not on the path, and a cycle ends it.
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
    """Return the dependency that ended last before the node began; with ``join`` ANY others may have ended later."""
    ended = [source for source in sources if source.ended is not None]
    in_time = [source for source in ended if source.ended and node.began and source.ended <= node.began]
    return max(in_time or ended, key=_end_key, default=None)


def _end_key(node: GraphNode) -> tuple[Any, int]:
    return node.ended, -node.position  # all have ended
