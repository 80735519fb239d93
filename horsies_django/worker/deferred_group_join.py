"""Joins a deferred call to its group when it becomes due, for tasks that group their calls."""

from __future__ import annotations

from typing import Any, Final

from django.db import Error, connections

from ..core.exceptions import Snooze
from ..core.registry import registry
from ..db import postgres
from ..db.errors import is_outage
from ..enqueue import insert
from ..enqueue.context import TaskContext
from ..enqueue.task import HorsiesTask, task
from ..models import Task

#: The columns that a new group copies from the call that opens it.
_COPIED_COLUMNS: Final = ("backend", "queue_name", "priority", "timeout", "retention", "retention_by_state", "metadata")

#: Milliseconds to wait for a group that a sender's transaction has locked, and seconds until the next attempt.
LOCK_WAIT: Final = 100
RETRY_AFTER: Final = 0.2


def join_task(backend: str) -> HorsiesTask[..., Any]:
    """Return the task that joins calls on ``backend``: a project need not have a backend named default."""
    return task(takes_context=True, atomic=True, backend=backend)(join)


def join(context: TaskContext, call: dict[str, Any]) -> str:
    """Add a call that has become due to the open group of its key; return the id of the group's task.

    The join and the end of the call are one transaction, so the call joins exactly one group. Raises Snooze while
    another transaction holds the group.
    """
    execution = context.run
    found = registry.find_task(execution.claim.task_name)
    if not isinstance(found, HorsiesTask):
        raise TypeError(
            f"{execution.claim.task_name} is not a task of horsies_django any more, so its call can't be sent."
        )
    own = Task.objects.using(execution.database).values(*_COPIED_COLUMNS).get(pk=execution.task_id)
    try:
        with postgres.waiting_for_locks(connections[execution.database], LOCK_WAIT):
            return str(insert.insert(execution.options, found, (), call, own=own).id)
    except Error as error:
        if not is_outage(error):
            raise
        raise Snooze(RETRY_AFTER) from error
