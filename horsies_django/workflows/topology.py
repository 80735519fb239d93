"""The topology of a workflow: its nodes in order, their ids, and which node waits for which."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from django.utils.text import slugify

from ..core.exceptions import MISTAKES_SHOWN
from ..core.workflow_errors import DefinitionErrorCode, ErrorList, shown
from ..enqueue.nodes import Dependency, FlowPart, Node, NodeKey, walk

ID_LENGTH: Final = 128
_ID: Final = re.compile(r"[A-Za-z0-9_\-:.]+")
_ID_ALLOWED: Final = f"1 to {ID_LENGTH} letters, digits and '_', '-', ':' or '.'"


@dataclass(frozen=True, slots=True)
class Topology:
    """The nodes of a workflow and their dependencies. A node is its index in the list given."""

    nodes: tuple[Node[Any], ...]
    ids: tuple[str, ...]
    index: Mapping[Node[Any], int]
    waits_for: tuple[tuple[int, ...], ...]
    dependents: tuple[tuple[int, ...], ...]
    index_by_id: Mapping[str, int]

    @property
    def names(self) -> str:
        """The ids of the nodes for an error message, at most ten."""
        more = f", … ({len(self.ids):,} in all)" if len(self.ids) > 10 else ""
        return (", ".join(self.ids[:10]) or "none, since it has no nodes") + more

    def place_of(self, ref: Any) -> int | None:
        """Return the index of a node, given as object, key or id; None if it is not in the workflow."""
        if isinstance(ref, Node):
            return self.index.get(ref)
        node_id = ref.node_id if isinstance(ref, NodeKey) else ref
        return self.index_by_id.get(node_id) if isinstance(node_id, str) else None


def build_topology(slug: str, structure: Any, errors: ErrorList) -> Topology:
    """Return the topology of what a workflow was given as its nodes."""
    index: dict[Node[Any], int] = {}
    names: dict[Node[Any], str] = {}
    orders: list[Dependency] = []
    for name, part in _parts(structure, errors):
        if name is not None and isinstance(part, Node):
            if part in names:
                problem = f"it is {names[part]!r} and {name!r}; allowed: one name."
                errors.add(DefinitionErrorCode.DUPLICATE_NODE_ID, problem, names[part])
            names.setdefault(part, name)
        for step in walk(part):
            if isinstance(step, Dependency):
                orders.append(step)
            elif step not in index:
                index[step] = len(index)
    nodes = tuple(index)
    if not nodes:
        errors.add(DefinitionErrorCode.NO_NODES, "it has no nodes; allowed: at least one.")
    ids = _ids(slug, nodes, names, errors)
    waits_for = _waits_for(nodes, ids, index, orders, errors)
    dependents = dependents_of(waits_for)
    _check_cycles(ids, waits_for, errors)
    by_id = {node_id: place for place, node_id in enumerate(ids)}
    return Topology(nodes, ids, index, waits_for, tuple(map(tuple, dependents)), by_id)


def _parts(structure: Any, errors: ErrorList) -> Iterator[tuple[str | None, FlowPart]]:
    if isinstance(structure, FlowPart):
        structure = (structure,)
    if isinstance(structure, str) or not isinstance(structure, Iterable):
        errors.add(
            DefinitionErrorCode.NO_NODES, f"nodes is {shown(structure)}; allowed: nodes and flows, in a list or dict."
        )
        return
    for name, part in structure.items() if isinstance(structure, Mapping) else ((None, part) for part in structure):
        if isinstance(part, FlowPart):
            yield name, part
        else:
            problem = f"nodes has {shown(part)}; allowed: nodes, as task.node(…)(…) makes them, and flows of them."
            errors.add(DefinitionErrorCode.NO_NODES, problem)


def _ids(slug: str, nodes: Iterable[Node[Any]], names: Mapping[Node[Any], str], errors: ErrorList) -> tuple[str, ...]:
    """Return the ids of nodes: the node's own, else the name under which it was given, else ``<slug>:<index>``."""
    ids: list[str] = []
    for index, node in enumerate(nodes):
        node_id = node.node_id
        if node_id is None:
            node_id = names.get(node) if names else None
        if node_id is None:
            node_id = f"{slug}:{index}"
        elif not (isinstance(node_id, str) and len(node_id) <= ID_LENGTH and _ID.fullmatch(node_id)):
            errors.add(
                DefinitionErrorCode.INVALID_NODE_ID, f"node_id is {node_id!r}; allowed: {_ID_ALLOWED}.", f"{node_id}"
            )
            node_id = str(node_id)
        ids.append(node_id)
    if len(set(ids)) < len(ids):
        _name_duplicates(ids, errors)
    return tuple(ids)


