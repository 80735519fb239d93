"""Metrics of workflows in progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from django.db.models import F, Q, QuerySet
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
        status.value: count_query(rows, MAX_COUNTED + 1, {"matching": only & Q(status=status)})
        for status, rows in sets.items()
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


def workflow_progress(database: str, ids: Iterable[UUID]) -> list[Any]:
    """Return these workflows, the newest first.

    Each has the number of its ended nodes as ``done``, the seconds until it was sent and until it ended, which are
    negative, as ``sent_in`` and ``ended_in``, and the node and the code of its error.
    """
    rows: QuerySet[Any] = Workflow.objects.using(database).filter(pk__in=list(ids)).order_by("-pk")
    progress = rows.annotate(
        done=F("node_count") - F("open_count"),
        sent_in=SecondsUntil("sent_at"),
        ended_in=SecondsUntil("completed_at"),
        failing_node=KT("error__node_id"),
        failure_code=KT("error__error_code"),
    )
    return list(progress.only("name", "status", "node_count", "sent_at", "completed_at"))
