"""Read a workflow's nodes for its page, with a bounded number of statements and rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import Count, Q, QuerySet, Sum, TextField, Value
from django.db.models.functions import Cast, Length

from ...models import Workflow, WorkflowTask
from ...ops.payload_view.contents import decode
from ..graph.boxes import GraphNode
from ..graph.labels import STATES
from ..graph.node_times import Run
from .node_runs import TASK_COLUMNS, attempt_runs, retried_tasks, runs_of, with_map_runs

#: Maximum number of nodes read for the graph, without items of maps.
MAX_NODES: Final = 5_000

#: Maximum total length of the dependency lists that are read, about 100,000 edges.
MAX_EDGE_CHARACTERS: Final = 500_000

_NO_ITEMS: Final[Mapping[str, int]] = {}

#: The columns, in the order of the fields of :class:`GraphNode`.
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

#: The columns that are read for the graph, besides the dependency list.
_READ: Final = (*GRAPH_COLUMNS, *TASK_COLUMNS)

#: The dependency list is parsed in Python because a row may be damaged.
AS_TEXT: Final = Cast("waits_for", TextField())


@dataclass(frozen=True, slots=True)
class WorkflowNodes:
    """A workflow's nodes without items of maps, and counts by state with items.

    ``has_too_many_edges``: there are too many edges to read, so none were read.
    """

    nodes: tuple[GraphNode, ...]
    counts: Mapping[str, int]
    is_truncated: bool
    has_too_many_edges: bool

    @property
    def total(self) -> int:
        """The number of nodes, including items of maps."""
        return sum(self.counts.values())


def read_workflow_nodes(workflow: Workflow) -> WorkflowNodes:
    """Read a workflow's nodes in order, at most ``MAX_NODES``."""
    mine = node_rows(workflow)
    items: dict[int | None, dict[str, int]] = {}
    size = 0
    characters_of = Sum(Length(AS_TEXT), filter=Q(map_index__isnull=True))
    groups = mine.values_list("map_index", "status").annotate(Count("pk"), characters=characters_of).order_by()
    for index, status, count, characters in groups:
        items.setdefault(index, {})[status] = count
        size += characters or 0
    has_too_many_edges = size > MAX_EDGE_CHARACTERS
    sources = Value(None, TextField()) if has_too_many_edges else AS_TEXT
    rows = mine.filter(map_index__isnull=True).order_by("task_index").values_list(*_READ, sources)[: MAX_NODES + 1]
    now = getattr(workflow, "now", None)
    found = with_map_runs(_nodes(list(rows), items, now, workflow._state.db), mine, now)
    totals = {state: sum(counts.get(state, 0) for counts in items.values()) for state in STATES}
    return WorkflowNodes(tuple(found[:MAX_NODES]), totals, len(found) > MAX_NODES, has_too_many_edges)


def _nodes(
    rows: list[tuple[Any, ...]],
    items: Mapping[int | None, Mapping[str, int]],
    now: datetime | None,
    database: str | None,
) -> list[GraphNode]:
    waits_for = _parsed([row[-1] for row in rows])
    runs = _runs([dict(zip(_READ, row, strict=False)) for row in rows], now, database)
    light = len(GRAPH_COLUMNS) - 4  # without the names of its function and its conditions
    return [
        GraphNode._make(
            (
                *row[:light],
                row[light] or row[light + 1] or "",
                valid_indexes(sources),
                bool(row[light + 2] or row[light + 3]),
                items.get(row[1], _NO_ITEMS),
                ran,
            )
        )
        for row, sources, ran in zip(rows, waits_for, runs, strict=True)
    ]


def _runs(
    rows: Sequence[Mapping[str, Any]], now: datetime | None, database: str | None
) -> list[tuple[Run, ...] | None]:
    attempts = attempt_runs(database, retried_tasks(rows))
    return [runs_of(row, now, attempts) for row in rows]


def _parsed(texts: Sequence[str | None]) -> list[Any]:
    """Parse the JSON of many rows at once, which takes a fifth of the time; one by one if any is damaged."""
    try:
        parsed: list[Any] = json.loads(f"[{','.join(text or 'null' for text in texts)}]")
    except (ValueError, RecursionError):
        parsed = []
    return parsed if len(parsed) == len(texts) else [decode(text) for text in texts]


def valid_indexes(value: Any) -> tuple[int, ...]:
    """Return the node indexes in a column's value. Invalid ones are left out, because a row may be damaged."""
    if not isinstance(value, list):
        return ()
    is_valid = {int}.issuperset(map(type, value))
    return tuple(value) if is_valid else tuple(place for place in value if type(place) is int)


def node_rows(workflow: Workflow) -> QuerySet[WorkflowTask]:
    """Return the nodes of a workflow, from the database it was read from."""
    return WorkflowTask.objects.using(workflow._state.db).filter(workflow=workflow)
