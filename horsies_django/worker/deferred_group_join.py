"""Joining: what is run of a call that was sent for later, of a task that gathers its calls (A3-16)."""

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

#: The columns that the group has of a call that opens it.
_COPIED_COLUMNS: Final = ("backend", "queue_name", "priority", "timeout", "retention", "retention_by_state", "metadata")

#: Milliseconds that a slot waits for a group that a sender's transaction holds, and seconds until the next try.
LOCK_WAIT: Final = 100
RETRY_AFTER: Final = 0.2


def join_task(backend: str) -> HorsiesTask[..., Any]:
    """Return the task that is run in the place of a call's own, on its backend: there may be none called default."""
    return task(takes_context=True, atomic=True, backend=backend)(join)


def join(context: TaskContext, call: dict[str, Any]) -> str:
    """Add a call whose time has come to the open group of its key; return the id of the group's task.

    It is one transaction with its own end, so the call is in one group, once. Raises Snooze while somebody holds the
    group.
    """
    execution = context.run
    found = registry.find_task(execution.claim.task_name)
    if not isinstance(found, HorsiesTask):
        raise TypeError(f"{execution.claim.task_name} is no task of horsies_django any more: its call can't be sent.")
    own = Task.objects.using(execution.database).values(*_COPIED_COLUMNS).get(pk=execution.task_id)
    try:
        with postgres.waiting_for_locks(connections[execution.database], LOCK_WAIT):
            return str(insert.insert(execution.options, found, (), call, own=own).id)
    except Error as error:
        if not is_outage(error):
            raise
        raise Snooze(RETRY_AFTER) from error
