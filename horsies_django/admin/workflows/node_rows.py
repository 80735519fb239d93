"""Reading the nodes of one workflow for its page: in so many statements, and so many rows, however many there are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Count, Q, QuerySet, Sum, TextField, Value
from django.db.models.functions import Cast, Length

from ...models import Workflow, WorkflowTask
from ...ops.payload_view.contents import decode
from ..graph.boxes import GraphNode
from ..graph.labels import STATES

#: Nodes that are read for the picture, without the items of maps.
MAX_NODES: Final = 5_000

#: Characters of all that nodes wait for, up to which that is read, a hundred thousand edges or so.
MAX_EDGE_CHARACTERS: Final = 500_000

_NO_ITEMS: Final[Mapping[str, int]] = {}

#: In the order in which :class:`Node` has them, as far as it does.
GRAPH_COLUMNS: Final = (
    "pk",
    "task_index",
    "node_id",
    "status",
    "kind",
    "started_at",
    "completed_at",
    "error_code",
    "task_id",
    "task_name",
    "definition_key",
    "run_when",
    "skip_when",
)

#: What a node waits for, to be parsed by us: a row may be damaged.
AS_TEXT: Final = Cast("waits_for", TextField())


@dataclass(frozen=True, slots=True)
class WorkflowNodes:
    """The nodes of a workflow but for items of maps, and how many there are in each state, items too.

    If it is tangled, there are so many edges that none was read.
    """

    nodes: tuple[GraphNode, ...]
    counts: Mapping[str, int]
    is_truncated: bool
    has_too_many_edges: bool

    @property
    def total(self) -> int:
        """How many there are, items too."""
        return sum(self.counts.values())


def read_nodes(workflow: Workflow) -> WorkflowNodes:
    """Read a workflow's nodes, in their order, no more than ``READ`` of them."""
    mine = node_rows(workflow)
    items: dict[int | None, dict[str, int]] = {}
    size = 0
    characters_of = Sum(Length(AS_TEXT), filter=Q(map_index__isnull=True))
    groups = mine.values_list("map_index", "status").annotate(Count("pk"), characters=characters_of).order_by()
    for index, status, count, characters in groups:
        items.setdefault(index, {})[status] = count
        size += characters or 0
    is_tangled = size > MAX_EDGE_CHARACTERS
    sources = Value(None, TextField()) if is_tangled else AS_TEXT
    rows = (
        mine.filter(map_index__isnull=True).order_by("task_index").values_list(*GRAPH_COLUMNS, sources)[: MAX_NODES + 1]
    )
    found = _nodes(list(rows), items)
    totals = {state: sum(counts.get(state, 0) for counts in items.values()) for state in STATES}
    return WorkflowNodes(tuple(found[:MAX_NODES]), totals, len(found) > MAX_NODES, is_tangled)


def _nodes(rows: list[tuple[Any, ...]], items: Mapping[int | None, Mapping[str, int]]) -> list[GraphNode]:
    waits_for = _parsed([row[-1] for row in rows])
    return [
        GraphNode._make(
            (*light, task or made or "", valid_indexes(sources), bool(run or skip), items.get(light[1], _NO_ITEMS))
        )
        for (*light, task, made, run, skip, _text), sources in zip(rows, waits_for, strict=True)
    ]


def _parsed(texts: Sequence[str | None]) -> list[Any]:
    """Parse JSON of many rows at once, which takes a fifth of the time; one by one if any is damaged."""
    try:
        parsed: list[Any] = json.loads(f"[{','.join(text or 'null' for text in texts)}]")
    except (ValueError, RecursionError):
        parsed = []
    return parsed if len(parsed) == len(texts) else [decode(text) for text in texts]


def valid_indexes(value: Any) -> tuple[int, ...]:
    """Return the places of nodes that a column has; what is none of them is left out, for a row may be damaged."""
    if not isinstance(value, list):
        return ()
    is_sound = {int}.issuperset(map(type, value))
    return tuple(value) if is_sound else tuple(place for place in value if type(place) is int)


def node_rows(workflow: Workflow) -> QuerySet[WorkflowTask]:
    """Return the nodes of one workflow, where it was read."""
    return WorkflowTask.objects.using(workflow._state.db).filter(workflow=workflow)
