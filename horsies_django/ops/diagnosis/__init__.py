"""Explain why a task is not running, from what the tables say.

Only conditions that actually hold the task back are reported. Every statement reads a bounded number of rows by an
index.
"""

from __future__ import annotations

from datetime import datetime

from ...core.status import TaskStatus
from ...models import Task, WorkflowTask
from .claimed import claimed_reasons
from .not_retried import why_not_retried
from .pending import pending_reasons
from .reason import Reason, ReasonCode, RelatedRow, now_of
from .workflow_node import node_reasons

__all__ = ["Reason", "ReasonCode", "RelatedRow", "reasons_of", "reasons_of_node", "why_not_retried"]


def reasons_of(task: Task, now: datetime | None = None) -> list[Reason]:
    """Return why a task is not running, the most immediate reason first.

    The list is empty for a running task, unless its worker has gone silent or stands still, and for an ended one.
    ``now`` is the database's current time, if the caller has just read it. Takes at most seven statements.

    >>> reasons_of(Task.objects.get(pk=handle.id))  # doctest: +SKIP
    [Reason(code=<ReasonCode.QUEUE_PAUSED: 'QUEUE_PAUSED'>, words='The queue emails is paused.', …)]
    """
    if task.status == TaskStatus.PENDING:
        return list(pending_reasons(task, now or now_of(task)))
    if task.claimed:
        return list(claimed_reasons(task, now or now_of(task)))
    return []


def reasons_of_node(node: WorkflowTask) -> list[Reason]:
    """Return why a workflow node has not started, or what it sleeps or waits for.

    The list is empty if the node's task has the reasons. Reads ``node.workflow``; takes at most three statements.
    """
    return list(node_reasons(node))
