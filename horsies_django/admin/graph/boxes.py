"""The boxes of a graph: a node, a map with its items, or many similar nodes folded into one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import UUID

from ...core.numbers import format_number
from ...core.workflow_status import NodeKind
from .layout import Edge

#: More similar nodes than this become one box: same task, same predecessors, same successors.
FOLD_ABOVE: Final = 20

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})

#: The states of nodes, the most urgent first.
URGENCY: Final = ("FAILED", "RUNNING", "ENQUEUED", "READY", "PENDING", "SKIPPED", "COMPLETED")


class GraphNode(NamedTuple):  # not a dataclass, which takes three times as long to make: there may be five thousand
    """A node of the graph. ``waits_for`` are the positions of its dependencies in the list of nodes.

    ``began`` is when its dependencies allowed it to start. ``items`` is the number of a map's items by state.
    """

    key: int
    position: int
    node_id: str
    status: str
    kind: str = NodeKind.TASK
    began: datetime | None = None
    ended: datetime | None = None
    error_code: str | None = None
    task_id: UUID | None = None
    name: str = ""
    is_conditional: bool = False
    waits_for: tuple[int, ...] = ()
    items: Mapping[str, int] = _NOTHING

    @property
    def label(self) -> str:
        """The node's id; with the function's name if the id was generated."""
        head, _, place = self.node_id.rpartition(":")
        return f"{self.name.rpartition('.')[2]} :{place}" if head and place.isdigit() and self.name else self.node_id


class GraphBox(NamedTuple):
    """One node, or several similar ones. ``counts`` is the number of nodes or of a map's items by state.

    The state of several is the worst one. The box lasts from its first start to its last end.
    """

    nodes: Sequence[GraphNode]
    counts: Mapping[str, int]
    status: str
    began: datetime | None
    ended: datetime | None

    @classmethod
    def of(cls, nodes: Sequence[GraphNode]) -> GraphBox:
        """Return the box of these nodes."""
        first = nodes[0]
        if len(nodes) == 1:
            return cls(nodes, first.items, first.status, first.began, first.ended)
        counts = Counter(node.status for node in nodes)
        ends = [node.ended for node in nodes if node.ended]
        return cls(
            nodes,
            counts,
            next(state for state in URGENCY if counts[state]),
            min((node.began for node in nodes if node.began), default=None),
            max(ends) if len(ends) == len(nodes) else None,
        )

    @property
    def first(self) -> GraphNode:
        """The node that names the box."""
        return self.nodes[0]

    @property
    def is_folded(self) -> bool:
        """Whether it stands for several nodes."""
        return len(self.nodes) > 1

    @property
    def label(self) -> str:
        """The label; for several nodes their number and their function's name."""
        if not self.is_folded:
            return self.first.label
        return f"{format_number(len(self.nodes))} × {self.first.name.rpartition('.')[2] or self.first.label}"


def fold_nodes(nodes: Sequence[GraphNode]) -> list[GraphBox]:
    """Return the boxes of these nodes in order. None of them may be an item of a map."""
    dependents: dict[int, list[int]] = defaultdict(list)
    for node in nodes:
        for source in node.waits_for:
            dependents[source].append(node.position)
    alike: dict[Hashable, list[GraphNode]] = defaultdict(list)
    for node in nodes:
        alone = node.position if node.kind == NodeKind.MAP else None
        links = (node.waits_for, tuple(dependents[node.position]))
        alike[alone, links, node.name, node.kind, node.is_conditional].append(node)
    groups = [[*group] for group in alike.values() if len(group) > FOLD_ABOVE]
    groups += [[node] for group in alike.values() if len(group) <= FOLD_ABOVE for node in group]
    return [GraphBox.of(group) for group in sorted(groups, key=lambda group: group[0].position)]


def edges_between(boxes: Sequence[GraphBox]) -> list[Edge]:
    """Return the edges between boxes, by their numbers."""
    box_of = {node.position: number for number, box in enumerate(boxes) for node in box.nodes}
    return sorted(
        {
            (box_of[source], number)
            for number, box in enumerate(boxes)
            for node in box.nodes
            for source in node.waits_for
            if source in box_of
        }
    )


def critical_path(nodes: Sequence[GraphNode]) -> list[GraphNode]:
    """Return the nodes that determine when the workflow ends, first to last: of its dependencies, the last to end.

    While the workflow runs, the path leads to the longest running node.
    """
    by_position = {node.position: node for node in nodes}
    running = [node for node in nodes if node.began is not None and node.ended is None]
    ended = [node for node in nodes if node.ended is not None and node.status != "SKIPPED"]
    here = min(running, key=lambda node: (node.began, node.position), default=max(ended, key=_end_key, default=None))
    path: list[GraphNode] = []
    for _ in nodes:
        if here is None:
            break
        path.append(here)
        sources = [by_position[place] for place in here.waits_for if place in by_position]
        ended = [source for source in sources if source.ended is not None]
        # With ``join`` ANY, other dependencies may have ended after it began.
        in_time = [source for source in ended if here.began and source.ended and source.ended <= here.began]
        here = max(in_time or ended, key=_end_key, default=None)
    return path[::-1]


def _end_key(node: GraphNode) -> tuple[Any, int]:
    return node.ended, -node.position  # all have ended
