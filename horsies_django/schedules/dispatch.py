"""Firing: what a schedule sends, as an ordinary send of its task or start of its workflow."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from django.db import Error, OperationalError, transaction
from django.db.models import F, Q
from django.db.models.functions import Now

from ..core import headers
from ..core.backends import config_of
from ..core.clock import aware
from ..core.compat import task_backends
from ..core.exceptions import NotRegistered
from ..core.option_parsers import LONGEST_DURATION
from ..core.registry import registry
from ..core.serialization import decode_call
from ..db.clock import database_now
from ..db.errors import primary_message
from ..enqueue.backend import HorsiesBackend
from ..enqueue.handle import TaskHandle
from ..enqueue.task import HorsiesTask
from ..workflows.handle import WorkflowHandle
from ..workflows.registry import definition_at
from ..workflows.workflow import Workflow

if TYPE_CHECKING:
    from uuid import UUID

    from ..models import Schedule
    from ..models.schedule import ScheduleQuerySet
    from ..models.subscribers import RunHandle
    from ..models.transitions import TaskQuerySet
    from ..models.workflow import WorkflowQuerySet

Handle: TypeAlias = TaskHandle[Any] | WorkflowHandle[Any]

#: Options of each call, by what is called. ``good_for`` is in seconds from when it is sent.
TASK_OPTIONS: Final = frozenset(
    {"queue_name", "priority", "timeout", "retention", "metadata", "unique_key", "good_for"}
)
WORKFLOW_OPTIONS: Final = frozenset({"queue_name", "priority", "unique_key", "good_for"})

#: Characters of an error that a row keeps.
ERROR_LENGTH: Final = 2_000


class Call(NamedTuple):
    """A task with the options of the schedule, and its arguments."""

    task: HorsiesTask[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]


Prepared: TypeAlias = Call | Workflow[Any]


class UnknownTarget(Exception):
    """This process has no task, or workflow, of that name; another may."""


def call_of(row: Schedule, now: datetime) -> Call:
    """Return what the row of a task calls.

    Raises NotRegistered if there is no task of that name, InvalidTask, TypeError or ValueError.
    """
    assert row.task_name is not None
    task = registry.find_task(row.task_name)
    if not isinstance(task, HorsiesTask):
        raise NotRegistered(f"{row.task_name!r} is a task of another backend; allowed: one of HorsiesBackend.")
    args, kwargs = decode_call(row.args, row.kwargs, typed=config_of(row.backend).serializer == "rich")
    options = _options(row, TASK_OPTIONS, now)
    return Call(task.with_options(backend=row.backend, **options), args, kwargs)


def workflow_of(row: Schedule, now: datetime) -> Workflow[Any]:
    """Return the workflow that a row starts. Raises LookupError, InvalidWorkflow, and what ``build_with`` raises."""
    assert row.workflow_name is not None
    if row.args:
        raise TypeError(f"args is {row.args!r}; allowed: none, for the parameters of a workflow go by name.")
    _, kwargs = decode_call([], row.kwargs, typed=config_of(row.backend).serializer == "rich")
    workflow: Workflow[Any] = definition_at(row.workflow_name).build_with(**kwargs)
    options = _options(row, WORKFLOW_OPTIONS, now)
    return workflow.with_options(**options) if options else workflow


def find(row: Schedule) -> None:
    """Look for what a row names. Raises :class:`UnknownTarget` if this process has no such task or workflow."""
    try:
        if row.task_name is not None:
            registry.find_task(row.task_name)
        else:
            definition_at(str(row.workflow_name))
    except Exception as error:
        raise UnknownTarget(error_text(error)) from error


def prepare(row: Schedule, now: datetime) -> Prepared:
    """Return what a row sends; a workflow is built here, by its project's code. Raises what that raises."""
    return workflow_of(row, now) if row.task_name is None else call_of(row, now)


