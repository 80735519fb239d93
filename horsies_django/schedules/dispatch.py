"""Send the task or start the workflow of a schedule."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from django.db import Error, OperationalError, transaction
from django.db.models import F, Q

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
from ..db.now import Now
from ..enqueue.backend import HorsiesBackend
from ..enqueue.handle import TaskHandle
from ..enqueue.task import HorsiesTask
from ..workflows.definition_registry import definition_at
from ..workflows.handle import WorkflowHandle
from ..workflows.workflow import Workflow

if TYPE_CHECKING:
    from uuid import UUID

    from ..models import Schedule
    from ..models.schedule import ScheduleQuerySet
    from ..models.subscribers import RunHandle
    from ..models.transitions import TaskQuerySet
    from ..models.workflow import WorkflowQuerySet

Handle: TypeAlias = TaskHandle[Any] | WorkflowHandle[Any]

#: Options of the calls of a task and of a workflow. ``good_for`` is in seconds after the send.
TASK_OPTIONS: Final = frozenset(
    {"queue_name", "priority", "timeout", "retention", "metadata", "unique_key", "good_for"}
)
WORKFLOW_OPTIONS: Final = frozenset({"queue_name", "priority", "unique_key", "good_for"})

#: Maximum characters of ``last_error``.
ERROR_LENGTH: Final = 2_000


class ScheduledCall(NamedTuple):
    """A task with the options of its schedule, and the arguments."""

    task: HorsiesTask[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]


Prepared: TypeAlias = ScheduledCall | Workflow[Any]


class UnknownTarget(Exception):
    """This process has no task or workflow of that name; another process may have one."""


def call_of(row: Schedule, now: datetime) -> ScheduledCall:
    """Return the call of a schedule with a task.

    Raises NotRegistered if there is no task of that name, and InvalidTask, TypeError or ValueError for a wrong call.
    """
    assert row.task_name is not None
    task = registry.find_task(row.task_name)
    if not isinstance(task, HorsiesTask):
        raise NotRegistered(f"{row.task_name!r} is a task of another backend; allowed: one of HorsiesBackend.")
    args, kwargs = decode_call(row.args, row.kwargs, typed=config_of(row.backend).serializer == "rich")
    options = _options(row, TASK_OPTIONS, now)
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


def find(row: Schedule) -> None:
    """Check that this process has the task or workflow of a schedule. Raises :class:`UnknownTarget` if not."""
    try:
        if row.task_name is not None:
            registry.find_task(row.task_name)
        else:
            definition_at(str(row.workflow_name))
    except Exception as error:
        raise UnknownTarget(error_text(error)) from error


def prepare(row: Schedule, now: datetime) -> Prepared:
    """Return the call or workflow of a schedule. Building a workflow runs the project's code, and raises its errors."""
    return workflow_of(row, now) if row.task_name is None else call_of(row, now)


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


def run_now(row: Schedule) -> Handle:
    """Send a schedule now and update its last run; the next run stays as planned.

    Raises the errors of a send, with a note that names the schedule.
    """
    database = config_of(row.backend).database
    mine = type(row).objects.using(database).filter(pk=row.pk)
    try:
        prepared = prepare(row, database_now(database))
        with transaction.atomic(using=database):
            # Lock the schedule before its task, as the scheduler does, to avoid a deadlock.
            mine.locked(skip=False).values_list("pk").first()
            handle = send(row, prepared)
            mine.update(last_error="", updated_at=Now(), **run_id_of(handle))
    except Exception as error:
        error.add_note(f"schedule {row.name!r} could not be run")
        raise
    return handle


def try_run(rows: ScheduleQuerySet) -> RunHandle | None:
    """Send the one schedule of ``rows`` now and return the handle.

    Returns None if there is no such row, or if the send fails; the row then stores the error in ``last_error``. Raises
    OperationalError.
    """
    try:
        return next(iter(rows.run_now()), None)
    except OperationalError:
        raise
    except Exception as error:  # noqa: BLE001  # workflow builders are the project's code
        rows.update(last_error=error_text(error))
        return None


def last_run_id(handle: Handle) -> dict[str, Any]:
    """Return the column for the id of the last run, with its value."""
    return {"last_workflow_id" if isinstance(handle, WorkflowHandle) else "last_task_id": handle.id}


def run_id_of(handle: Handle) -> dict[str, Any]:
    """Return the columns to update after a send. A run deduplicated by its unique key does not count as a new run."""
    counted = {} if handle.replayed else {"last_run_at": Now(), "run_count": F("run_count") + 1}
    return {**counted, **last_run_id(handle)}


def is_unfinished(row: Schedule) -> bool:
    """Whether a run of the schedule has not ended, including runs sent by hand."""
    return (_live_tasks(row) if row.task_name is not None else _live_workflows(row)).exists()


def cancel_previous(row: Schedule) -> None:
    """Cancel all runs of the schedule that have not ended, including running ones."""
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
    """Select the runs of a schedule. The last may belong to another sender, if it had the same unique key."""
    is_mine = Q(schedule_id=row.pk)
    return is_mine if last_id is None else is_mine | Q(pk=last_id)


def error_text(error: Exception) -> str:
    """Return the text that ``last_error`` stores for an error."""
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
