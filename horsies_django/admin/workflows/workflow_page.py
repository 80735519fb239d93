"""What the page of one workflow tells: its picture, its critical path, its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, Final
from uuid import UUID

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...core.durations import lasting
from ...core.workflow_status import NodeKind, WorkflowStatus
from ...models import Workflow, WorkflowEvent, WorkflowTask
from ...workflows.engine.retry_nodes import RETRYABLE
from ..formatting import as_json, at, grouped
from ..graph.boxes import Box, Node, edges_of, in_groups
from ..graph.critical_path import critical_path
from ..graph.drawing import Style, draw
from ..graph.labels import MARKS, STATES, word_of
from ..graph.layout import lay_out
from ..graph.node_timeline import draw_timeline
from .completion_reason import why_completed
from .masking import mask_of_workflow
from .node_detail import Facts, facts_of
from .node_paging import LISTED, Choice, Cursor, listed, one, one_listed
from .node_rows import READ, Nodes, nodes_of
from .node_table import Line, Teller, between

#: Boxes that are drawn. A picture of more would help nobody.
DRAWN: Final = 600

#: Lines of the critical path, subworkflows and events that are listed.
_STEPS: Final = 50
_CHILDREN: Final = 200
_EVENTS: Final = 20


class WorkflowPage:
    """The page of one workflow for one user. ``site`` is the name of the admin site, None where tasks are not shown."""

    def __init__(self, workflow: Workflow, query: Mapping[str, str], site: str, *, sees_tasks: bool) -> None:
        self.workflow = workflow
        self.choice = Choice.read(query)
        self.node = one(workflow, query.get("node")) if "node" in query else None
        self.now: datetime | None = getattr(workflow, "now", None)
        self._site = site
        self._sees_tasks = sees_tasks

    # How it stands.

    @property
    def is_live(self) -> bool:
        """Whether anything of it may still change by itself."""
        return self.workflow.status in (WorkflowStatus.RUNNING, WorkflowStatus.PAUSED) or self.workflow.open_count > 0

    @property
    def done(self) -> int:
        """How many nodes have ended."""
        return max(0, self.workflow.node_count - self.workflow.open_count)

    @property
    def counts(self) -> list[tuple[str, str, str, int]]:
        """Each state that there is: its name, its mark, its word, how many."""
        counts = self._nodes.counts
        return [(state, MARKS[state], word_of(state), counts[state]) for state in STATES if counts[state]]

    @property
    def times(self) -> list[tuple[str, str]]:
        """When what happened."""
        row = self.workflow
        ended = row.completed_at or row.cancelled_at
        pairs = [
            (_("Sent"), at(row.sent_at, exactly=False)),
            (_("Started"), at(row.started_at, exactly=False)),
            (_("Paused"), at(row.paused_at, exactly=False) if row.paused_at else ""),
            (_("Ended"), at(ended, exactly=False) if ended else ""),
            (_("Took") if ended else _("Runs for"), lasting(between(row.started_at, ended or self.now))),
            (_("Deadline"), at(row.good_until, exactly=False) if row.good_until else ""),
        ]
        return [(name, text) for name, text in pairs if text]

    @property
    def failure(self) -> dict[str, str]:
        """Its error in words: the node, the code, the message."""
        error = self.workflow.error
        names = ("node_id", "error_code", "message")
        return {name: str(error.get(name) or "") for name in names} if isinstance(error, dict) else {}

    @property
    def verdict(self) -> str:
        """Why it counts as completed, if not all of its nodes completed."""
        return why_completed(self.workflow, self._nodes)

    # The picture.

    @cached_property
    def picture(self) -> Any:
        """The graph as SVG; nothing if there are too many boxes."""
        boxes = self._boxes
        if not boxes or self._nodes.is_cut:
            return ""
        title = _("Graph of %(name)s: %(done)d of %(total)d nodes have ended. The table of nodes says the same.") % {
            "name": self.workflow.name,
            "done": self.done,
            "total": self.workflow.node_count,
        }
        self.layout = lay_out(len(boxes), edges_of(boxes))
        return draw(boxes, self.layout, self._style(title))

    @cached_property
    def timeline(self) -> Any:
        """When its nodes ran, as SVG; nothing if there are too many boxes."""
        return draw_timeline(self._boxes, self._style()) if self._boxes else ""

    def _style(self, title: str = "") -> Style:
        box_of = {node.place: number for number, box in enumerate(self._boxes) for node in box.nodes}
        critical = list(dict.fromkeys(box_of[node.place] for node in self._path))
        return Style(self._address_of_box, self.now, critical, title)

    @property
    def notes(self) -> list[str]:
        """What the picture leaves out."""
        notes = []
        if self.is_tangled:
            notes.append(_("Nodes wait for so many others that there is no picture, and no critical path."))
        elif self._nodes.is_cut:
            notes.append(_("There are more than %(limit)s nodes: too many for a picture.") % {"limit": grouped(READ)})
        elif len(self._groups) > DRAWN:
            numbers = {"count": grouped(len(self._groups)), "limit": grouped(DRAWN)}
            notes.append(_("There are %(count)s boxes to draw, and a picture has %(limit)s at most.") % numbers)
        elif self.picture and self.layout.left_out:
            count = self.layout.left_out
            told = ngettext(
                "%d edge is not drawn: a longer way says it.", "%d edges are not drawn: longer ways say them.", count
            )
            notes.append(told % count)
        return notes

    @property
    def is_tangled(self) -> bool:
        """Whether it has so many edges that they were not read."""
        return self._nodes.is_tangled

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The critical path in words, each with what it took and its share of the whole."""
        path = self._path
        whole = between(path[0].began, path[-1].ended or self.now) if path else None
        seconds = whole.total_seconds() if whole else 0
        steps = []
        for node in path[-_STEPS:]:
            took = between(node.began, node.ended or self.now)
            share = round(100 * took.total_seconds() / seconds) if took and seconds else None
            steps.append(
                {
                    "label": node.label,
                    "index": node.place,
                    "word": word_of(node.status),
                    "took": lasting(took),
                    "share": share,
                }
            )
        return steps

    @property
    def steps_before(self) -> int:
        """How many steps of the critical path are not listed."""
        return max(0, len(self._path) - _STEPS)

    # The table.

    @cached_property
    def lines(self) -> list[Line]:
        """The lines of the table."""
        return [self._teller.line(row) for row in self._rows[:LISTED]]

    @property
    def next_after(self) -> Cursor | None:
        """Where the next page of the table begins; None if there is none."""
        return self.choice.cursor(self._rows[LISTED - 1]) if self.is_short and self.choice.is_any else None

    @property
    def is_urgent_first(self) -> bool:
        """Whether the table has what failed before the rest: it has several states, and is not in the nodes' order."""
        return self.choice.of is not None and not self.choice.state

    @property
    def is_short(self) -> bool:
        """Whether the table has not all that it would show."""
        return len(self._rows) > LISTED

    @property
    def chosen(self) -> str:
        """What the table shows, if not all."""
        if self.choice.state:
            return word_of(self.choice.state)
        node = next((node for node in self._nodes.nodes if node.place == self.choice.of), None)
        return node.label if node else ""

    @cached_property
    def facts(self) -> Facts | None:
        """What there is to say of the node that is shown in full; None if none is."""
        row = one_listed(self.workflow, self.node.task_index) if self.node else None
        return facts_of(self.node, self._teller.line(row)) if self.node and row else None

    # What it is tied to.

    @cached_property
    def children(self) -> list[dict[str, Any]]:
        """Its subworkflows, each with its address."""
        keys = [node.key for node in self._nodes.nodes if node.kind == NodeKind.SUBWORKFLOW][:READ]
        if not keys:
            return []
        tree = Workflow.objects.using(self._database).filter(
            root_id=self.workflow.root_id, depth__gt=0, parent__workflow=self.workflow
        )
        columns = ("pk", "name", "status", "parent_id", "parent__node_id", "is_replaced", "node_count", "open_count")
        rows = tree.order_by("is_replaced", "pk").values(*columns)[:_CHILDREN]
        return [
            {**row, "address": self._address("workflow", row["pk"]), "word": WorkflowStatus(row["status"]).label}
            for row in rows
        ]

    @cached_property
    def parent(self) -> dict[str, Any] | None:
        """The node whose subworkflow it is."""
        if self.workflow.parent_id is None:
            return None
        rows = WorkflowTask.objects.using(self._database).filter(pk=self.workflow.parent_id)
        row = rows.values("node_id", "task_index", "workflow_id", "workflow__name").first()
        return {**row, "address": self._address("workflow", row["workflow_id"])} if row else None

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """The events that it was sent, the latest first."""
        rows = WorkflowEvent.objects.using(self._database).filter(workflow=self.workflow)
        found = rows.order_by("-sent_at").values("name", "payload", "sent_at")[:_EVENTS]
        if not found:
            return []
        mask = mask_of_workflow(self.workflow)
        return [{**row, "shown": as_json(mask.seen("payload", row["payload"]), mask)} for row in found]

    # How.

    @property
    def _database(self) -> str | None:
        return self.workflow._state.db

    @cached_property
    def _nodes(self) -> Nodes:
        return nodes_of(self.workflow)

    @cached_property
    def _teller(self) -> Teller:
        may = self.workflow.status in (*RETRYABLE, WorkflowStatus.RUNNING)
        retry = self._retry_of if may else None
        return Teller(self.workflow, self._nodes.nodes, self.now, self._address_of, retry)

    @cached_property
    def _groups(self) -> list[list[Node]]:
        return in_groups(self._nodes.nodes)

    @cached_property
    def _boxes(self) -> list[Box]:
        """The boxes of the pictures; none if there are too many."""
        return [] if self.is_tangled or len(self._groups) > DRAWN else [Box.of(group) for group in self._groups]

    @cached_property
    def _path(self) -> list[Node]:
        return [] if self.is_tangled else critical_path(self._nodes.nodes)

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        if self.choice.of is None:
            return listed(self.workflow, self.choice)
        folded = (group for group in self._groups if len(group) > 1 and group[0].place == self.choice.of)
        return listed(self.workflow, self.choice, tuple(next(folded, ())))

    def _address_of_box(self, box: Box) -> str:
        node = box.first
        if box.is_folded or (node.kind == NodeKind.MAP and node.items):
            return f"?of={node.place}#nodes"
        return self._address_of(node.kind, node.key, node.place, node.task_id)

    def _address_of(self, kind: str, key: int, index: int, task_id: UUID | None) -> str:
        """Where one reads more of a node: its task, its subworkflow, or what the row says."""
        if kind == NodeKind.SUBWORKFLOW and key in self._child_of:
            return self._child_of[key]
        if kind == NodeKind.TASK and task_id is not None and self._sees_tasks:
            return self._address("task", task_id)
        return f"?of={index}#nodes" if kind == NodeKind.MAP else f"?node={index}#node"

    @cached_property
    def _child_of(self) -> dict[int, str]:
        return {child["parent_id"]: child["address"] for child in reversed(self.children)}

    def _address(self, model: str, key: Any) -> str:
        return reverse(f"{self._site}:horsies_django_{model}_change", args=[key])

    def _retry_of(self, index: int) -> str:
        return reverse(f"{self._site}:horsies_django_workflow_retry_node", args=[self.workflow.pk, index])
