"""The gateway from tasks to the engine: callers report tasks that have ended, the engine advances their workflows.

A workflow's row is locked before any row of its tasks. Each function is named by how it takes that lock:

========================  ===========================================================================================
``lock_and_wait``         Waits for the lock of one workflow.
``lock_unless_locked``    Skips workflows that another transaction has locked, and says which. Workers and the reaper
                          use it, since they must never wait for this lock.
``advance_locked``        Advances workflows that the caller has locked.
``lock_then_advance``     Waits for the locks, runs the block, then advances.
``advance_unless_locked`` For a caller that has locked the tasks already: advances the workflows that are not locked.
========================  ===========================================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple
from uuid import UUID

from django.db import Error, transaction

from ..db.errors import is_permanent_error, row_by_row
from ..db.expressions import where_in
from ..models import Task, Workflow, WorkflowTask
from ..models.claims import TaskRoute
from ..models.transitions import TaskQuerySet
from . import lifecycle

logger = logging.getLogger("horsies_django.workflows")


class AdvanceFailed(Exception):
    """The engine can't advance some workflows, because their rows are damaged."""


class NewTasks(NamedTuple):
    """Tasks that can be claimed, each with its queue and whether it is async; limit keys that have blocked tasks."""

    tasks: Mapping[UUID, TaskRoute]
    limit_keys: Collection[str]


class EngineGateway:
    """The gateway of one worker. It keeps the engine's compiled statements for the worker's connection."""

    def __init__(self, database: str) -> None:
        from .engine.queries import EngineQueries

        self._database = database
        self._queries = EngineQueries(database)

    def lock_unless_locked(self, roots: Collection[UUID]) -> set[UUID]:
        """Lock these workflows; return those that another transaction has locked."""
        missing = set(roots) - self._queries.lock(roots)
        # A deleted workflow has no lock to wait for.
        workflows = Workflow.objects.using(self._database)
        return set(workflows.filter(pk__in=missing).values_list("pk", flat=True)) if missing else set()

    def advance_locked(self, ids: Collection[UUID], *, has_pending: bool) -> NewTasks:
        """Advance the workflows of these tasks, which the caller has locked; return the new tasks.

        ``has_pending`` says whether some of the tasks wait for another attempt. The worker claims the new tasks or
        notifies others of them, and releases blocked tasks of the limit keys. Raises :class:`AdvanceFailed`.
        """
        from .engine.advance import Engine

        engine = Engine(self._queries, caller_notifies=True)
        try:
            engine.advance_after_tasks(ids, has_pending=has_pending)
        except Exception as error:
            if isinstance(error, Error) and not is_permanent_error(error):
                raise
            raise AdvanceFailed from error
        return NewTasks(engine.enqueued, engine.limit_keys)


def lock_and_wait(database: str, root: UUID) -> None:
    """Lock the workflow of a task that is about to end in the current transaction."""
    Workflow.objects.using(database).lock([root])


def lock_unless_locked(tasks: TaskQuerySet) -> tuple[TaskQuerySet, list[UUID]]:
    """Lock the workflows of these tasks; return the tasks that may change now, and the ids of nodes among them.

    Tasks of workflows that another transaction has locked are left out.
    """
    pairs = dict(tasks.filter(workflow_id__isnull=False).values_list("pk", "workflow_id"))
    if not pairs:
        return tasks, []
    locked = Workflow.objects.using(tasks.db).lock({root for root in pairs.values() if root is not None}, skip=True)
    waiting = [key for key, root in pairs.items() if root not in locked]
    return tasks.exclude(pk__in=waiting), [key for key in pairs if key not in set(waiting)]


def advance_locked(database: str, ids: Sequence[UUID]) -> None:
    """Advance the workflows of these tasks, which the caller has locked.

    Never raises for damaged rows: the ends of the tasks stay, the failure is logged, and repair deals with the workflow
    later.
    """
    row_by_row(ids, partial(_advance, database), _leave)


def _advance(database: str, ids: Sequence[UUID]) -> None:
    from .engine.advance import Engine

    with transaction.atomic(using=database):
        Engine.on(database).advance_after_tasks(ids)


def _leave(task_id: UUID, error: Exception) -> None:
    logger.error("workflow not advanced task=%s", task_id, exc_info=error)


@contextmanager
def lock_then_advance(tasks: TaskQuerySet) -> Iterator[None]:
    """Lock the workflows of these tasks, run the block, and advance the workflows: all in one transaction.

    For tasks that are no nodes, the block runs without a transaction of ours.
    """
    nodes = list(tasks.filter(workflow_id__isnull=False).values_list("pk", "workflow_id"))
    if not nodes:
        yield
        return
    with transaction.atomic(using=tasks.db):
        Workflow.objects.using(tasks.db).lock({root for _, root in nodes if root is not None})
        yield
        advance_locked(tasks.db, [key for key, _ in nodes])


def advance_unless_locked(database: str, ids: Collection[UUID]) -> None:
    """Advance the workflows of these tasks in the current transaction, which has locked the tasks.

    Skips workflows that another transaction has locked: to wait for them in this order could deadlock. Repair advances
    those later.
    """
    _, nodes = lock_unless_locked(Task.objects.using(database).filter(pk__in=ids))
    advance_locked(database, nodes)


def retry_nodes(tasks: TaskQuerySet) -> int:
    """Retry the nodes of these tasks, with the nodes that were skipped because of them; return how many tasks."""
    from .control import retry

    nodes = WorkflowTask.objects.using(tasks.db).filter(
        where_in(tasks.db, list(tasks.values_list("pk", flat=True)), "task")
    )
    keys: dict[UUID, list[int]] = {}
    for workflow_id, key in nodes.values_list("workflow_id", "pk"):
        keys.setdefault(workflow_id, []).append(key)
    return sum(retry(tasks.db, workflow_id, where_in(tasks.db, keys[workflow_id])) for workflow_id in keys)


def mark_running(database: str, ids: Collection[UUID]) -> None:
    """ENQUEUED → RUNNING for the nodes of these tasks."""
    with transaction.atomic(using=database):
        nodes = WorkflowTask.objects.using(database)
        enqueued = nodes.filter(lifecycle.MARK_RUNNING.is_possible, task_id__in=ids)
        keys = list(enqueued.select_for_update(skip_locked=True).values_list("pk", flat=True))
        lifecycle.MARK_RUNNING.apply(nodes.filter(pk__in=keys))
