"""The content of a workflow's page: its error, graph, critical path, nodes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final
from uuid import UUID

from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...batches.rows import CALLS_INDEX
from ...core.numbers import fill_numbers, format_duration, format_number
from ...core.workflow_status import NodeKind, WorkflowStatus
from ...models import Workflow, WorkflowEvent, WorkflowTask
from ..formatting import as_json, format_time
from ..graph.boxes import GraphBox, GraphNode, critical_path, edges_between, fold_nodes
from ..graph.drawing import MARKS, STATES, draw, state_bar, status_label, time_of
from ..graph.layout import compute_layout
from .masking import mask_of_workflow
from .node_detail import can_retry_nodes, failing_nodes, find_node, node_detail, node_error, workflow_error
from .nodes import NodeFilter, NodeLine, WorkflowNodes, node_lines, page_rows, parse_index, read_workflow_nodes

#: The number of boxes of a graph. Fewer say no more than the table, more would not be readable.
MIN_BOXES: Final = 3
MAX_BOXES: Final = 600

#: Maximum number of listed steps of the critical path, of subworkflows and of events.
_STEPS: Final = 50
_CHILDREN: Final = 200
_EVENTS: Final = 20


class WorkflowPage:
    """A workflow's page for one user.

    ``site`` is the admin site's name; without ``sees_tasks`` tasks are not linked.
    """

    def __init__(self, workflow: Workflow, query: Mapping[str, str], site: str, *, sees_tasks: bool) -> None:
        self.workflow = workflow
        self.filter = NodeFilter.parse(query)
        self.node = find_node(workflow, parse_index(query.get("node")))
        self._site = site
        self._sees_tasks = sees_tasks

    # State.

    @property
    def is_live(self) -> bool:
        """Whether the workflow may still change by itself."""
        return self.workflow.status in (WorkflowStatus.RUNNING, WorkflowStatus.PAUSED) or self.workflow.open_count > 0

    @property
    def headline(self) -> str:
        """The number of ended nodes, or of a batch's tasks."""
        row = self.workflow
        if row.is_batch:
            total = sum(self._counts.values())
            return ngettext("Batch of %s task", "Batch of %s tasks", total) % format_number(total)
        numbers = {"done": max(0, row.node_count - row.open_count), "total": row.node_count}
        return fill_numbers(_("%(done)d of %(total)d nodes have finished"), numbers)

    @property
    def _counts(self) -> Mapping[str, int]:
        """The number of nodes by state; of a batch, those of its tasks without its callbacks."""
        nodes = self._nodes
        return nodes.items.get(CALLS_INDEX, {}) if self.workflow.is_batch else nodes.counts

    @property
    def counts(self) -> list[tuple[str, str, str, str]]:
        """The states of nodes: name, mark, label, count."""
        counts = self._counts
        return [
            (state, MARKS[state], status_label(state), format_number(counts[state]))
            for state in STATES
            if counts.get(state)
        ]

    @property
    def times(self) -> list[tuple[str, str]]:
        """The times of the workflow's events."""
        row = self.workflow
        ended = row.completed_at or row.cancelled_at
        moments = {
            _("Sent"): row.sent_at,
            _("Paused"): row.paused_at,
            _("Finished"): ended,
            _("Deadline"): row.good_until,
        }
        times = [(name, format_time(moment, exactly=False)) for name, moment in moments.items() if moment]
        return [*times, (_("Duration"), format_duration(ended - row.started_at))] if ended and row.started_at else times

    @property
    def state_bar(self) -> SafeString:
        """The nodes by state as a bar, so that those that failed are not part of the progress."""
        return state_bar(self._counts)

    # The error.

    @cached_property
    def _failing(self) -> list[WorkflowTask]:
        return failing_nodes(self.workflow)

    @property
    def failing(self) -> WorkflowTask | None:
        """The node that made it fail, or the first one that failed so far."""
        return self._failing[-1] if self._failing else None

    @property
    def error(self) -> dict[str, Any] | None:
        """The error of the failing node; else that of the workflow."""
        return node_error(self.failing) if self.failing else workflow_error(self.workflow)

    @property
    def failing_links(self) -> dict[str, str]:
        """The URLs of the failing node: its details, its task, its retry. Those that it does not have are empty."""
        if (node := self.failing) is None:
            return {}
        key = node.workflow_id
        page = "" if key == self.workflow.pk else self._page_url("workflow", key)
        return {
            "node": f"{page}?node={node.task_index}#node",
            "task": self._task_url(node.kind, node.task_id),
            "retry": self._retry_url(node.task_index, key) if can_retry_nodes(node.workflow) else "",
        }

    @property
    def failing_inside(self) -> list[str]:
        """The maps and subworkflows around the failing node, from the outermost."""
        words = {NodeKind.MAP: _("item of the map %s"), NodeKind.SUBWORKFLOW: _("node of the subworkflow %s")}
        return [words[NodeKind(node.kind)] % node.node_id for node in self._failing[:-1]]

    # The graph.

    @cached_property
    def picture(self) -> SafeString | str:
        """The graph as SVG; empty if there are too few or too many boxes."""
        boxes = self._boxes
        if not MIN_BOXES <= len(boxes) <= MAX_BOXES:
            return ""
        title = _("Graph of %(name)s. The table of nodes has the same data.") % {"name": self.workflow.name}
        box_of = {node.position: number for number, box in enumerate(boxes) for node in box.nodes}
        critical = list(dict.fromkeys(box_of[node.position] for node in self._critical_path))
        return draw(boxes, compute_layout(len(boxes), edges_between(boxes)), title, self._box_url, critical)

    @property
    def is_too_large(self) -> bool:
        """Whether there are too many nodes, edges or boxes for a graph."""
        return len(self._boxes) > MAX_BOXES or bool(self.workflow.node_count and not self._nodes.nodes)

    @property
    def path_length(self) -> int:
        """The number of nodes on the critical path."""
        return len(self._critical_path)

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The last steps of the critical path: each node, its time, and its share of the time of the workflow."""
        row = self.workflow
        ended = row.completed_at or row.cancelled_at
        whole = ended - row.started_at if ended and row.started_at else None
        return [
            {
                "label": node.label,
                "index": node.position,
                "status": node.status.lower(),
                "state": status_label(node.status),
                "time": time_of(node.status, node.began, node.ended),
                "percent": f"{100 * (node.ended - node.began) / whole:.0f} %"
                if whole and node.began and node.ended
                else "",
            }
            for node in self._critical_path[-_STEPS:]
        ]

    # The table.

    @cached_property
    def _page(self) -> tuple[list[WorkflowTask], str | None]:
        of = (box for box in self._boxes if box.is_folded and box.first.position == self.filter.box)
        folded = next(([node.position for node in box.nodes] for box in of), ())
        return page_rows(self.workflow, self.filter, folded)

    @cached_property
    def _lines(self) -> list[NodeLine]:
        """The line of the node that is shown in detail, if any, and those of the table."""
        retry = self._retry_url if can_retry_nodes(self.workflow) else None
        nodes = [*([self.node] if self.node else []), *self._page[0]]
        return node_lines(self.workflow, nodes, self._other_page, retry)

    @property
    def lines(self) -> list[NodeLine]:
        """The lines of the table."""
        return self._lines[1:] if self.node else self._lines

    @property
    def next_after(self) -> str | None:
        """The cursor of the table's next page; None on the last."""
        return self._page[1]

    @property
    def filter_label(self) -> str:
        """The selected filter in words."""
        if self.filter.state:
            return status_label(self.filter.state)
        return next((node.label for node in self._nodes.nodes if node.position == self.filter.box), "")

    @cached_property
    def node_detail(self) -> dict[str, Any] | None:
        """The node that is shown in detail, if any."""
        if self.node is None:
            return None
        is_on_top = self.failing is not None and self.failing.pk == self.node.pk
        return node_detail(self.node, self._lines[0], is_on_top=is_on_top)

    # Related rows.

    @cached_property
    def children(self) -> list[dict[str, Any]]:
        """The subworkflows with their URLs."""
        if not self._nodes.has_subworkflows:
            return []
        tree = Workflow.objects.using(self._database).filter(
            root_id=self.workflow.root_id, depth__gt=0, parent__workflow=self.workflow
        )
        columns = ("pk", "name", "status", "parent_id", "parent__node_id", "is_replaced")
        return [
            {**row, "address": self._page_url("workflow", row["pk"]), "word": WorkflowStatus(row["status"]).label}
            for row in tree.order_by("is_replaced", "pk").values(*columns)[:_CHILDREN]
        ]

    @cached_property
    def parent(self) -> dict[str, Any] | None:
        """The node of the parent workflow that started this one."""
        if self.workflow.parent_id is None:
            return None
        rows = WorkflowTask.objects.using(self._database).filter(pk=self.workflow.parent_id)
        row = rows.values("node_id", "task_index", "workflow_id", "workflow__name").first()
        return {**row, "address": self._page_url("workflow", row["workflow_id"])} if row else None

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """The events that it received, the latest first."""
        rows = WorkflowEvent.objects.using(self._database).filter(workflow=self.workflow)
        events = rows.order_by("-sent_at").values("name", "payload", "sent_at")[:_EVENTS]
        if not events:
            return []
        mask = mask_of_workflow(self.workflow)
        return [{**row, "shown": as_json(mask.apply("payload", row["payload"]), mask)} for row in events]

    # Helpers.

    @property
    def _database(self) -> str | None:
        return self.workflow._state.db

    @cached_property
    def _nodes(self) -> WorkflowNodes:
        return read_workflow_nodes(self.workflow)

    @cached_property
    def _boxes(self) -> list[GraphBox]:
        return fold_nodes(self._nodes.nodes)

    @cached_property
    def _critical_path(self) -> list[GraphNode]:
        path = critical_path(self._nodes.nodes)
        return path if len(path) >= MIN_BOXES else []

    def _box_url(self, box: GraphBox) -> str:
        node = box.first
        if box.is_folded:
            return f"?of={node.position}#nodes"
        return self._other_page(node.kind, node.key, node.position, node.task_id) or f"?node={node.position}#node"

    def _other_page(self, kind: str, key: int, index: int, task_id: UUID | None) -> str:
        """Return the URL of a node's task, of its subworkflow, or of the items of a map; empty if it has none."""
        if kind == NodeKind.MAP:
            return f"?of={index}#nodes"
        return self._subworkflow_urls.get(key, "") or self._task_url(kind, task_id)

    def _task_url(self, kind: str, task_id: UUID | None) -> str:
        has_task = kind == NodeKind.TASK and task_id is not None and self._sees_tasks
        return self._page_url("task", task_id) if has_task else ""

    @cached_property
    def _subworkflow_urls(self) -> dict[int, str]:
        return {child["parent_id"]: child["address"] for child in reversed(self.children)}

    def _page_url(self, model: str, key: Any) -> str:
        return reverse(f"{self._site}:horsies_django_{model}_change", args=[key])

    def _retry_url(self, index: int, workflow: UUID | None = None) -> str:
        return reverse(f"{self._site}:horsies_django_workflow_retry_node", args=[workflow or self.workflow.pk, index])
