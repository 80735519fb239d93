"""What a schedule sends: a call of a task, or a workflow."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from ..core import headers
from ..core.backends import config_of
from ..core.clock import aware
from ..core.compat import task_backends
from ..core.exceptions import NotRegistered
from ..core.option_parsers import LONGEST_DURATION
from ..core.registry import registry
from ..core.serialization import decode_call
from ..enqueue.backend import HorsiesBackend
from ..enqueue.handle import TaskHandle
from ..enqueue.task import HorsiesTask
from ..models import Schedule
from ..workflows.definition_registry import definition_at
from ..workflows.handle import WorkflowHandle
from ..workflows.workflow import Workflow
from .declaration import CALL_OPTIONS

Handle: TypeAlias = TaskHandle[Any] | WorkflowHandle[Any]

#: The options of each call of a workflow.
WORKFLOW_OPTIONS: Final = frozenset({"queue_name", "priority", "unique_key", "good_for"})


class ScheduledCall(NamedTuple):
    """A task with the options of its schedule, and the arguments."""

    task: HorsiesTask[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]


Prepared: TypeAlias = ScheduledCall | Workflow[Any]


def prepare(row: Schedule, now: datetime) -> Prepared:
    """Return the call or workflow of a schedule. Building a workflow runs the project's code, and raises its errors."""
    return workflow_of(row, now) if row.task_name is None else call_of(row, now)


def call_of(row: Schedule, now: datetime) -> ScheduledCall:
    """Return the call of a schedule with a task.

    Raises NotRegistered if there is no task of that name, and InvalidTask, TypeError or ValueError for a wrong call.
    """
    assert row.task_name is not None
    task = registry.find_task(row.task_name)
    if not isinstance(task, HorsiesTask):
        raise NotRegistered(f"{row.task_name!r} is a task of another backend; allowed: one of HorsiesBackend.")
    args, kwargs = decode_call(row.args, row.kwargs, typed=config_of(row.backend).serializer == "rich")
    options = _options(row, CALL_OPTIONS, now)
    return ScheduledCall(task.with_options(backend=row.backend, **options), args, kwargs)


def workflow_of(row: Schedule, now: datetime) -> Workflow[Any]:
    """Return the workflow of a schedule. Raises LookupError, InvalidWorkflow, and anything ``build_with`` raises."""
    assert row.workflow_name is not None
    if row.args:
        raise TypeError(f"args is {row.args!r}; allowed: none, because a workflow takes only keyword arguments.")
    _, kwargs = decode_call([], row.kwargs, typed=config_of(row.backend).serializer == "rich")
    workflow: Workflow[Any] = definition_at(row.workflow_name).build_with(**kwargs)
    options = _options(row, WORKFLOW_OPTIONS, now)
    return workflow.with_options(**options) if options else workflow


def _options(row: Schedule, allowed: frozenset[str], now: datetime) -> dict[str, Any]:
    options = dict(row.options)
    if unknown := options.keys() - allowed:
        names = ", ".join(sorted(map(repr, unknown)))
        raise TypeError(f"options has {names}; allowed: {', '.join(sorted(allowed))}.")
    if (good_for := options.pop("good_for", None)) is not None:
        is_number = isinstance(good_for, int | float) and not isinstance(good_for, bool)
        if not (is_number and 0 < good_for <= LONGEST_DURATION):
            raise ValueError(
                f"good_for is {good_for!r}; allowed: a positive number of seconds, {LONGEST_DURATION} at most."
            )
        options["good_until"] = aware(now) + timedelta(seconds=good_for)
    return options


def send(row: Schedule, prepared: Prepared, slot: datetime | None = None) -> Handle:
    """Send the task or start the workflow in the current transaction; return the handle. Does not update the row.

    The run stores ``slot``, except for a grouped task, whose run may contain calls of other senders.
    """
    if isinstance(prepared, Workflow):
        return prepared.start(schedule_id=row.pk, scheduled_for=slot)
    backend, task = task_backends[row.backend], prepared.task
    assert isinstance(backend, HorsiesBackend)
    if slot is not None and task.gather is None:
        task = task.with_options(metadata=headers.of_slot(slot))
    return backend.send(task, prepared.args, prepared.kwargs, own={"schedule_id": row.pk})
