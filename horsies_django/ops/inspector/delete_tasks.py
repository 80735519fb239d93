"""Deleting tasks by hand."""

from __future__ import annotations

from django.db import transaction

from ...core.status import TaskStatus
from ...models.transitions import TaskQuerySet
from ...reaper import pruning


def delete_ended(tasks: TaskQuerySet) -> int:
    """Delete those that have ended, as pruning does: with their attempts and beats. Return how many.

    A task that a live workflow has still to hear of is left alone, and so is one that somebody has locked.
    """
    with transaction.atomic(using=tasks.db):
        return pruning.delete(tasks.deletable())


def delete_waiting_or_ended(tasks: TaskQuerySet) -> int:
    """Delete those that have ended, and those that have not begun, which are cancelled first. Return how many.

    A node of a workflow that has not begun is left alone, for its workflow would wait for it.
    """
    with transaction.atomic(using=tasks.db):
        waiting = tasks.filter(status=TaskStatus.PENDING, workflow_id__isnull=True)
        keys = list(waiting.lock().values_list("pk", flat=True))
        cancelled = tasks.rows().filter(pk__in=keys)
        if keys and cancelled.cancel():
            return pruning.delete(cancelled.deletable()) + delete_ended(tasks)
        return delete_ended(tasks)
