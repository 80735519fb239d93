"""Metrics of workflows in progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db.models import F, Q
from django.db.models.fields.json import KT

from ...core.workflow_status import WORKFLOW_TERMINAL_STATES, WorkflowStatus
from ...db.expressions import SecondsUntil
from ...db.statements import Statement, count_query, decode_rows, rows_query, run_queries
from ...models import Workflow
from .counts import MAX_COUNTED, Count, bounded

#: How many workflows are listed, and how many rows of each state are read to find them.
MAX_SHOWN: Final = 10
MAX_ROWS: Final = 200

#: How many failed workflows are listed, and how many hours after their end.
MAX_FAILED: Final = 5
FAILED_HOURS: Final = 24

LIVE: Final = sorted(set(WorkflowStatus) - WORKFLOW_TERMINAL_STATES)


@dataclass(frozen=True, slots=True)
class WorkflowProgress:
    """A workflow: how many of its nodes have ended, when it was sent, and the seconds since and since it ended.

    ``failing_node`` and ``error_code`` are those of its error.
    """

    id: UUID
    name: str
    status: WorkflowStatus
    done: int
    nodes: int
    sent_at: datetime
    age: float
    ended_at: datetime | None = None
    ended_ago: float | None = None
    failing_node: str = ""
    error_code: str = ""


def queries(database: str) -> dict[str, Statement]:
    """Return the queries for the number of workflows in each live state and for the roots of the newest."""
    asked = {}
    for status in LIVE:
        rows = Workflow.objects.using(database).filter(status=status).order_by("status", "pk")
        asked[f"workflows {status}"] = count_query(rows, MAX_COUNTED + 1)
        newest = rows.order_by("-status", "-pk")[:MAX_ROWS]
        asked[f"newest {status}"] = rows_query(newest, {"root": F("root_id")}, database)
    failed = Workflow.objects.using(database).filter(status=WorkflowStatus.FAILED).order_by("-status", "-pk")
    since_end = {"root": F("root_id"), "ended_in": SecondsUntil("completed_at")}
    asked["failed workflows"] = rows_query(failed[:MAX_ROWS], since_end, database)
    return asked


def counts(answers: Mapping[str, Any]) -> dict[str, Count]:
    """Return the number of workflows, subworkflows included, in each live state."""
    numbers = {status: decode_rows(answers[f"workflows {status}"])[0] for status in LIVE}
    return {status.lower(): bounded(number, number) for status, number in numbers.items()}


def count_by_state(database: str, only: Q) -> dict[str, Count]:
    """Count the workflows that meet ``only`` by their status in lower case, in one statement.

    No index has the completed workflows: they are counted among the newest workflows.
    """
    rows = Workflow.objects.using(database)
    sets = {status: rows.filter(status=status).order_by("status", "pk") for status in WorkflowStatus}
    sets[WorkflowStatus.COMPLETED] = rows.order_by("-pk")
    asked = {
        status.value: count_query(found, MAX_COUNTED + 1, {"matching": only & Q(status=status)})
        for status, found in sets.items()
    }
    answers = run_queries(database, asked)
    return {status.lower(): bounded(*reversed(decode_rows(answer))) for status, answer in answers.items()}


def newest_ids(answers: Mapping[str, Any]) -> list[UUID]:
    """Return the ids of the newest workflows in progress."""
    roots: Iterable[str] = {root for status in LIVE for (root,) in decode_rows(answers[f"newest {status}"])}
    return sorted(map(UUID, roots), reverse=True)[:MAX_SHOWN]


def failed_ids(answers: Mapping[str, Any]) -> list[UUID]:
    """Return the ids of the newest workflows that failed lately, by their roots."""
    recent = (root for root, ended_in in decode_rows(answers["failed workflows"]) if _is_recent(ended_in))
    return sorted(map(UUID, set(recent)), reverse=True)[:MAX_FAILED]


def _is_recent(ended_in: float | None) -> bool:
    return ended_in is not None and ended_in > -FAILED_HOURS * 3_600


def workflow_progress(database: str, ids: Iterable[UUID]) -> list[WorkflowProgress]:
    """Return the progress of these workflows, the newest first."""
    rows = Workflow.objects.using(database).filter(pk__in=list(ids)).order_by("-pk")
    columns = ("pk", "name", "status", "node_count", "open_count", "sent_at", SecondsUntil("sent_at"))
    of_end = ("completed_at", SecondsUntil("completed_at"), KT("error__node_id"), KT("error__error_code"))
    found = rows.values_list(*columns, *of_end)
    return [
        WorkflowProgress(
            key,
            name,
            WorkflowStatus(status),
            nodes - still_open,
            nodes,
            sent_at,
            max(0.0, -sent_in),
            ended_at,
            None if ended_in is None else max(0.0, -ended_in),
            node or "",
            code or "",
        )
        for key, name, status, nodes, still_open, sent_at, sent_in, ended_at, ended_in, node, code in found
    ]
