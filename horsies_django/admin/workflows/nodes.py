"""Read a workflow's nodes for its page: all of them for the graph, a page of them for the table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.db.models import Case, Count, Q, QuerySet, Sum, TextField, Value, When
from django.db.models.functions import Cast, Length
from django.utils.translation import gettext as _

from ...core.numbers import format_duration
from ...core.workflow_errors import WorkflowCode
from ...core.workflow_status import NodeKind
from ...db.fields import indexes_in
from ...models import Workflow, WorkflowTask
from ..formatting import format_time
from ..graph.boxes import URGENCY, GraphNode
from ..graph.drawing import KINDS, STATES, time_of

#: Maximum number of nodes of a graph, without items of maps.
MAX_NODES: Final = 5_000

#: Maximum total length of the dependency lists of a graph, about 100,000 edges.
MAX_EDGE_CHARACTERS: Final = 500_000

#: Rows per page of the table.
PAGE_SIZE: Final = 100

#: Maximum number of dependencies that are named.
_MAX_NAMED: Final = 5

#: A wait for a worker below this is not worth a word.
_SHORT_WAIT: Final = timedelta(milliseconds=50)

#: The columns of a node, in the order of the first fields of :class:`GraphNode`.
_COLUMNS: Final = (
    *("pk", "task_index", "node_id", "status", "kind", "started_at", "completed_at", "error_code", "task_id"),
    *("task_name", "definition_key", "run_when", "skip_when", "waits_for"),
)

#: The columns that only the table shows. A node's inputs and result have a page of their own.
_TABLE_COLUMNS: Final = (
    *("workflow_id", "event_name", "until"),
    *("task__attempt", "task__max_retries", "task__started_at", "task__error_code"),
)


def node_rows(workflow: Workflow) -> QuerySet[WorkflowTask]:
    """Return the nodes of a workflow, from the database it was read from."""
    return WorkflowTask.objects.using(workflow._state.db).filter(workflow=workflow)


# The graph.


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
    return GraphNode._make((*columns, name, is_conditional, tuple(indexes_in(waits_for)), items.get(row[1], {})))


# The table.


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """The nodes in the table: all, those in one state, a map with its items, or those of a folded box.

    ``after`` is the urgency and the position of the last row of the page before.
    """

    state: str = ""
    box: int | None = None
    after: tuple[int, int] | None = None

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> NodeFilter:
        """Parse it from the page's query parameters; invalid values select nothing."""
        state = query.get("state", "")
        urgency, place = (parse_index(part) for part in query.get("after", "").partition(".")[::2])
        after = None if urgency is None or place is None else (urgency, place)
        return cls(state if state in STATES else "", parse_index(query.get("of")), after)


def parse_index(text: str | None) -> int | None:
    """Parse a position of a node; None if it is invalid."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None


def page_rows(
    workflow: Workflow, choice: NodeFilter, folded: Collection[int] = ()
) -> tuple[list[WorkflowTask], str | None]:
    """Return a page of the table, and the ``after`` of the next page.

    ``folded`` are the positions in a folded box. Takes two statements.
    """
    rows = node_rows(workflow)
    if choice.state:
        rows = rows.filter(status=choice.state)
    if choice.box is not None:
        rows = rows.filter(Q(task_index__in=folded) if folded else Q(map_index=choice.box) | Q(task_index=choice.box))
    head = [When(task_index=choice.box, then=Value(0))] if choice.box is not None and not folded else []
    states = [When(status=state, then=Value(number)) for number, state in enumerate(URGENCY, 1)]
    ranked = rows.annotate(urgency=Case(*head, *states, default=Value(len(URGENCY))))
    if choice.after is not None:
        urgency, place = choice.after
        ranked = ranked.filter(Q(urgency__gt=urgency) | Q(urgency=urgency, task_index__gt=place))
    # Only the keys are sorted: to sort all columns, PostgreSQL would read the whole table.
    places = ranked.order_by("urgency", "task_index").values_list("pk", "urgency", "task_index")[: PAGE_SIZE + 1]
    ranks = list(places)
    by_key = node_rows(workflow).select_related("task").only(*_COLUMNS, *_TABLE_COLUMNS)
    nodes = by_key.in_bulk([key for key, *_rank in ranks[:PAGE_SIZE]])
    after = "{}.{}".format(*ranks[PAGE_SIZE - 1][1:]) if len(ranks) > PAGE_SIZE else None
    return [nodes[key] for key, *_rank in ranks[:PAGE_SIZE] if key in nodes], after


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A node in the table; the URL of its task, subworkflow or items, and that of its retry, empty if it has none."""

    node: WorkflowTask
    waits_for: list[tuple[int, str]]
    address: str
    retry: str

    @property
    def kind(self) -> str:
        """The kind of the node in words; empty for a task."""
        return str(KINDS.get(self.node.kind, ""))

    @property
    def name(self) -> str:
        """The task, the definition of the subworkflow, or the event."""
        return self.node.task_name or self.node.definition_key or self.node.event_name or ""

    @property
    def more(self) -> int:
        """The number of its dependencies that are not named."""
        return max(0, len(indexes_in(self.node.waits_for)) - _MAX_NAMED)

    @property
    def attempts(self) -> str:
        """The number of attempts of its task, and the maximum."""
        task = self.node.task
        return f"{task.attempt}/{max(task.attempt, task.max_retries + 1)}" if task and task.attempt else ""

    @property
    def error_code(self) -> str:
        """The code of its error; while its task is retried, that of the last attempt."""
        node = self.node
        retried = node.task.error_code if node.task and node.completed_at is None else ""
        return node.error_code or retried or ""

    @property
    def time(self) -> str:
        """How long the node took, and how long of that its task waited to start if it had one attempt only."""
        node, ready, ended = self.node, self.node.started_at, self.node.completed_at
        if ended is None and node.until is not None:
            return _("until %s") % format_time(node.until, exactly=False)
        began = node.task.started_at if node.kind == NodeKind.TASK and node.task and node.task.attempt == 1 else None
        if ready and began and ended and began - ready >= _SHORT_WAIT:
            waited, ran = _("waited %s") % format_duration(began - ready), _("ran %s") % format_duration(ended - began)
            return f"{waited}, {ran}"
        return time_of(node.status, ready, ended)


def node_lines(
    workflow: Workflow,
    nodes: Sequence[WorkflowTask],
    address: Callable[[str, int, int, Any], str],
    retry: Callable[[int], str] | None,
) -> list[NodeLine]:
    """Return the lines of nodes. Takes one statement if any of them has dependencies.

    ``address`` returns the URL of what a node stands for, ``retry`` that of its retry.
    """
    sources = {node.pk: indexes_in(node.waits_for)[:_MAX_NAMED] for node in nodes}
    places = {place for named in sources.values() for place in named}
    rows = node_rows(workflow).filter(task_index__in=places)
    names: dict[int, str] = dict(rows.values_list("task_index", "node_id")) if places else {}
    return [
        NodeLine(
            node,
            [(place, names[place]) for place in sources[node.pk] if place in names],
            address(node.kind, node.pk, node.task_index, node.task_id),
            retry(node.task_index) if retry and _can_retry(node) else "",
        )
        for node in nodes
    ]


def _can_retry(node: WorkflowTask) -> bool:
    """Return whether the node failed, or was skipped for a reason other than its own condition."""
    is_skipped = node.status == "SKIPPED" and node.error_code != WorkflowCode.CONDITION_NOT_MET
    return node.status == "FAILED" or is_skipped
