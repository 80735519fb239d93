"""Read when the nodes of a workflow ran; the rest of their time they waited."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

from django.db.models import Min, QuerySet

from ...core.workflow_status import NodeKind
from ...models import TaskAttempt, WorkflowTask
from ..graph.boxes import GraphNode
from ..graph.node_times import Run

#: Maximum number of retried tasks whose attempts are read, and of those attempts. The runs of others are unknown.
MAX_RETRIED: Final = 1_000
MAX_ATTEMPTS: Final = 5_000

#: Maximum number of items of maps whose first start is looked for.
MAX_ITEMS: Final = 10_000

#: The columns of a node's task from which its runs are known if it was not retried.
TASK_COLUMNS: Final = ("task__attempt", "task__started_at")

#: Kinds of nodes that only wait.
_WAITING_KINDS: Final = frozenset({NodeKind.SLEEP, NodeKind.EVENT})

Runs = tuple[Run, ...]


def runs_of(node: Mapping[str, Any], now: datetime | None, attempts: Mapping[UUID, list[Run]]) -> Runs | None:
    """Return when a node ran; None if that is unknown, or to be read from its items or its subworkflow.

    ``node`` has the columns of a node and ``TASK_COLUMNS``; ``attempts`` are those of retried tasks.
    """
    if node["kind"] in _WAITING_KINDS:
        return ()
    is_known = node["task__attempt"] is not None and (not _is_retried(node) or node["task_id"] in attempts)
    if node["kind"] != NodeKind.TASK or not is_known:
        return None
    began, ended = node["task__started_at"], node["completed_at"] or now
    latest = [(began, ended)] if began and ended else []
    return (*attempts.get(node["task_id"], ()), *latest)


def attempt_runs(database: str | None, retried: Collection[UUID]) -> dict[UUID, list[Run]]:
    """Return when the attempts of these tasks ran, for as many tasks as the limits allow. Takes one statement."""
    if not retried:
        return {}
    rows = TaskAttempt.objects.using(database).filter(task__in=list(retried)[:MAX_RETRIED])
    columns = ("task_id", "started_at", "finished_at")
    found = list(rows.order_by("task_id", "attempt").values_list(*columns)[: MAX_ATTEMPTS + 1])
    runs = {key: [(start, end) for _key, start, end in group] for key, group in groupby(found, itemgetter(0))}
    if len(found) > MAX_ATTEMPTS:
        del runs[found[-1][0]]  # not all of its attempts were read
    return runs


def retried_tasks(nodes: Iterable[Mapping[str, Any]]) -> list[UUID]:
    """Return the tasks of these nodes that were started and then retried."""
    return [node["task_id"] for node in nodes if _is_retried(node)]


def _is_retried(node: Mapping[str, Any]) -> bool:
    """Return whether its task had an earlier attempt; one that waits for a retry has no start."""
    count = node["task__attempt"] or 0
    return count > 1 or (count == 1 and node["task__started_at"] is None)


def with_map_runs(nodes: Iterable[GraphNode], rows: QuerySet[WorkflowTask], now: datetime | None) -> list[GraphNode]:
    """Return the nodes; a map has run since the first of its items did. Takes one statement, if there are maps."""
    nodes = list(nodes)
    items = sum(sum(node.items.values()) for node in nodes)
    if not 0 < items <= MAX_ITEMS:
        return nodes
    starts = rows.filter(map_index__isnull=False).values_list("map_index").annotate(Min("task__started_at")).order_by()
    first = dict(starts)
    return [
        node._replace(runs=_since(first.get(node.position), node.ended or now)) if node.kind == NodeKind.MAP else node
        for node in nodes
    ]


def _since(start: datetime | None, end: datetime | None) -> Runs:
    return ((start, end),) if start and end else ()


def with_subworkflow_runs(
    nodes: Iterable[GraphNode], children: Iterable[Mapping[str, Any]], now: datetime | None
) -> list[GraphNode]:
    """Return the nodes; those of subworkflows have run while one of these did."""
    runs: dict[int, list[Run]] = {}
    for child in children:
        end = child["completed_at"] or child["cancelled_at"] or now
        if child["started_at"] and end:
            runs.setdefault(child["parent_id"], []).append((child["started_at"], end))
    return [node._replace(runs=tuple(runs[node.key])) if node.key in runs else node for node in nodes]
