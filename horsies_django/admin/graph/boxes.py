"""The boxes of a graph: a node, a map with its items, or many similar nodes folded into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import UUID

from ...core.numbers import format_number
from ...core.workflow_status import NodeKind
from .node_times import NodeTimes, Run, merge_runs
from .ranking import Edge

#: More similar nodes than this become one box: same task, same predecessors, same successors.
FOLD_ABOVE: Final = 20


_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class GraphNode(NamedTuple):  # not a dataclass, which takes three times as long to make: there may be ten thousand
    """A node of the graph. ``waits_for`` are the positions of its dependencies in the list of nodes.

    ``began`` is when its dependencies allowed it to start; ``runs`` are the stretches in which it ran, None if unknown.
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
    waits_for: tuple[int, ...] = ()
    is_conditional: bool = False
    items: Mapping[str, int] = _NOTHING
    runs: tuple[Run, ...] | None = None

    @property
    def label(self) -> str:
        """The node's id; with the function's name if the id was generated."""
        head, _, place = self.node_id.rpartition(":")
        return f"{self.name.rpartition('.')[2]} :{place}" if head and place.isdigit() and self.name else self.node_id


class GraphBox(NamedTuple):
    """One node, or several similar ones. ``counts`` is the number of nodes or of a map's items by state.

    The state of several is the worst one, or the running one. The box lasts from its first start to its last end, and
    runs while any of its nodes does.
    """

    nodes: tuple[GraphNode, ...]
    counts: Mapping[str, int]
    status: str
    began: datetime | None
    ended: datetime | None
    runs: tuple[Run, ...] | None = None

    @classmethod
    def of(cls, nodes: Sequence[GraphNode]) -> GraphBox:
        """Return the box of these nodes."""
        first = nodes[0]
        if len(nodes) == 1:
            return cls((first,), first.items, first.status, first.began, first.ended, first.runs)
        counts = Counter(node.status for node in nodes)
        status = next((state for state in _STATUS_PRECEDENCE if counts[state]), first.status)
        ends = [node.ended for node in nodes if node.ended]
        began = min((node.began for node in nodes if node.began), default=None)
        is_known = all(node.runs is not None for node in nodes if node.began)
        runs = merge_runs(run for node in nodes for run in node.runs or ()) if is_known else None
        return cls(tuple(nodes), counts, status, began, max(ends) if len(ends) == len(nodes) else None, runs)

    def times(self, now: datetime | None) -> NodeTimes | None:
        """Return when it waited and when it ran, until ``now`` if it is open; None if it has not begun."""
        if self.status in _UNSTARTED:
            return None
        return NodeTimes.of(self.began, self.ended, now, self.runs)

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


#: States without a time of their own.
_UNSTARTED: Final = ("PENDING", "READY", "SKIPPED")

_STATUS_PRECEDENCE: Final = ("FAILED", "RUNNING", "ENQUEUED", "READY", "PENDING", "SKIPPED", "COMPLETED")


def fold_nodes(nodes: Sequence[GraphNode]) -> list[GraphBox]:
    """Return the boxes of these nodes in order. None of them may be an item of a map."""
    return [GraphBox.of(group) for group in group_alike(nodes)]


def edges_between(boxes: Sequence[GraphBox]) -> list[Edge]:
    """Return the edges between boxes, by position."""
    box_of = {node.position: place for place, box in enumerate(boxes) for node in box.nodes}
    edges = {
        (box_of[source], place)
        for place, box in enumerate(boxes)
        for node in box.nodes
        for source in node.waits_for
        if source in box_of
    }
    return sorted(edges)


def group_alike(nodes: Sequence[GraphNode]) -> list[list[GraphNode]]:
    """Return groups of similar nodes, if large enough, at the position of their first node."""
    alike: dict[Any, list[GraphNode]] = {}
    for node in nodes:
        alike.setdefault((node.waits_for, node.name, node.kind, node.is_conditional), []).append(node)
    many = [group for group in alike.values() if len(group) > FOLD_ABOVE and group[0].kind != NodeKind.MAP]
    groups = _split_by_dependents(nodes, many) if many else []
    places = {node.position for group in groups for node in group}
    groups += [[node] for node in nodes if node.position not in places]
    return sorted(groups, key=lambda group: group[0].position)


def _split_by_dependents(nodes: Sequence[GraphNode], many: Sequence[list[GraphNode]]) -> list[list[GraphNode]]:
    """Split groups until all nodes of a group have the same successors; return those that are still large."""
    after: dict[int, list[int]] = {node.position: [] for group in many for node in group}
    for node in nodes:
        for source in node.waits_for:
            if source in after:
                after[source].append(node.position)
    alike: dict[tuple[int, tuple[int, ...]], list[GraphNode]] = {}
    for number, group in enumerate(many):
        for node in group:
            alike.setdefault((number, tuple(after[node.position])), []).append(node)
    return [group for group in alike.values() if len(group) > FOLD_ABOVE]
