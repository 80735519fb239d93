"""The content of a workflow's page: its error, graph, critical path, nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final
from uuid import UUID

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...batches.rows import CALLS_INDEX
from ...core.durations import format_duration
from ...core.numbers import fill_numbers, format_number
from ...core.workflow_status import NodeKind, WorkflowStatus
from ...models import Workflow, WorkflowEvent, WorkflowTask
from ...workflows.engine.retry_nodes import RETRYABLE
from ..ages import counted
from ..drawn_time import drawn_until
from ..formatting import as_json, format_time
from ..graph.boxes import GraphBox, GraphNode, edges_between, group_alike
from ..graph.critical_path import PathStep, critical_path, drawn_steps, path_steps
from ..graph.drawing import DrawingStyle, draw
from ..graph.labels import MARKS, STATES, status_label
from ..graph.layout import compute_layout
from ..graph.node_timeline import draw_timeline
from ..graph.node_times import time_words
from ..graph.time_bar import state_bar, step_bar
from .batch_summary import BatchSummary, batch_summary
from .completion_reason import completion_reason
from .failing_node import FailingNode, NodeError, failing_node, workflow_error
from .masking import mask_of_workflow
from .node_detail import NodeDetail, node_detail
from .node_paging import PAGE_SIZE, NodeCursor, NodeFilter, find_node, find_row, page_rows
from .node_rows import MAX_NODES, WorkflowNodes, read_workflow_nodes
from .node_runs import with_subworkflow_runs
from .node_table import NodeLine, NodeTable

#: Maximum number of boxes that are drawn; a larger graph would not be readable.
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
        self.node = find_node(workflow, query.get("node")) if "node" in query else None
        self.now: datetime | None = getattr(workflow, "now", None)
        self._site = site
        self._sees_tasks = sees_tasks

    # State.

    @property
    def is_live(self) -> bool:
        """Whether the workflow may still change by itself."""
        return self.workflow.status in (WorkflowStatus.RUNNING, WorkflowStatus.PAUSED) or self.workflow.open_count > 0

    @property
    def done(self) -> int:
        """The number of ended nodes."""
        return max(0, self.workflow.node_count - self.workflow.open_count)

    @property
    def counts(self) -> list[tuple[str, str, str, int]]:
        """The states of nodes: name, mark, label, count."""
        counts = self._nodes.counts
        return [(state, MARKS[state], status_label(state), counts[state]) for state in STATES if counts[state]]

    @property
    def times(self) -> list[tuple[str, str]]:
        """The times of the workflow's events."""
        row = self.workflow
        ended = row.completed_at or row.cancelled_at
        pairs = [
            (_("Sent"), format_time(row.sent_at, exactly=False)),
            (_("Started"), format_time(row.started_at, exactly=False)),
            (_("Paused"), format_time(row.paused_at, exactly=False) if row.paused_at else ""),
            (_("Finished"), format_time(ended, exactly=False) if ended else ""),
            self._duration(ended),
            (_("Deadline"), format_time(row.good_until, exactly=False) if row.good_until else ""),
        ]
        return [(name, text) for name, text in pairs if text]

    def _duration(self, ended: datetime | None) -> tuple[str, str]:
        began = self.workflow.started_at
        if ended or began is None or self.now is None:
            return _("Duration") if ended else _("Running for"), format_duration(elapsed(began, ended))
        return _("Running for"), counted(self.now - began)

    @property
    def state_bar(self) -> Any:
        """The nodes by state as a bar, so that those that failed are not part of the progress."""
        return state_bar(self._nodes.counts)

    # The error.

    @cached_property
    def failing(self) -> FailingNode | None:
        """The node that made it fail, or the first one that failed so far."""
        return failing_node(self.workflow, self._nodes.nodes)

    @property
    def error(self) -> NodeError | None:
        """The error of the failing node; else that of the workflow."""
        return self.failing.error if self.failing else workflow_error(self.workflow)

    @property
    def failing_label(self) -> str:
        """The failing node's name."""
        return self.failing.node.node_id if self.failing else ""

    @property
    def failing_links(self) -> dict[str, str]:
        """The URLs of the failing node: its details, its task, its retry. Those that it does not have are empty."""
        if self.failing is None:
            return {}
        node, key = self.failing.node, self.failing.workflow.pk
        is_here = key == self.workflow.pk
        page = "" if is_here else self._page_url("workflow", key)
        task = self.failing.task_id
        return {
            "node": f"{page}?node={node.task_index}#node",
            "task": self._page_url("task", task) if task and self._sees_tasks else "",
            "retry": self._retry_url(node.task_index, key) if self.failing.can_retry else "",
        }

    @property
    def failing_inside(self) -> list[tuple[str, str]]:
        """The maps and subworkflows around the failing node, from the outermost: words and URL."""
        return [
            (
                (_("item of the map %s") if node.kind == NodeKind.MAP else _("node of the subworkflow %s"))
                % node.node_id,
                self._node_url(node.kind, node.key, node.position, None)
                if node.workflow.pk == self.workflow.pk
                else "",
            )
            for node in (self.failing.inside if self.failing else ())
        ]

    @property
    def batch(self) -> BatchSummary | None:
        """The tasks of a batch by state; None if it is none."""
        if not self.workflow.is_batch:
            return None
        calls = next((node for node in self._nodes.nodes if node.position == CALLS_INDEX), None)
        return batch_summary(calls.items if calls else {})

    @property
    def completion_reason(self) -> str:
        """Why it is COMPLETED although not all of its nodes are."""
        return completion_reason(self.workflow, self._nodes)

    # The graph.

    @cached_property
    def picture(self) -> Any:
        """The graph as SVG; empty if there are too many boxes."""
        boxes = self._boxes
        if not boxes or self._nodes.is_truncated:
            return ""
        title = fill_numbers(
            _("Graph of %(name)s: %(done)d of %(total)d nodes have finished. The table of nodes has the same data."),
            {"name": self.workflow.name, "done": self.done, "total": self.workflow.node_count},
        )
        self.layout = compute_layout(len(boxes), edges_between(boxes))
        return draw(boxes, self.layout, self._style(title))

    @cached_property
    def timeline(self) -> Any:
        """The timeline of the nodes as SVG; empty if there are too many boxes."""
        return draw_timeline(self._boxes, self._style()) if self._boxes else ""

    def _style(self, title: str = "") -> DrawingStyle:
        box_of = {node.position: number for number, box in enumerate(self._boxes) for node in box.nodes}
        critical = list(dict.fromkeys(box_of[node.position] for node in self._critical_path))
        return DrawingStyle(self._box_url, self.now, critical, title, self._drawn_until)

    @property
    def notes(self) -> list[str]:
        """Notes on what the graph leaves out."""
        notes = []
        if self.has_too_many_edges:
            notes.append(_("The nodes have too many dependencies to draw a graph and a critical path."))
        elif self._nodes.is_truncated:
            notes.append(
                _("There are more than %(limit)s nodes: too many for a graph.") % {"limit": format_number(MAX_NODES)}
            )
        elif len(self._groups) > MAX_BOXES:
            numbers = {"count": format_number(len(self._groups)), "limit": format_number(MAX_BOXES)}
            notes.append(_("The graph would have %(count)s boxes; the maximum is %(limit)s.") % numbers)
        elif self.picture and self.layout.left_out:
            count = self.layout.left_out
            note = ngettext(
                "%d edge is not drawn: a longer path implies it.",
                "%d edges are not drawn: longer paths imply them.",
                count,
            )
            notes.append(fill_numbers(note, count))
        return notes

    @property
    def has_too_many_edges(self) -> bool:
        """Whether there are too many edges to read."""
        return self._nodes.has_too_many_edges

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        """The steps of the critical path: what each waited and ran, and its share of the whole."""
        drawn = self._drawn_steps
        began = drawn[0].began if drawn else None
        whole = sum((step.waited + step.ran for step in drawn), timedelta())
        shown = zip(self._steps[-_STEPS:], drawn[-_STEPS:], strict=True)
        return [
            {
                "label": step.node.label if step.node else _("After the last node"),
                "index": step.node.position if step.node else None,
                "status": step.node.status.lower() if step.node else "",
                "state": status_label(step.node.status) if step.node else "",
                "time": time_words(step.waited, step.ran, growing=step.growing),
                "percent": drawn_step.percent,
                "bar": _bar_of(drawn_step, began, whole),
            }
            for step, drawn_step in shown
        ]

    @property
    def path_length(self) -> int:
        """The number of nodes on the critical path."""
        return len(self._critical_path)

    @property
    def path_total(self) -> SafeString | str:
        """What all of the critical path waited and ran, with shares of the whole."""
        waited, ran = _totals(self._steps)
        if not (whole := waited + ran):
            return ""
        drawn_waited, drawn_ran = _totals(self._drawn_steps)
        percent = round(100 * drawn_ran / (drawn_waited + drawn_ran))
        growing = self._steps[-1].growing
        text = _("Of {whole} it waited {waited} ({rest} %) and ran {ran} ({percent} %).")
        numbers = {
            "whole": counted(whole) if growing else format_duration(whole),
            "waited": counted(waited) if growing == "waited" else format_duration(waited),
            "rest": 100 - percent,
            "ran": counted(ran) if growing == "ran" else format_duration(ran),
            "percent": percent,
        }
        return format_html(text, **numbers)

    @property
    def steps_before(self) -> dict[str, Any] | None:
        """The number of unlisted steps at the start of the critical path, and their share; None if all are listed."""
        before = self._drawn_steps[:-_STEPS]
        return {"count": len(before), "percent": sum(step.percent for step in before)} if before else None

    @cached_property
    def _steps(self) -> list[PathStep]:
        row = self.workflow
        return path_steps(self._critical_path, row.started_at, row.completed_at or row.cancelled_at, self.now)

    @cached_property
    def _drawn_steps(self) -> list[PathStep]:
        longer = self._drawn_until - self.now if self._drawn_until and self.now else timedelta()
        return drawn_steps(self._steps, longer)

    @property
    def _drawn_until(self) -> datetime | None:
        """The end of the drawings of a workflow that has not ended."""
        return drawn_until(self.workflow.started_at or self.workflow.sent_at, self.now)

    # The table.

    @cached_property
    def lines(self) -> list[NodeLine]:
        """The lines of the table."""
        return self._table.lines(self._rows[:PAGE_SIZE])

    @property
    def next_after(self) -> NodeCursor | None:
        """The cursor of the table's next page; None on the last."""
        return self.filter.cursor(self._rows[PAGE_SIZE - 1]) if self.has_more_rows and self.filter.is_filtered else None

    @property
    def is_sorted_by_urgency(self) -> bool:
        """Whether the table is sorted by urgency: it shows the nodes of a folded box in all states."""
        return self.filter.box is not None and not self.filter.state

    @property
    def has_more_rows(self) -> bool:
        """Whether the table is incomplete."""
        return len(self._rows) > PAGE_SIZE

    @property
    def filter_label(self) -> str:
        """The selected filter in words."""
        if self.filter.state:
            return status_label(self.filter.state)
        node = next((node for node in self._nodes.nodes if node.position == self.filter.box), None)
        return node.label if node else ""

    @cached_property
    def node_detail(self) -> NodeDetail | None:
        """The node that is shown in detail, if any."""
        row = find_row(self.workflow, self.node.task_index) if self.node else None
        if self.node is None or row is None:
            return None
        is_on_top = self.failing is not None and self.failing.node.pk == self.node.pk
        return node_detail(self.node, self._table.lines([row])[0], is_on_top=is_on_top)

    # Related rows.

    @cached_property
    def children(self) -> list[dict[str, Any]]:
        """The subworkflows with their URLs."""
        keys = [node.key for node in self._read_nodes.nodes if node.kind == NodeKind.SUBWORKFLOW][:MAX_NODES]
        if not keys:
            return []
        tree = Workflow.objects.using(self._database).filter(
            root_id=self.workflow.root_id, depth__gt=0, parent__workflow=self.workflow
        )
        columns = (
            "pk",
            "name",
            "status",
            "parent_id",
            "parent__node_id",
            "is_replaced",
            "started_at",
            "completed_at",
            "cancelled_at",
        )
        rows = tree.order_by("is_replaced", "pk").values(*columns)[:_CHILDREN]
        return [
            {**row, "address": self._page_url("workflow", row["pk"]), "word": WorkflowStatus(row["status"]).label}
            for row in rows
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
        found = rows.order_by("-sent_at").values("name", "payload", "sent_at")[:_EVENTS]
        if not found:
            return []
        mask = mask_of_workflow(self.workflow)
        return [{**row, "shown": as_json(mask.apply("payload", row["payload"]), mask)} for row in found]

    # Helpers.

    @property
    def _database(self) -> str | None:
        return self.workflow._state.db

    @cached_property
    def _read_nodes(self) -> WorkflowNodes:
        return read_workflow_nodes(self.workflow)

    @cached_property
    def _nodes(self) -> WorkflowNodes:
        read = self._read_nodes
        if not self.children:
            return read
        return replace(read, nodes=tuple(with_subworkflow_runs(read.nodes, self.children, self.now)))

    @cached_property
    def _table(self) -> NodeTable:
        may = self.workflow.status in (*RETRYABLE, WorkflowStatus.RUNNING)
        retry = self._retry_url if may else None
        return NodeTable(self.workflow, self._nodes.nodes, self.now, self._node_url, retry)

    @cached_property
    def _groups(self) -> list[list[GraphNode]]:
        return group_alike(self._nodes.nodes)

    @cached_property
    def _boxes(self) -> list[GraphBox]:
        """The boxes of the graph; empty if there are too many."""
        return (
            []
            if self.has_too_many_edges or len(self._groups) > MAX_BOXES
            else [GraphBox.of(group) for group in self._groups]
        )

    @cached_property
    def _critical_path(self) -> list[GraphNode]:
        return [] if self.has_too_many_edges else critical_path(self._nodes.nodes)

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        if self.filter.box is None:
            return page_rows(self.workflow, self.filter)
        folded = (group for group in self._groups if len(group) > 1 and group[0].position == self.filter.box)
        return page_rows(self.workflow, self.filter, tuple(next(folded, ())))

    def _box_url(self, box: GraphBox) -> str:
        node = box.first
        if box.is_folded or (node.kind == NodeKind.MAP and node.items):
            return f"?of={node.position}#nodes"
        return self._node_url(node.kind, node.key, node.position, node.task_id)

    def _node_url(self, kind: str, key: int, index: int, task_id: UUID | None) -> str:
        """Return the URL of a node's details: its task, its subworkflow, or its row."""
        if kind == NodeKind.SUBWORKFLOW and key in self._subworkflow_urls:
            return self._subworkflow_urls[key]
        if kind == NodeKind.TASK and task_id is not None and self._sees_tasks:
            return self._page_url("task", task_id)
        return f"?of={index}#nodes" if kind == NodeKind.MAP else f"?node={index}#node"

    @cached_property
    def _subworkflow_urls(self) -> dict[int, str]:
        return {child["parent_id"]: child["address"] for child in reversed(self.children)}

    def _page_url(self, model: str, key: Any) -> str:
        return reverse(f"{self._site}:horsies_django_{model}_change", args=[key])

    def _retry_url(self, index: int, workflow: UUID | None = None) -> str:
        return reverse(f"{self._site}:horsies_django_workflow_retry_node", args=[workflow or self.workflow.pk, index])


def _bar_of(step: PathStep, began: datetime | None, whole: timedelta) -> Any:
    """Return the bar of a step at its place in the whole path."""
    before = step.began - began if began else timedelta()
    after = whole - before - step.waited - step.ran
    return step_bar(*(time.total_seconds() for time in (before, step.waited, step.ran, after)))


def _totals(steps: Sequence[PathStep]) -> tuple[timedelta, timedelta]:
    """Return what these steps waited and what they ran."""
    return sum((step.waited for step in steps), timedelta()), sum((step.ran for step in steps), timedelta())


def elapsed(began: datetime | None, ended: datetime | None) -> timedelta | None:
    """Return the time between two times, if both are known."""
    return ended - began if began and ended else None
