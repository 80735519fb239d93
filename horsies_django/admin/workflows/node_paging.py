"""The rows of a workflow's node table: filtered, paged, and the most urgent first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from django.db.models import Case, Exists, JSONField, OuterRef, Q, Value, When

from ...core.workflow_status import NodeKind
from ...models import Queue, Workflow, WorkflowTask
from ...ops.payload_view.contents import decode_text_columns, with_text_columns
from ..graph.boxes import GraphNode
from ..graph.labels import STATES
from .node_rows import AS_TEXT, GRAPH_COLUMNS, node_rows

#: Rows per page of the table.
PAGE_SIZE: Final = 200

#: Order in a filtered or paged table: failed, running, waiting, ended.
_URGENCY_ORDER: Final = ("FAILED", "RUNNING", "ENQUEUED", "READY", "PENDING", "SKIPPED", "COMPLETED")

#: Small columns only; a node's inputs and result have a page of their own.
_COLUMNS: Final = (
    *GRAPH_COLUMNS,
    "map_index",
    "join",
    "min_success",
    "allow_failed_deps",
    "open_deps",
    "ok_deps",
    "open_ctx",
    "is_decided",
    "until",
    "event_name",
    "rebuilds",
    "task__status",
    "task__error_code",
    "task__attempt",
    "task__max_retries",
    "task__started_at",
    "task__next_retry_at",
    "task__blocked",
    "task__limit_key",
)


#: The columns that the database computes.
_COMPUTED: Final[Mapping[str, Any]] = {
    "waits_text": AS_TEXT,
    "is_queue_paused": Exists(Queue.objects.filter(name=OuterRef("task__queue_name"), paused=True)),
}

#: JSON columns may be huge, deeply nested or damaged, so they are read as text.
_JSON: Final = tuple(field.name for field in WorkflowTask._meta.concrete_fields if isinstance(field, JSONField))


class NodeCursor(NamedTuple):
    """The end of a page of the table: the urgency and the index of its last row."""

    urgency: int
    place: int

    @classmethod
    def parse(cls, text: str | None) -> NodeCursor | None:
        """Parse it from a query parameter; None if it is invalid."""
        urgency, place = (_parse_index(part) for part in (text or "").partition(".")[::2])
        return None if urgency is None or place is None else cls(urgency, place)

    def __str__(self) -> str:
        return f"{self.urgency}.{self.place}"


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """The nodes in the table: all, those in one state, a map's items, or those of a folded box."""

    state: str = ""
    box: int | None = None
    after: NodeCursor | None = None

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> NodeFilter:
        """Parse it from the page's query parameters; invalid values select nothing."""
        state = query.get("state", "")
        return cls(
            state if state in STATES else "", _parse_index(query.get("of")), NodeCursor.parse(query.get("after"))
        )

    @property
    def is_filtered(self) -> bool:
        """Whether anything is selected."""
        return bool(self.state) or self.box is not None

    def cursor(self, row: Mapping[str, Any]) -> NodeCursor:
        """Return a row's position in the table's order. A map comes before its items."""
        is_head = row["task_index"] == self.box and row["kind"] == NodeKind.MAP
        return NodeCursor(0 if is_head else _urgency(row["status"]), row["task_index"])


def page_rows(workflow: Workflow, choice: NodeFilter, alike: tuple[GraphNode, ...] = ()) -> list[dict[str, Any]]:
    """Return up to ``PAGE_SIZE`` + 1 rows of the table. ``alike`` are the nodes of a folded box."""
    if not choice.is_filtered and workflow.node_count <= PAGE_SIZE:
        rows = node_rows(workflow).order_by("task_index").values(*_COLUMNS, **_COMPUTED)
        return list(rows[: PAGE_SIZE + 1])
    keys = _keys_of_box(alike, choice.after) if alike else _matching_keys(workflow, choice)
    found = {row["pk"]: row for row in node_rows(workflow).filter(pk__in=keys).values(*_COLUMNS, **_COMPUTED)}
    return [found[key] for key in keys if key in found]


def _keys_of_box(alike: Sequence[GraphNode], after: NodeCursor | None) -> list[int]:
    """Return the keys of the most urgent of these nodes, which were already read for the graph."""
    ranked = sorted((NodeCursor(_urgency(node.status), node.position), node.key) for node in alike)
    return [key for cursor, key in ranked if after is None or cursor > after][: PAGE_SIZE + 1]


def _matching_keys(workflow: Workflow, choice: NodeFilter) -> list[int]:
    """Return the keys only: if it sorted all columns, PostgreSQL would read the whole table."""
    rows = node_rows(workflow)
    if choice.state:
        rows = rows.filter(status=choice.state)
    if choice.box is not None:
        rows = rows.filter(Q(map_index=choice.box) | Q(task_index=choice.box))
    rows = rows.annotate(urgency=_urgency_case(choice.box))
    if choice.after is not None:
        same = Q(urgency=choice.after.urgency, task_index__gt=choice.after.place)
        rows = rows.filter(Q(urgency__gt=choice.after.urgency) | same)
    return list(rows.order_by("urgency", "task_index").values_list("pk", flat=True)[: PAGE_SIZE + 1])


def _urgency_case(head: int | None) -> Case:
    branches = [When(status=state, then=Value(_urgency(state))) for state in _URGENCY_ORDER]
    if head is not None:
        branches.insert(0, When(task_index=head, kind=NodeKind.MAP, then=Value(0)))
    return Case(*branches, default=Value(len(_URGENCY_ORDER) + 1))


def _urgency(status: str) -> int:
    return _URGENCY_ORDER.index(status) + 1 if status in _URGENCY_ORDER else len(_URGENCY_ORDER) + 1


def find_node(workflow: Workflow, place: str | None) -> WorkflowTask | None:
    """Return the node that the page shows in detail, if any."""
    index = _parse_index(place)
    if index is None:
        return None
    rows = node_rows(workflow).filter(task_index=index).order_by("task_index")
    node: WorkflowTask | None = with_text_columns(rows, *_JSON).first()
    if node is not None:
        node.workflow = workflow
        decode_text_columns(node, *_JSON)
    return node


def find_row(workflow: Workflow, place: int) -> dict[str, Any] | None:
    """Return one node's row of the table."""
    # Ordered explicitly: by primary key PostgreSQL would scan the table.
    rows = node_rows(workflow).filter(task_index=place).order_by("task_index")
    found: dict[str, Any] | None = rows.values(*_COLUMNS, **_COMPUTED).first()
    return found


def _parse_index(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None
