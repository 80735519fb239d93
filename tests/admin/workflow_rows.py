"""Workflows made of rows, whose nodes waited and ran for known times."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from horsies_django.models import Task, TaskAttempt, Workflow, WorkflowTask

START = datetime(2026, 1, 1, 9, tzinfo=UTC)

TRACEBACK = 'Traceback (most recent call last):\n  File "shop.py", line 88, in charge\nshop.CardDeclined: <no>\n'


def at(second: float | None) -> datetime | None:
    """Return the time of a second after the start."""
    return None if second is None else START + timedelta(seconds=second)


def workflow(*nodes: dict[str, Any], seconds: float = 0, **columns: Any) -> Workflow:
    """Create a workflow, by default a failed one; it took so many seconds."""
    start = {"name": "shop.order", "status": "FAILED", "sent_at": START, "started_at": START}
    row = Workflow(**(start | columns), node_count=len(nodes), completed_at=at(seconds) if seconds else None)
    row.root_id = columns.get("root_id", row.pk)
    row.save()
    WorkflowTask.objects.bulk_create(
        WorkflowTask(workflow=row, **{"task_index": index, "node_id": f"n{index}", **node})
        for index, node in enumerate(nodes)
    )
    return row


def node(
    name: str, ready: float, *runs: tuple[float, float], waits_for: Sequence[int] = (), **columns: Any
) -> dict[str, Any]:
    """Return the columns of a node that was ready at a second and whose task ran in these stretches."""
    status, ended = columns.get("status", "COMPLETED"), at(runs[-1][1]) if runs else None
    times = {"sent_at": at(ready), "started_at": at(runs[-1][0]) if runs else None}
    times |= {_ENDS[status]: ended} if status in _ENDS and ended else {}
    state = status if ended else "PENDING"
    task = Task.objects.create(task_name=f"shop.{name}", status=state, attempt=len(runs), **times)
    for number, (start, end) in enumerate(runs if len(runs) > 1 else (), 1):
        is_last = number == len(runs)
        outcome = status if is_last and status in _ENDS else "FAILED"
        TaskAttempt.objects.create(
            task=task,
            attempt=number,
            outcome=outcome,
            will_retry=not is_last,
            due_at=at(start),
            started_at=at(start),
            finished_at=at(end),
        )
    times = {"started_at": at(ready), "completed_at": ended}
    return {"node_id": name, "task_name": f"shop.{name}", "task": task, "waits_for": list(waits_for), "status": status,
            **times, **columns}  # fmt: skip


_ENDS = {"COMPLETED": "completed_at", "FAILED": "failed_at"}


def declined(message: str = "The bank said:\nno <money>.", **more: Any) -> dict[str, Any]:
    """Return the columns of a failed node."""
    exception = {"type": "shop.CardDeclined", "message": message, "traceback": TRACEBACK}
    error = {"error_code": "DECLINED", "message": message, "data": None, "exception": exception, **more}
    return {"status": "FAILED", "error_code": "DECLINED", "result": {"err": error}}


def order() -> Workflow:
    """Create a workflow whose third node failed after two retries; its last node was skipped."""
    nodes = [
        node("validate", 0, (0, 2)),
        node("reserve", 2, (5, 10), waits_for=[0]),
        node("charge", 10, (20, 22), (40, 43), (97, 100), waits_for=[1], **declined()),
        {"node_id": "ship", "task_name": "shop.ship", "status": "SKIPPED", "error_code": "UPSTREAM_SKIPPED",
         "waits_for": [2], "completed_at": at(100)},
    ]  # fmt: skip
    error = {**nodes[2]["result"]["err"], "node_id": "charge"}
    return workflow(*nodes, seconds=100, failed_index=2, error=error)
