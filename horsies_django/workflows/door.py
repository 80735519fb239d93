"""The door between the queue and its workflows: "these tasks have ended".

A workflow's row is locked before any of its tasks is (P-03). Workers never wait for that lock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar
from uuid import UUID

from django.db import transaction

from .states import WorkflowTaskStatus

if TYPE_CHECKING:
    from ..models.claims import ClaimedTask


class _Ended(Protocol):
    @property
    def claim(self) -> ClaimedTask: ...


E = TypeVar("E", bound=_Ended)


def blocked(database: str, ends: Sequence[E]) -> list[E]:
    """Lock the workflows that these tasks are nodes of; return those whose workflow somebody else has locked."""
    from ..models import Workflow

    roots = {end.claim.workflow_id for end in ends if end.claim.workflow_id is not None}
    workflows = Workflow.objects.using(database)
    held = workflows.lock(roots, skip=True)
    missing = roots - held
    # One that is not there any more blocks nobody.
    there = set(workflows.filter(pk__in=missing).values_list("pk", flat=True)) if missing else set()
    return [end for end in ends if end.claim.workflow_id in there]


def ended(database: str, ids: Collection[UUID]) -> None:
    """Do what follows from the ends of these tasks, whose workflows are locked."""
    from .engine.advance import Advance

    Advance(database).after_tasks(ids)


def follow(database: str, ids: Collection[UUID]) -> None:
    """Do what follows from what has become of these tasks, if any is a node's, in the current transaction."""
    from ..models import Task, Workflow

    tasks = Task.objects.using(database).filter(pk__in=ids, workflow_id__isnull=False)
    if pairs := dict(tasks.values_list("pk", "workflow_id")):
        Workflow.objects.using(database).lock({root for root in pairs.values() if root is not None})
        ended(database, list(pairs))


def run(database: str, ids: Collection[UUID]) -> None:
    """ENQUEUED → RUNNING for the nodes of these tasks (W-34)."""
    from ..models import WorkflowTask

    with transaction.atomic(using=database):
        nodes = WorkflowTask.objects.using(database)
        enqueued = nodes.filter(task_id__in=ids, status=WorkflowTaskStatus.ENQUEUED)
        keys = list(enqueued.select_for_update(skip_locked=True).values_list("pk", flat=True))
        nodes.filter(pk__in=keys, status=WorkflowTaskStatus.ENQUEUED).update(status=WorkflowTaskStatus.RUNNING)