def _name_duplicates(ids: Iterable[str], errors: ErrorList) -> None:
    places: dict[str, list[int]] = {}
    for index, node_id in enumerate(ids):
        places.setdefault(node_id, []).append(index)
    for node_id, positions in places.items():
        if len(positions) > 1:
            problem = f"{len(positions)} nodes have this id, at {', '.join(map(str, positions))}; allowed: one."
            errors.add(DefinitionErrorCode.DUPLICATE_NODE_ID, problem, node_id)


def _waits_for(
    nodes: Iterable[Node[Any]],
    ids: tuple[str, ...],
    index: Mapping[Node[Any], int],
    orders: Iterable[Dependency],
    errors: ErrorList,
) -> tuple[tuple[int, ...], ...]:
    # A dict serves as an ordered set.
    waits_for: list[dict[int, None]] = []
    for node, node_id in zip(nodes, ids, strict=True):
        sources: dict[int, None] = {}
        for source in node.waits_for:
            if (place := index.get(source)) is None:
                problem = f"it waits for {source!r}, which is not in the workflow; allowed: nodes of this workflow."
                errors.add(DefinitionErrorCode.INVALID_DEPENDENCY, problem, node_id)
            else:
                sources[place] = None
        waits_for.append(sources)
    for order in orders:
        earlier = dict.fromkeys([index[node] for node in order.earlier])
        for node in order.later:
            waits_for[index[node]].update(earlier)
    return tuple([tuple(sources) for sources in waits_for])


def _check_cycles(ids: tuple[str, ...], waits_for: tuple[tuple[int, ...], ...], errors: ErrorList) -> None:
    if waits_for and all(waits_for):
        errors.add(
            DefinitionErrorCode.NO_ROOT, "every node waits for another; allowed: at least one that waits for none."
        )
    for cycle in cycles_in(waits_for):
        chain = " >> ".join(ids[index] for index in [*cycle, cycle[0]])
        problem = f"it waits for itself: {_shorten(chain)}; allowed: no cycle."
        errors.add(DefinitionErrorCode.CYCLE, problem, ids[cycle[0]])


def _shorten(chain: str) -> str:
    """Cut a long chain of ids for an error message."""
    return chain if len(chain) <= 300 else f"{chain[:300]}…"


def slug_of(name: object) -> str:
    """Return the prefix of the default ids of a workflow's nodes."""
    return (slugify(name) if isinstance(name, str) else "")[: ID_LENGTH - 16] or "workflow"


# The graph of the nodes, by index.


def dependents_of(waits_for: Sequence[Iterable[int]]) -> list[list[int]]:
    """Return for each node the nodes that wait for it, in order."""
    dependents: list[list[int]] = [[] for _ in waits_for]
    for index, sources in enumerate(waits_for):
        for source in sources:
            dependents[source].append(index)
    return dependents


def cycles_in(waits_for: Sequence[Iterable[int]]) -> Iterator[list[int]]:
    """Yield cycles without common nodes, as many as errors are shown; every node of one waits for the one before it."""
    graph = dict(enumerate(waits_for))
    for _ in range(MISTAKES_SHOWN):
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            cycle: list[int] = error.args[1][:-1]
            yield cycle
            for index in cycle:
                del graph[index]
        else:
            return
