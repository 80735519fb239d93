"""Inserts nodes, thousands in one statement, and their tasks, which the database makes from the nodes' own rows.

A task with a limit key is blocked until its concurrency limit has room.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.db import models
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Coalesce

from ...core.ids import uuid7s
from ...core.limits import declared_terms
from ...core.retry import RetryPolicy
from ...core.status import TaskStatus
from ...db.expressions import NowPlus, ValueByPk
from ...db.inserts import insert_values
from ...db.notifications import wake_after_commit
from ...db.now import Now
from ...db.on_commit import on_commit_robust
from ...db.sent_rows import json_rows
from ...db.statements import Statement
from ...models import Limit, Task, WorkflowTask
from ...models.claims import TaskRoute
from ...models.release_blocked import release_after_commit
from ..node_options import TASK_COLUMNS
from .rows import NodeRows

if TYPE_CHECKING:
    from .context import EngineContext

#: Nodes in one statement.
_BATCH: Final = 5_000

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

_BLOCKED: Final[Mapping[str, Any]] = {"limit_key": F("limit_key"), "blocked": Value(True), "deferred": Value(True)}

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


def enqueue_limited(context: EngineContext, limit_keys: Mapping[int, str]) -> None:
    """PENDING, READY → ENQUEUED for the nodes with these keys, whose tasks are blocked until there is room."""
    if limit_keys:
        context.enqueue("limited", dict(zip(limit_keys, uuid7s(len(limit_keys)), strict=True)), _BLOCKED)
        _release(context, limit_keys.values())


def insert_tasks(context: EngineContext, tasks: Mapping[UUID, TaskRoute], limit_keys: Mapping[UUID, str]) -> None:
    """Insert the tasks of nodes that were inserted as ENQUEUED, with these ids: free ones and limited ones."""
    if tasks:
        context.queries.insert_tasks({}, tasks)
        _notify_workers(context, tasks)
    if limit_keys:
        context.queries.insert_tasks(_BLOCKED, limit_keys)
        _release(context, limit_keys.values())


def _release(context: EngineContext, limit_keys: Iterable[str]) -> None:
    context.limit_keys.update(limit_keys)
    if not context.caller_notifies:
        release_after_commit(context.database, limit_keys, frees_places=False)


def create_limits_after_commit(database: str, nodes: Iterable[Mapping[str, Any]]) -> None:
    """Create the limits of nodes, given by column, after the commit.

    Nodes that start later are then limited by workers without the code of their tasks too.
    """
    keys = {(key, node["task_name"]) for node in nodes if (key := node.get("limit_key")) is not None}
    terms_of = {key: declared_terms(name) for key, name in keys}
    limits = [Limit(key=key, **terms._asdict()) for key, terms in sorted(terms_of.items()) if terms]
    if limits:
        on_commit_robust(database, Limit.objects.using(database).bulk_create, limits, ignore_conflicts=True)


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


# Inserting nodes.


def insert_nodes(database: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert nodes, given by column; a column that some of them lack gets its field's default there.

    The columns whose values differ travel as one JSON text. An instance of each row and a parameter for each value
    would take longer than the rest of a workflow's start.
    """
    if any(row.keys() != rows[0].keys() for row in rows):
        node = WorkflowTask()
        defaults = {name: getattr(node, name) for name in dict.fromkeys(name for row in rows for name in row)}
        rows = [{**defaults, **row} for row in rows]
    first = rows[0]
    varying = [name for name, value in first.items() if not all(_is_same(row[name], value) for row in rows)]
    fields = {name: WorkflowTask._meta.get_field(name) for name in varying}
    for start in range(0, len(rows), _BATCH if varying else 1):
        columns, source = json_rows(database, fields, rows[start : start + _BATCH]) if varying else ({}, None)
        insert_values(WorkflowTask, {**first, **columns}, database, source=source).run(database)


def _is_same(value: Any, first: Any) -> bool:
    """Whether two values are stored alike: in Python 1 equals True and 1.0, within JSON too."""
    if value is first or value != first:
        return value is first
    return not isinstance(value, dict | list) or not value or json.dumps(value) == json.dumps(first)
