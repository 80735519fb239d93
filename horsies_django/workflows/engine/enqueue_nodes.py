"""Enqueuing nodes: the database inserts their tasks from the nodes' own rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.db import models
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Coalesce

from ...core.ids import uuid7s
from ...core.retry import RetryPolicy
from ...core.status import TaskStatus
from ...db.expressions import NowPlus, ValueByPk
from ...db.notifications import wake_after_commit
from ...db.now import Now
from ...db.statements import Statement
from ...models import Task
from ...models.claims import TaskRoute
from ..node_options import TASK_COLUMNS
from .rows import NodeRows

if TYPE_CHECKING:
    from .context import EngineContext

#: The columns of a task that its node has under the same name.
_NODE_COLUMNS: Final = (*TASK_COLUMNS, "kwargs")

#: The task that builds the subworkflow of a node (see workflows/engine_tasks.py).
BUILD_TASK: Final = "horsies_django.workflows.engine_tasks.build"

#: Engine tasks run again after their worker has died, since they have no effects that could double.
_RETRY_CRASHED: Final = RetryPolicy.fixed([1.0] * 10, auto_retry_for=["WORKER_CRASHED"])
_MAX_RETRIES: Final = Value(_RETRY_CRASHED.max_retries)
_POLICY: Final = Value(_RETRY_CRASHED.as_json(), models.JSONField())

#: The columns of the task that builds a subworkflow; the retry policy is that of the node, if it has one.
BUILD_COLUMNS: Final[Mapping[str, Any]] = {
    "task_name": Value(BUILD_TASK),
    "max_retries": Case(
        When(retry_policy__isnull=True, then=_MAX_RETRIES), default="max_retries", output_field=models.IntegerField()
    ),
    "retry_policy": Coalesce("retry_policy", _POLICY),
}

_INITIAL_VALUES: Final[dict[str, Any]] = {
    "args": Value([], models.JSONField()),
    "status": Value(TaskStatus.PENDING.value),
    "deferred": Value(False),
    "blocked": Value(False),
    "claim": Value(0),
    "attempt": Value(0),
    "retry_count": Value(0),
    "sent_at": Now(),
    "enqueued_at": Now(),
}


def enqueue(context: EngineContext, kind: str, nodes: Mapping[int, TaskRoute], **changes: Any) -> None:
    """PENDING, READY → ENQUEUED for the nodes with these keys, with the next flush of the context.

    ``changes`` are columns in which the tasks differ from their nodes, the same for all of a ``kind``.
    """
    if not nodes:
        return
    ids = dict(zip(nodes, uuid7s(len(nodes)), strict=True))
    context.enqueue(kind, ids, changes)
    if "deferred" in changes:
        notify_workers_later(context, (queue for queue, _ in nodes.values()))
    else:
        _notify_workers(context, {task_id: nodes[key] for key, task_id in ids.items()})


def insert_tasks(context: EngineContext, tasks: Mapping[UUID, TaskRoute]) -> None:
    """Insert the tasks of nodes that were inserted as ENQUEUED, with these ids."""
    if tasks:
        context.queries.insert_tasks({}, tasks)
        _notify_workers(context, tasks)


def _notify_workers(context: EngineContext, tasks: Mapping[UUID, TaskRoute]) -> None:
    """Notify workers of these tasks, which are due."""
    context.enqueued |= tasks
    if not context.caller_notifies:
        for queue, is_async in set(tasks.values()):
            wake_after_commit(context.database, queue, is_async=is_async)


def notify_workers_later(context: EngineContext, queues: Iterable[str]) -> None:
    """Notify workers that these queues have tasks that become due later."""
    for queue in set(queues):
        wake_after_commit(context.database, queue, later=True)


def insert_statement(nodes: NodeRows, task_ids: ValueByPk | F, changes: Mapping[str, Any]) -> Statement:
    """Return the INSERT of the tasks of these nodes."""
    has_inputs = ~(Q(args_from={}) & Q(values_from={}) & Q(ctx_from__isnull=True))
    columns = {
        "id": task_ids,
        **{name: F(name) for name in _NODE_COLUMNS},
        **_INITIAL_VALUES,
        "workflow_id": F("workflow__root_id"),
        "has_inputs": models.ExpressionWrapper(has_inputs, models.BooleanField()),
        **changes,
    }
    return Statement.insert(Task, nodes, columns)


def engine_task(path: str, **kwargs: Any) -> Mapping[str, Any]:
    """Return the columns that make the task of a node an engine task."""
    return {
        "task_name": Value(path),
        "kwargs": Value(kwargs, models.JSONField()),
        "is_async": Value(False),
        "typed_payload": Value(False),
        "has_inputs": Value(False),
        "timeout": Value(None, models.FloatField()),
        "max_retries": _MAX_RETRIES,
        "retry_policy": _POLICY,
    }


def due_in(seconds: ValueByPk) -> Mapping[str, Any]:
    """Return the columns that make a task due after this many seconds."""
    due = NowPlus(seconds)
    return {"enqueued_at": due, "run_after": due, "deferred": Value(True)}
