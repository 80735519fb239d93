"""The node table on a workflow's page: filtered, paged, the most urgent first, a line for each node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import Case, Q, Value, When
from django.utils.translation import gettext as _

from ...core.numbers import format_duration
from ...core.workflow_errors import WorkflowCode
from ...core.workflow_status import NodeKind
from ...models import Workflow, WorkflowTask
from ..formatting import format_time
from ..graph.drawing import KINDS, STATES, status_label, time_of
from .node_rows import node_rows

#: Rows per page of the table.
PAGE_SIZE: Final = 100

#: Maximum number of dependencies that are named.
_MAX_NAMED: Final = 5

#: A wait for a worker below this is not worth a word.
_SHORT_WAIT: Final = timedelta(milliseconds=50)

_URGENCY_ORDER: Final = ("FAILED", "RUNNING", "ENQUEUED", "READY", "PENDING", "SKIPPED", "COMPLETED")

#: Small columns only; a node's inputs and result have a page of their own.
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
    "event_name",
    "until",
    "run_when",
    "skip_when",
    "waits_for",
    "task__attempt",
    "task__max_retries",
    "task__started_at",
    "task__error_code",
)


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

    @property
    def is_filtered(self) -> bool:
        """Whether anything is selected."""
        return bool(self.state) or self.box is not None


def parse_index(text: str | None) -> int | None:
    """Parse a position of a node; None if it is invalid."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None


def page_rows(
    workflow: Workflow, choice: NodeFilter, folded: Collection[int] = (), node: WorkflowTask | None = None
) -> tuple[list[dict[str, Any]], str | None]:
    """Return a page of the table after the row of ``node``, if any, and the ``after`` of the next page.

    ``folded`` are the positions in a folded box. Takes two statements.
    """
    rows = node_rows(workflow)
    if choice.state:
        rows = rows.filter(status=choice.state)
    if choice.box is not None:
        rows = rows.filter(Q(task_index__in=folded) if folded else Q(map_index=choice.box) | Q(task_index=choice.box))
    head = [When(task_index=choice.box, then=Value(0))] if choice.box is not None and not folded else []
    states = [When(status=state, then=Value(number)) for number, state in enumerate(_URGENCY_ORDER, 1)]
    ranked = rows.annotate(urgency=Case(*head, *states, default=Value(len(_URGENCY_ORDER))))
    if choice.after is not None:
        urgency, place = choice.after
        ranked = ranked.filter(Q(urgency__gt=urgency) | Q(urgency=urgency, task_index__gt=place))
    # Only the keys are sorted: to sort all columns, PostgreSQL would read the whole table.
    places = ranked.order_by("urgency", "task_index").values_list("pk", "urgency", "task_index")[: PAGE_SIZE + 1]
    ranks = list(places)
    keys = [*([node.pk] if node else []), *(key for key, *_ in ranks[:PAGE_SIZE])]
    rows_by_key = {row["pk"]: row for row in node_rows(workflow).filter(pk__in=keys).values(*_COLUMNS)}
    after = "{}.{}".format(*ranks[PAGE_SIZE - 1][1:]) if len(ranks) > PAGE_SIZE else None
    return [rows_by_key[key] for key in keys if key in rows_by_key], after


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A line of the node table, as text."""

    index: int
    node_id: str
    kind: str
    status: str
    state: str
    task: str
    address: str
    attempts: str
    is_retried: bool
    began: str
    time: str
    waits_for: list[tuple[int, str]]
    more: int
    error_code: str
    is_conditional: bool
    retry: str

    @property
    def has_other_page(self) -> bool:
        """Whether its address is not that of its details on the same page."""
        return not self.address.startswith("?node=")


def node_lines(
    workflow: Workflow,
    rows: Sequence[Mapping[str, Any]],
    address: Callable[[str, int, int, UUID | None], str],
    retry: Callable[[int], str] | None,
) -> list[NodeLine]:
    """Return the lines of rows. Takes one statement if any of them has dependencies.

    ``address`` returns the URL of a node's details, ``retry`` that of its retry.
    """
    places = {place for row in rows for place in row["waits_for"][:_MAX_NAMED]}
    nodes = node_rows(workflow).filter(task_index__in=places)
    names: dict[int, str] = dict(nodes.values_list("task_index", "node_id")) if places else {}

    def line(row: Mapping[str, Any]) -> NodeLine:
        attempt, max_retries = row["task__attempt"] or 0, row["task__max_retries"] or 0
        began, waits_for = row["started_at"], row["waits_for"]
        return NodeLine(
            index=row["task_index"],
            node_id=row["node_id"],
            kind=str(KINDS.get(row["kind"], "")),
            status=row["status"].lower(),
            state=status_label(row["status"]),
            task=row["task_name"] or row["definition_key"] or row["event_name"] or "",
            address=address(row["kind"], row["pk"], row["task_index"], row["task_id"]),
            attempts=f"{attempt}/{max(attempt, max_retries + 1)}" if attempt else "",
            is_retried=attempt > 1,
            began=format_time(began, exactly=False) if began and row["completed_at"] else "",
            time=_time(row),
            waits_for=[(place, names[place]) for place in waits_for[:_MAX_NAMED] if place in names],
            more=max(0, len(waits_for) - _MAX_NAMED),
            error_code=row["error_code"] or (row["task__error_code"] if row["completed_at"] is None else "") or "",
            is_conditional=row["run_when"] is not None or row["skip_when"] is not None,
            retry=retry(row["task_index"]) if retry and _can_retry(row) else "",
        )

    return list(map(line, rows))


def _time(row: Mapping[str, Any]) -> str:
    """Return how long a node took, and how long of that its task waited to start if it had one attempt only."""
    ready, began, ended = row["started_at"], row["task__started_at"], row["completed_at"]
    if ended is None and row["until"] is not None:
        return _("until %s") % format_time(row["until"], exactly=False)
    is_single = row["kind"] == NodeKind.TASK and row["task__attempt"] == 1
    if is_single and ready and began and ended and began - ready >= _SHORT_WAIT:
        waited, ran = _("waited %s") % format_duration(began - ready), _("ran %s") % format_duration(ended - began)
        return f"{waited}, {ran}"
    return time_of(row["status"], ready, ended)


def _can_retry(row: Mapping[str, Any]) -> bool:
    """Return whether the node failed, or was skipped for a reason other than its own condition."""
    is_skipped: bool = row["status"] == "SKIPPED" and row["error_code"] != WorkflowCode.CONDITION_NOT_MET
    return row["status"] == "FAILED" or is_skipped
