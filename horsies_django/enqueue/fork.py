"""Forks: a task that runs again as a new one, from a step on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from django.db import transaction
from django.db.models import F, Min, UUIDField, Value

from ..core.backends import horsies_backend, reads_typed
from ..core.exceptions import NotRegistered
from ..core.parameters import parameters_of
from ..core.registry import registry
from ..core.serialization import decode_call
from ..db.statements import Statement
from ..models import Task, TaskStep

if TYPE_CHECKING:
    from .handle import TaskHandle

#: The columns of a record that a fork has too. What failed last is tried again, so no attempt is kept.
_COPIED: Final = (
    *("name", "number", "kind", "status", "result", "attempts", "position"),
    *("due_at", "started_at", "completed_at"),
)


def fork(handle: TaskHandle[Any], from_step: str | None, kwargs: Mapping[str, Any] | None) -> TaskHandle[Any]:
    """See :meth:`TaskHandle.fork`."""
    database = handle._database
    row = Task.objects.using(database).filter(pk=handle.id).first()
    if row is None:
        raise ValueError(f"There is no task {handle.id}.")
    task = _task_of(row)
    steps = TaskStep.objects.using(database).filter(task=row.pk, position__isnull=False)
    kept = steps
    if from_step is not None:
        first = steps.filter(name=from_step).aggregate(first=Min("position"))["first"]
        if first is None:
            names = dict.fromkeys(steps.order_by("position").values_list("name", flat=True))
            raise ValueError(f"from_step is {from_step!r}; allowed: {', '.join(map(repr, names)) or 'none'}.")
        kept = steps.filter(position__lt=first)
    args, named = decode_call(row.args, row.kwargs, typed=reads_typed(row.backend, row.typed_payload))
    args, named = parameters_of(task.func, task.takes_context).replace(args, named, kwargs or {})
    sent = task.with_options(backend=row.backend, queue_name=row.queue_name, priority=row.priority)
    sent = replace(sent, about_row=row.about_row)
    # The first run of a fork reads records, as any run after the first does. A unique key stays with its task.
    own = {"rerun_of_id": row.pk, "claim": 1, "unique_key": None}
    backend: Any = horsies_backend(row.backend)
    with transaction.atomic(using=database):
        forked: TaskHandle[Any] = backend.send(sent, args, named, own=own)
        columns: dict[str, Any] = {
            "task_id": Value(forked.id, UUIDField()),
            **dict.fromkeys(("attempt", "claim"), Value(0)),
        }
        columns |= {name: F(name) for name in _COPIED}
        if from_step is not None:
            Statement.insert(TaskStep, kept, columns, may_exist=False).run(database)
    return forked


def _task_of(row: Task) -> Any:
    """Return the task of a row. Raises ValueError if it can't be forked."""
    if row.workflow_id is not None or row.item_count is not None:
        raise ValueError(f"{row} is a node of a workflow or has gathered calls; allowed: a task that was sent alone.")
    try:
        return registry.find_task(row.task_name)
    except NotRegistered as error:
        raise ValueError(f"{row} can't be forked: {error}") from error