def send(row: Schedule, prepared: Prepared, slot: datetime | None = None) -> Handle:
    """Send it in the current transaction and return the handle; the row's columns are not written.

    What is sent carries the slot that it is for. A gathered run does not: it is for the calls of many.
    """
    if isinstance(prepared, Workflow):
        return prepared.start(schedule_id=row.pk, scheduled_for=slot)
    backend, task = task_backends[row.backend], prepared.task
    assert isinstance(backend, HorsiesBackend)
    if slot is not None and task.gather is None:
        task = task.with_options(metadata=headers.of_slot(slot))
    return backend.send(task, prepared.args, prepared.kwargs, own={"schedule_id": row.pk})


def run_now(row: Schedule) -> Handle:
    """Send what a row says now, and note that. Its next run stays when it is.

    Raises what a send raises, with a note that names the schedule.
    """
    database = config_of(row.backend).database
    mine = type(row).objects.using(database).filter(pk=row.pk)
    try:
        prepared = prepare(row, database_now(database))
        with transaction.atomic(using=database):
            # In the beat's order, first the schedule and then what it sends, or they would wait for each other.
            mine.locked(skip=False).values_list("pk").first()
            handle = send(row, prepared)
            mine.update(last_error="", updated_at=Now(), **run_id_of(handle))
    except Exception as error:
        error.add_note(f"schedule {row.name!r} could not be run")
        raise
    return handle


def try_run(rows: ScheduleQuerySet) -> RunHandle | None:
    """Send the one schedule of ``rows`` now and return the handle.

    None if there is no such row, or if it can't be sent: then it keeps why in ``last_error``. Raises OperationalError.
    """
    try:
        return next(iter(rows.run_now()), None)
    except OperationalError:
        raise
    except Exception as error:  # noqa: BLE001  # what builds a workflow is a project's own code
        rows.update(last_error=error_text(error))
        return None


def last_run_id(handle: Handle) -> dict[str, Any]:
    """Return the column that keeps what was sent last, with its value."""
    return {"last_workflow_id" if isinstance(handle, WorkflowHandle) else "last_task_id": handle.id}


def run_id_of(handle: Handle) -> dict[str, Any]:
    """Return what a row notes of a send. Where a live run with the same unique key stands in, there is no new run."""
    counted = {} if handle.replayed else {"last_run_at": Now(), "run_count": F("run_count") + 1}
    return {**counted, **last_run_id(handle)}


def is_unfinished(row: Schedule) -> bool:
    """Whether a run of it lives, whoever has sent it."""
    return (_live_tasks(row) if row.task_name is not None else _live_workflows(row)).exists()


def cancel_previous(row: Schedule) -> None:
    """Cancel each of its runs that lives, also if it runs."""
    if row.task_name is not None:
        _live_tasks(row).cancel(include_running=True)
        return
    from ..workflows import control

    for key in _live_workflows(row).values_list("pk", flat=True):
        control.cancel(config_of(row.backend).database, key, include_running=True)


def _live_tasks(row: Schedule) -> TaskQuerySet:
    from ..core.status import TASK_LIVE_STATES
    from ..models import Task

    live = Task.objects.using(config_of(row.backend).database).filter(status__in=TASK_LIVE_STATES)
    return live.filter(_is_run_of(row, row.last_task_id))


def _live_workflows(row: Schedule) -> WorkflowQuerySet:
    from ..models import Workflow

    live = Workflow.objects.using(config_of(row.backend).database).live()
    return live.filter(_is_run_of(row, row.last_workflow_id))


def _is_run_of(row: Schedule, last_id: UUID | None) -> Q:
    """Select its runs; the last may be another's, whose unique key it has met."""
    is_mine = Q(schedule_id=row.pk)
    return is_mine if last_id is None else is_mine | Q(pk=last_id)


def error_text(error: Exception) -> str:
    """Return an error as a row keeps it."""
    return f"{type(error).__name__}: {primary_message(error) if isinstance(error, Error) else error}"[:ERROR_LENGTH]


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
