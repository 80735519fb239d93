"""The door between the queue and its workflows: "these tasks have ended".

A workflow's row is locked before any of its tasks is (P-03). Workers never wait for that lock.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from django.db import Error, transaction

from ..core.workflow_status import WorkflowTaskStatus
from ..db.errors import is_refusal

if TYPE_CHECKING:
    from ..models.transitions import TaskQuerySet


logger = logging.getLogger("horsies_django.workflows")


class Stuck(Exception):
    """What follows from the ends of some tasks can't be done, for their workflows' rows are damaged."""


class Made(NamedTuple):
    """Tasks that can be claimed, each with its queue and whether it is a coroutine's; gates at which others wait."""

    tasks: Mapping[UUID, tuple[str, bool]]
    limit_keys: Collection[str]


class Door:
    """The door of one worker, whose connection keeps what is said through it."""

    def __init__(self, database: str) -> None:
        from .engine.queries import Phrases

        self._database = database
        self._phrases = Phrases(database)

    def blocked(self, roots: Collection[UUID]) -> set[UUID]:
        """Lock these workflows; return those that somebody else has locked."""
        from ..models import Workflow

        missing = set(roots) - self._phrases.lock(roots)
        # One that is not there any more blocks nobody.
        workflows = Workflow.objects.using(self._database)
        return set(workflows.filter(pk__in=missing).values_list("pk", flat=True)) if missing else set()

    def ended(self, ids: Collection[UUID], *, is_any_left: bool) -> Made:
        """Do what follows from the ends of these tasks, whose workflows are locked.

        ``is_any_left`` says whether some of them wait for another attempt. Return what was made with that. It is the
        worker's to tell others of those tasks that it does not claim itself, and to look at the gates. Raises
        :class:`Stuck`.
        """
        from .engine.advance import Advance

        advance = Advance(self._phrases, is_quiet=True)
        try:
            advance.after_tasks(ids, is_any_left=is_any_left)
        except Exception as error:
            if _is_away(error):
                raise
            raise Stuck from error
        return Made(advance.enqueued, advance.limit_keys)


def lock(database: str, root: UUID) -> None:
    """Lock the workflow of a task that is about to end in the current transaction."""
    from ..models import Workflow

    Workflow.objects.using(database).lock([root])


def ended(database: str, ids: Sequence[UUID]) -> None:
    """Do what follows from the ends of these tasks, whose workflows are locked.

    The ends stay, whatever comes of it: a workflow that can't go on, as something has damaged its rows, is told of and
    left to repair.
    """
    if ids and not _try(database, ids) and len(ids) > 1:
        for key in ids:
            _try(database, [key])


def _try(database: str, ids: Sequence[UUID]) -> bool:
    from .engine.advance import Advance

    try:
        with transaction.atomic(using=database):
            Advance.on(database).after_tasks(ids)
    except Exception as error:
        if _is_away(error):
            raise
        logger.exception("what follows from the ends of %d tasks can't be done; task id=%s", len(ids), ids[0])
        return False
    return True


def _is_away(error: Exception) -> bool:
    return isinstance(error, Error) and not is_refusal(error)


def follow(database: str, ids: Collection[UUID]) -> None:
    """Do what follows from what has become of these tasks, if any is a node's, in the current transaction.

    That has locked the tasks, so it must not wait for their workflows.
    """
    from ..models import Task, Workflow

    tasks = Task.objects.using(database).filter(pk__in=ids, workflow_id__isnull=False)
    if ids and (pairs := dict(tasks.values_list("pk", "workflow_id"))):
        held = Workflow.objects.using(database).lock({root for root in pairs.values() if root is not None}, skip=True)
        ended(database, [key for key, root in pairs.items() if root in held])


def free(tasks: TaskQuerySet) -> tuple[TaskQuerySet, list[UUID]]:
    """Lock the workflows of those of these tasks that are nodes; return the tasks without those that have to wait.

    They do if somebody else has locked their workflow. The second value are the ids of those that are nodes.
    """
    from ..models import Workflow

    pairs = dict(tasks.filter(workflow_id__isnull=False).values_list("pk", "workflow_id"))
    if not pairs:
        return tasks, []
    held = Workflow.objects.using(tasks.db).lock({root for root in pairs.values() if root is not None}, skip=True)
    waiting = [key for key, root in pairs.items() if root not in held]
    return tasks.exclude(pk__in=waiting), [key for key in pairs if key not in set(waiting)]


@contextmanager
def following(tasks: TaskQuerySet) -> Iterator[None]:
    """Do what follows from what the block does to these tasks, in one transaction with it, if any is a node's."""
    nodes = list(tasks.filter(workflow_id__isnull=False).values_list("pk", "workflow_id"))
    if not nodes:
        yield
        return
    from ..models import Workflow

    with transaction.atomic(using=tasks.db):
        Workflow.objects.using(tasks.db).lock({root for _, root in nodes if root is not None})
        yield
        ended(tasks.db, [key for key, _ in nodes])


def retry(tasks: TaskQuerySet) -> int:
    """Retry the nodes of these tasks, each with what was skipped for it; return how many (P-06)."""
    from ..models import WorkflowTask
    from .control import retry as retry_node

    nodes = WorkflowTask.objects.using(tasks.db).filter(task_id__in=list(tasks.values_list("pk", flat=True)))
    return sum(retry_node(tasks.db, *row) for row in list(nodes.values_list("workflow_id", "node_id")))


def run(database: str, ids: Collection[UUID]) -> None:
    """ENQUEUED → RUNNING for the nodes of these tasks (W-34)."""
    from ..models import WorkflowTask

    with transaction.atomic(using=database):
        nodes = WorkflowTask.objects.using(database)
        enqueued = nodes.filter(task_id__in=ids, status=WorkflowTaskStatus.ENQUEUED)
        keys = list(enqueued.select_for_update(skip_locked=True).values_list("pk", flat=True))
        nodes.filter(pk__in=keys, status=WorkflowTaskStatus.ENQUEUED).update(status=WorkflowTaskStatus.RUNNING)
