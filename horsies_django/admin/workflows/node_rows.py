"""Read a workflow's nodes for its page, with a bounded number of statements and rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Count, Q, QuerySet, Sum, TextField
from django.db.models.functions import Cast, Length

from ...core.workflow_status import NodeKind
from ...models import Workflow, WorkflowTask
from ..graph.boxes import GraphNode
from ..graph.drawing import STATES

#: Maximum number of nodes of a graph, without items of maps.
MAX_NODES: Final = 5_000

#: Maximum total length of the dependency lists of a graph, about 100,000 edges.
MAX_EDGE_CHARACTERS: Final = 500_000

#: The columns in the order of the first fields of :class:`GraphNode`.
_COLUMNS: Final = (
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
    "waits_for",
)


@dataclass(frozen=True, slots=True)
class WorkflowNodes:
    """A workflow's nodes without items of maps, none if they are too many for a graph.

    ``counts`` is the number of nodes by state, with items; ``items`` those of each map, by its position.
    """

    nodes: list[GraphNode]
    counts: Mapping[str, int]
    items: Mapping[int | None, Mapping[str, int]]
    has_subworkflows: bool


def read_workflow_nodes(workflow: Workflow) -> WorkflowNodes:
    """Count a workflow's nodes and read them in order. Takes two statements."""
    mine = node_rows(workflow)
    items: dict[int | None, dict[str, int]] = {}
    characters = subworkflows = 0
    groups: Any = (
        mine.order_by()
        .values_list("map_index", "status")
        .annotate(
            Count("pk"),
            subworkflows=Count("pk", filter=Q(kind=NodeKind.SUBWORKFLOW)),
            characters=Sum(Length(Cast("waits_for", TextField())), filter=Q(map_index__isnull=True)),
        )
    )
    for index, status, count, below, size in groups:
        items.setdefault(index, {})[status] = count
        subworkflows += below
        characters += size or 0
    is_small = sum(items.get(None, {}).values()) <= MAX_NODES and characters <= MAX_EDGE_CHARACTERS
    rows = mine.filter(map_index__isnull=True).order_by("task_index").values_list(*_COLUMNS) if is_small else ()
    totals = {state: sum(counts.get(state, 0) for counts in items.values()) for state in STATES}
    return WorkflowNodes([_graph_node(row, items) for row in rows], totals, items, subworkflows > 0)


def _graph_node(row: tuple[Any, ...], items: Mapping[int | None, Mapping[str, int]]) -> GraphNode:
    *columns, task_name, definition_key, run_when, skip_when, waits_for = row
    is_conditional = run_when is not None or skip_when is not None
    name = task_name or definition_key or ""
    return GraphNode._make((*columns, name, is_conditional, tuple(waits_for), items.get(row[1], {})))


def node_rows(workflow: Workflow) -> QuerySet[WorkflowTask]:
    """Return the nodes of a workflow, from the database it was read from."""
    return WorkflowTask.objects.using(workflow._state.db).filter(workflow=workflow)
