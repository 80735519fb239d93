"""Metrics of workflows in progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db import connections
from django.db.models import F, Q
from django.db.models.fields.json import KT

from ...core.workflow_status import WORKFLOW_TERMINAL_STATES, WorkflowStatus
from ...db import postgres
from ...db.expressions import SecondsUntil
from ...db.statements import Statement, count_query, decode_rows, rows_query, run_queries
from ...models import Workflow
from .counts import MAX_COUNTED, Count, Exactness

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
    found = {status.lower(): decode_rows(answers[f"workflows {status}"])[0] for status in LIVE}
    return {
        name: Count(MAX_COUNTED, Exactness.AT_LEAST) if number > MAX_COUNTED else Count(number)
        for name, number in found.items()
    }


def count_by_state(database: str, only: Q) -> dict[str, Count]:
    """Count the workflows that meet ``only`` by their status in lower case, in one statement.

    At most ``MAX_COUNTED`` rows are read for a status. No index has the completed workflows: they are counted among the
    newest workflows, or estimated.
    """
    rows = Workflow.objects.using(database)
    asked = {
        status.value: count_query(rows.filter(status=status).order_by("status", "pk"), MAX_COUNTED + 1, {"found": only})
        for status in WorkflowStatus
        if status != WorkflowStatus.COMPLETED
    }
    completed = only & Q(status=WorkflowStatus.COMPLETED)
    asked[WorkflowStatus.COMPLETED.value] = count_query(rows.order_by("-pk"), MAX_COUNTED + 1, {"found": completed})
    if connections[database].vendor == "postgresql":
        asked["rows"] = Statement(postgres.ESTIMATED_ROWS, (Workflow._meta.db_table,))
        asked["shares"] = Statement(postgres.ESTIMATED_SHARES, (Workflow._meta.db_table, "status"))
    answers = run_queries(database, asked)
    shares, rows_of_all = dict(decode_rows(answers.get("shares"))), int(answers.get("rows") or 0)
    sizes = {status: round(float(shares.get(status, 0)) * rows_of_all) for status in WorkflowStatus.values}
    sizes[WorkflowStatus.COMPLETED.value] = rows_of_all
    return {status.lower(): _scaled(answers[status], sizes[status]) for status in WorkflowStatus.values}


def _scaled(answer: Any, estimate: int) -> Count:
    """Return the number that was found, scaled if the set has more rows than were read: about ``estimate``."""
    read, found = decode_rows(answer)
    if read <= MAX_COUNTED:
        return Count(found)
    if estimate <= read:
        return Count(found, Exactness.AT_LEAST)
    return Count(round(estimate * found / read), Exactness.ESTIMATE)


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
