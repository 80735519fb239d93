"""Joining: what is run of a call that was sent for later, of a task that gathers its calls (A3-16)."""

from __future__ import annotations

from typing import Any, Final

from .. import sending
from ..context import TaskContext
from ..framework import resolve
from ..models import Task
from ..tasks import HorsiesTask, task

#: The columns that the group has of a call that opens it.
_OPENS_WITH: Final = ("queue_name", "priority", "timeout", "retention", "metadata")


@task(takes_context=True, atomic=True)
def join(context: TaskContext, call: dict[str, Any]) -> str:
    """Add a call whose time has come to the open group of its key; return the id of the group's task.

    It is one transaction with its own end, so the call is in one group, once.
    """
    run = context.run
    found = resolve(run.claim.task_name)
    if not isinstance(found, HorsiesTask):
        raise TypeError(f"{run.claim.task_name} is no task of horsies_django any more: its call can't be sent.")
    own = Task.objects.using(run.database).values(*_OPENS_WITH).get(pk=run.task_id)
    return str(sending.insert(run.options, found, (), call, own=own).id)
