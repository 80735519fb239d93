"""Why a task is not running: what stands between it and a slot, as far as the tables tell.

Only what really holds a task back is a reason. Every statement reads a bounded number of rows by an index.
"""

from __future__ import annotations

from datetime import datetime

from ...core.status import TaskStatus
from ...models import Task, WorkflowTask
from .claimed import claimed_reasons
from .pending import pending_reasons
from .reason import Reason, ReasonCode, RelatedRow, now_of
from .workflow_node import node_reasons

__all__ = ["Reason", "ReasonCode", "RelatedRow", "reasons_of", "reasons_of_node"]


def reasons_of(task: Task, now: datetime | None = None) -> list[Reason]:
    """Return why a task, as it was read, is not running: the nearest reason first; none if it runs or has ended.

    A task that runs has a reason if its worker has fallen silent. ``now`` is the database's clock, if the caller has
    just read it. Costs at most seven statements.

    >>> reasons_of(Task.objects.get(pk=handle.id))  # doctest: +SKIP
    [Reason(code=<ReasonCode.QUEUE_PAUSED: 'QUEUE_PAUSED'>, words='The queue emails is paused.', …)]
    """
    if task.status == TaskStatus.PENDING:
        return list(pending_reasons(task, now or now_of(task)))
    if task.claimed:
        return list(claimed_reasons(task, now or now_of(task)))
    return []


def reasons_of_node(node: WorkflowTask) -> list[Reason]:
    """Return why a node of a workflow has not begun, or what it sleeps or waits for; none if its task says it.

    Reads ``node.workflow``: at most three statements.
    """
    return list(node_reasons(node))
