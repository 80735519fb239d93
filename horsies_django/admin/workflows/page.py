"""What the page of one workflow tells: its picture, its critical path, its nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final
from uuid import UUID

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...durations import lasting
from ...models import Workflow, WorkflowEvent, WorkflowTask
from ...templatetags.horsies_figures import grouped
from ...workflows.codes import WorkflowCode
from ...workflows.engine.retrying import RETRYABLE
from ...workflows.states import NodeKind, WorkflowStatus
from ..graph.critical import critical_path
from ..graph.drawing import Style, draw
from ..graph.folding import Box, Node, edges_of, in_groups
from ..graph.layout import lay_out
from ..graph.timeline import draw_timeline
from ..graph.words import KINDS, MARKS, STATES, word_of
from ..readable import as_json
from .contents import mask_of_workflow
from .node_waits import moment_of, why
from .nodes import LISTED, READ, Choice, Nodes, listed, nodes_of, one, places_in

#: Boxes that are drawn. A picture of more would help nobody.
DRAWN: Final = 600

#: A picture of so many pixels is made as wide as the page at first.
_SNUG: Final = 1_300

#: Lines of the critical path, names of what a node waits for, subworkflows and events that are listed.
_STEPS: Final = 50
_NAMED: Final = 5
_CHILDREN: Final = 200
_EVENTS: Final = 20


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table of nodes, in words."""

    index: int
    node_id: str
    kind: str
    status: str
    state: str
    task: str
    address: str
    attempts: str
    began: str
    took: str
    waited: str
    why: str
    waits_for: tuple[tuple[int, str], ...]
    more: int
    error_code: str
    is_conditional: bool
    retry: str


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
            (_("Sent"), moment_of(row.sent_at)),
            (_("Started"), moment_of(row.started_at)),
            (_("Paused"), moment_of(row.paused_at) if row.paused_at else ""),
            (_("Ended"), moment_of(ended) if ended else ""),
            (_("Took") if ended else _("Runs for"), lasting(self._between(row.started_at, ended or self.now))),
            (_("Deadline"), moment_of(row.good_until) if row.good_until else ""),
        ]
        return [(name, text) for name, text in pairs if text]

    @property
    def failure(self) -> dict[str, str]:
        """Its error in words: the node, the code, the message."""
        error = self.workflow.error
        names = ("node_id", "error_code", "message")
        return {name: str(error.get(name) or "") for name in names} if isinstance(error, dict) else {}

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

    @property
    def is_snug(self) -> bool:
        """Whether the picture can be read when it is made as wide as the page."""
        return bool(self.picture) and self.layout.width <= _SNUG

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
        if self._nodes.is_cut:
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
    def steps(self) -> list[dict[str, Any]]:
        """The critical path in words, each with what it took and its share of the whole."""
        path = self._path
        whole = self._between(path[0].began, path[-1].ended or self.now) if path else None
        seconds = whole.total_seconds() if whole else 0
        steps = []
        for node in path[-_STEPS:]:
            took = self._between(node.began, node.ended or self.now)
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
        return list(self._lines())[:LISTED]

    @property
    def next_after(self) -> int | None:
        """The place after which the next page of the table begins; None if there is none."""
        return self.lines[-1].index if len(self._rows) > LISTED and self.choice.is_any else None

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
    def _groups(self) -> list[list[Node]]:
        return in_groups(self._nodes.nodes)

    @cached_property
    def _boxes(self) -> list[Box]:
        """The boxes of the pictures; none if there are too many."""
        return [] if len(self._groups) > DRAWN else [Box.of(group) for group in self._groups]

    @cached_property
    def _path(self) -> list[Node]:
        return critical_path(self._nodes.nodes)

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        if self.choice.of is None:
            return listed(self.workflow, self.choice)
        folded = (group for group in self._groups if len(group) > 1 and group[0].place == self.choice.of)
        return listed(self.workflow, self.choice, tuple(next(folded, ())))

    def _lines(self) -> Iterator[Line]:
        by_index = {node.place: node for node in self._nodes.nodes}

        def name(index: int) -> str:
            return by_index[index].label if index in by_index else f"#{index}"

        may = self.workflow.status in (*RETRYABLE, WorkflowStatus.RUNNING)
        for row in self._rows:
            sources = places_in(row["waits_for"])
            is_bad = row["status"] in ("FAILED", "SKIPPED") and row["error_code"] != WorkflowCode.CONDITION_NOT_MET
            is_over = row["status"] in ("SKIPPED", "PENDING", "READY")
            began, ended = row["started_at"], row["completed_at"]
            yield Line(
                index=row["task_index"],
                node_id=row["node_id"],
                kind=str(KINDS.get(row["kind"], "")),
                status=row["status"].lower(),
                state=word_of(row["status"]),
                task=row["task_name"] or row["definition_key"] or row["event_name"] or "",
                address=self._address_of(row["kind"], row["pk"], row["task_index"], row["task_id"]),
                attempts=_attempts(row),
                began=moment_of(began),
                took="" if is_over else lasting(self._between(began, ended or self.now)),
                waited=lasting(self._between(began, row["task__started_at"])) if row["kind"] == NodeKind.TASK else "",
                why=why(self.workflow, row),
                waits_for=tuple((source, name(source)) for source in sources[:_NAMED]),
                more=max(0, len(sources) - _NAMED),
                error_code=row["error_code"] or "",
                is_conditional=row["run_when"] is not None or row["skip_when"] is not None,
                retry=self._retry_of(row["task_index"]) if may and is_bad else "",
            )

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

    def _between(self, began: datetime | None, ended: datetime | None) -> timedelta | None:
        return ended - began if began and ended else None


def _attempts(row: Mapping[str, Any]) -> str:
    if not row["task__attempt"]:
        return ""
    return f"{row['task__attempt']}/{max(row['task__attempt'], (row['task__max_retries'] or 0) + 1)}"
