"""Delete tasks at an operator's request."""

from __future__ import annotations

from django.db import transaction

from ...core.status import TaskStatus
from ...models.transitions import TaskQuerySet
from ...reaper import prune


def delete_ended(tasks: TaskQuerySet) -> int:
    """Delete the ended tasks, with their attempts and heartbeats, as pruning does. Return how many.

    Skips tasks whose workflow has not processed their end yet, and rows that another transaction has locked.
    """
    with transaction.atomic(using=tasks.db):
        return prune.delete(tasks.deletable())


def delete_waiting_or_ended(tasks: TaskQuerySet) -> int:
    """Delete the ended tasks and the pending ones, which are cancelled first. Return how many.

    Skips pending tasks of workflow nodes, because their workflow would wait for them.
    """
    with transaction.atomic(using=tasks.db):
        waiting = tasks.filter(status=TaskStatus.PENDING, workflow_id__isnull=True)
        keys = list(waiting.lock().values_list("pk", flat=True))
        cancelled = tasks.all_rows().filter(pk__in=keys)
        if keys and cancelled.cancel():
            return prune.delete(cancelled.deletable()) + delete_ended(tasks)
        return delete_ended(tasks)
