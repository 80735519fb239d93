"""Reading the nodes of one workflow for its page: in so many statements, and so many rows, however many there are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Case, Count, Q, QuerySet, TextField, Value, When
from django.db.models.functions import Cast

from ...models import Workflow, WorkflowTask
from ..graph.folding import Node
from ..graph.words import STATES

#: Nodes that are read for the picture, without the items of maps.
READ: Final = 5_000

_NO_ITEMS: Final[Mapping[str, int]] = {}

#: Nodes in one page of the table.
LISTED: Final = 200

#: In a table that is cut, what failed and what goes on come first.
_URGENT: Final = ("FAILED", "RUNNING", "ENQUEUED", "READY", "PENDING", "SKIPPED", "COMPLETED")

#: In the order in which :class:`Node` has them, as far as it does.
_LIGHT: Final = (
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

#: No column of these is large: what a node was given and what came of it are on a page of their own.
_LISTED: Final = (
    *_LIGHT,
    "waits_for",
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
    "task__attempt",
    "task__max_retries",
    "task__started_at",
    "task__next_retry_at",
)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a workflow but for items of maps, and how many there are in each state, items too."""

    nodes: tuple[Node, ...]
    counts: Mapping[str, int]
    is_cut: bool

    @property
    def total(self) -> int:
        """How many there are, items too."""
        return sum(self.counts.values())


def nodes_of(workflow: Workflow) -> Nodes:
    """Read a workflow's nodes, in their order, no more than ``READ`` of them."""
    mine = _mine(workflow)
    items: dict[int | None, dict[str, int]] = {}
    for index, status, count in mine.values_list("map_index", "status").annotate(Count("pk")).order_by():
        items.setdefault(index, {})[status] = count
    as_text = Cast("waits_for", TextField())
    rows = mine.filter(map_index__isnull=True).order_by("task_index").values_list(*_LIGHT, as_text)[: READ + 1]
    found = _nodes(list(rows), items)
    totals = {state: sum(counts.get(state, 0) for counts in items.values()) for state in STATES}
    return Nodes(tuple(found[:READ]), totals, len(found) > READ)


def _nodes(rows: list[tuple[Any, ...]], items: Mapping[int | None, Mapping[str, int]]) -> list[Node]:
    waits_for = _parsed(row[-1] for row in rows)
    return [
        Node._make((*light, task or made or "", places_in(sources), bool(run or skip), items.get(light[1], _NO_ITEMS)))
        for (*light, task, made, run, skip, _text), sources in zip(rows, waits_for, strict=True)
    ]


def _parsed(texts: Iterable[str | None]) -> list[Any]:
    """Parse JSON of many rows at once, which takes a fifth of the time."""
    parsed: list[Any] = json.loads(f"[{','.join(text or 'null' for text in texts)}]")
    return parsed


def places_in(value: Any) -> tuple[int, ...]:
    """Return the places of nodes that a column has; what is none of them is left out, for a row may be damaged."""
    if not isinstance(value, list):
        return ()
    is_sound = {int}.issuperset(map(type, value))
    return tuple(value) if is_sound else tuple(place for place in value if type(place) is int)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which nodes the table shows: all, those in one state, the items of a map, or those that are folded into a box."""

    state: str = ""
    of: int | None = None
    after: int | None = None

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Choice:
        """Read it from the address of the page; nonsense chooses nothing."""
        state = query.get("state", "")
        return cls(state if state in STATES else "", _place(query.get("of")), _place(query.get("after")))

    @property
    def is_any(self) -> bool:
        """Whether something was chosen."""
        return bool(self.state) or self.of is not None


def listed(workflow: Workflow, choice: Choice, alike: tuple[Node, ...] = ()) -> list[dict[str, Any]]:
    """Return the rows of the table, one more than ``LISTED`` if there are more. ``alike`` are those of a folded box."""
    rows: QuerySet[WorkflowTask] = _mine(workflow)
    if choice.state:
        rows = rows.filter(status=choice.state)
    if alike:
        rest = [node.key for node in alike if choice.after is None or node.place > choice.after]
        rows = rows.filter(pk__in=rest[: LISTED + 1])
    elif choice.of is not None:
        rows = rows.filter(Q(map_index=choice.of) | Q(task_index=choice.of))
    if choice.after is not None:
        rows = rows.filter(task_index__gt=choice.after)
    # Their keys first: with all of their columns to sort, PostgreSQL reads the whole table.
    urgency = Case(*(When(status=state, then=Value(place)) for place, state in enumerate(_URGENT)))
    is_whole = choice.is_any or workflow.node_count <= LISTED
    order = ("task_index",) if is_whole else (urgency, "task_index")
    keys = list(rows.order_by(*order).values_list("pk", flat=True)[: LISTED + 1])
    found = {row["pk"]: row for row in _mine(workflow).filter(pk__in=keys).values(*_LISTED)}
    return [found[key] for key in keys if key in found]


def one(workflow: Workflow, place: str | None) -> WorkflowTask | None:
    """Return the node that the page is asked to show in full, if there is one."""
    index = _place(place)
    return None if index is None else _mine(workflow).filter(task_index=index).order_by("task_index").first()


def _place(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None


def _mine(workflow: Workflow) -> QuerySet[WorkflowTask]:
    return WorkflowTask.objects.using(workflow._state.db).filter(workflow=workflow)
