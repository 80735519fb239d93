"""Tasks in each of the states, made without a worker."""

from __future__ import annotations

from django.db.models.functions import Now

from horsies_django.core.ids import uuid7s
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Task

ENDS = {"COMPLETED": "completed_at", "FAILED": "failed_at", "CANCELLED": "cancelled_at", "EXPIRED": "expired_at"}
HELD = {"claimed_by_worker_id": "w", "claimed_at": Now(), "claim": 1}

#: The columns of a task in each state.
COLUMNS = {
    "scheduled": {"enqueued_at": NowPlus(3_600), "deferred": True},
    "aggregating": {
        "enqueued_at": NowPlus(3_600),
        "deferred": True,
        "group_key": "customer-7",
        "item_count": 2,
        "has_inputs": True,
    },
    "pending": {},
    "retrying": {
        "enqueued_at": NowPlus(3_600),
        "next_retry_at": NowPlus(3_600),
        "deferred": True,
        "attempt": 1,
        "retry_count": 1,
    },
    "awaiting": {"enqueued_at": NowPlus(3_600), "deferred": True, "claim": 1, "waits_for": "event:approved"},
    "claimed": {"status": "CLAIMED", **HELD},
    "running": {"status": "RUNNING", **HELD, "started_at": Now(), "attempt": 1},
    **{status.lower(): {"status": status, column: Now()} for status, column in ENDS.items()},
}


def make(state: str, **columns) -> Task:
    """Create a task in this state and read it back."""
    task = Task.objects.create(**{"task_name": "tests.jobs.tasks.noop", **COLUMNS[state], **columns})
    return Task.objects.get(pk=task.pk)


def some(count: int, state: str, **columns) -> list:
    """Create tasks in this state; return their ids, the oldest first."""
    values = {"task_name": "tests.jobs.tasks.noop", **COLUMNS[state], **columns}
    keys = uuid7s(count)
    rows = [Task(id=key, **values) for key in keys]
    for number, row in enumerate(rows):
        row.group_key = row.group_key and f"customer-{number}"  # each task is its own open group
    Task.objects.bulk_create(rows, batch_size=400)
    return keys


def one_of_each() -> dict[str, Task]:
    """Create a task in each state."""
    return {state: make(state) for state in COLUMNS}
