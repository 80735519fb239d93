"""Send the tasks and workflows of schedules: the due slots of one schedule, or one run now."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import Error, OperationalError, transaction
from django.db.models import F, Q

from ..core.backends import config_of
from ..core.clock import aware
from ..core.exceptions import NotRegistered
from ..core.registry import registry
from ..core.schedule_slots import Slots
from ..core.status import TASK_LIVE_STATES
from ..db.clock import database_now
from ..db.errors import is_outage, primary_message
from ..db.now import Now
from ..models import Schedule, Task
from ..models import Workflow as WorkflowRow
from ..models.check_migrated import raise_if_grants_are_missing
from ..models.schedule import MAX_CATCH_UP, CatchUp, DisabledBy, Overlap, ScheduleQuerySet
from ..models.subscribers import RunHandle
from ..models.transitions import TaskQuerySet
from ..models.workflow import WorkflowQuerySet
from ..workflows import control
from ..workflows.definition_registry import definition_at
from .scheduled_call import Handle, Prepared, prepare, send

logger = logging.getLogger("horsies_django.scheduler")

#: Seconds after which a slot counts as missed; longer than a restart of the scheduler takes.
MISSED_AFTER: Final = 60.0

#: Columns that determine the call; if one changes after the call was prepared, the slot is fired in a later pass.
PREPARED_BY: Final = ("backend", "task_name", "workflow_name", "args", "kwargs", "options")

#: Maximum characters of ``last_error``.
ERROR_LENGTH: Final = 2_000


@dataclass(frozen=True, slots=True)
class Fired:
    """A slot that is done: sent if ``handle`` is set, failed if ``error`` is set, otherwise skipped."""

    schedule: str
    slot: datetime
    handle: Handle | None = None
    error: str = ""

    def __str__(self) -> str:
        if self.handle is not None:
            return f"{self.schedule}: {self.slot.isoformat()} sent, id={self.handle.id}"
        return f"{self.schedule}: {self.slot.isoformat()} {f'failed: {self.error}' if self.error else 'skipped'}"


class RaceLost(Exception):
    """Another scheduler has fired the slot, or is firing it."""


class UnknownTarget(Exception):
    """This process has no task or workflow of that name; another process may have one."""


# The due slots of a schedule.


def fire_due(rows: ScheduleQuerySet, key: Any, run_at: datetime | None, now: datetime) -> Iterator[Fired]:
    """Fire the due slots of one schedule, if its next run is still ``run_at``; yield the result of each.

    Sends or skips each slot, and plans the next run, in a transaction of its own; none is open while the project's code
    builds a workflow. A slot with a permanent error is skipped, and the row stores the error. Raises OperationalError
    or InterfaceError for transient errors, and :class:`UnknownTarget` for a task or workflow that only another process
    may know; the slot then stays due.
    """
    row = _as_planned(rows, key, run_at).first()
    if row is None:
        return
    with suppress(RaceLost):
        slots = _slots_of_plan(row)
        if slots is None:
            row.plan(now)
            _write(rows, row, run_at, last_error=row.last_error if row.disabled_by == DisabledBy.TIMING else "")
            return
        due, last = _due(row, slots, now)
        error = _unknown_target(row, now) if due else ""
        if error:
            logger.error("schedule slots skipped name=%r last=%s error=%s", row.name, last, error)
        if error or not due:
            yield _skip(rows, row, slots, last, error)
            return
        for slot in due:
            fired, row = _fire(rows, row, slots, slot, now)
            yield fired


def _as_planned(rows: ScheduleQuerySet, key: Any, run_at: datetime | None) -> ScheduleQuerySet:
    return rows.filter(pk=key, enabled=True).planned_for(run_at)


def _slots_of_plan(row: Schedule) -> Slots | None:
    """Return the slots, whose anchor is the planned one; None if the next run has to be planned again."""
    with suppress(ValueError):
        slots = row.slots
        if row.next_run_at is not None and not row.has_outdated_plan and slots.anchor and slots.is_within(slots.anchor):
            return slots
    return None


def _due(row: Schedule, slots: Slots, now: datetime) -> tuple[list[datetime], datetime]:
    """Return the slots to send now, and the last slot that is done afterwards."""
    assert slots.anchor is not None
    max_runs = min(row.max_catch_up_runs, MAX_CATCH_UP) if row.catch_up == CatchUp.ALL else 1
    due = slots.missed(slots.anchor, now, max_runs)
    is_late = (now - slots.due_at(due[-1])).total_seconds() > MISSED_AFTER
    return ([] if row.catch_up == CatchUp.NONE and is_late else due), due[-1]


def _unknown_target(row: Schedule, now: datetime) -> str:
    """Return the error of a schedule whose task or workflow no process has; an empty text if this process has it.

    Raises UnknownTarget while another process may have it.
    """
    try:
        if row.task_name is not None:
            registry.find_task(row.task_name)
        else:
            definition_at(str(row.workflow_name))
    except NotRegistered as error:
        assert row.next_run_at is not None
        is_late = (now - aware(row.next_run_at)).total_seconds() > MISSED_AFTER
        if row.declared_at is not None or not is_late:
            raise UnknownTarget(error_text(error)) from error
        return error_text(error)
    return ""


def _fire(rows: ScheduleQuerySet, row: Schedule, slots: Slots, slot: datetime, now: datetime) -> tuple[Fired, Schedule]:
    """Send or skip a slot; return the result and the updated row."""
    try:
        if row.overlap == Overlap.SKIP and _live_runs(row).exists():
            return _skip_overlap(rows, row, slots, slot), row
        return _send(rows, row, slots, slot, prepare(row, now))
    except RaceLost:
        raise
    except Exception as error:
        # Workflow builders and task modules are the project's code and may raise anything.
        if is_outage(error):
            raise
        raise_if_grants_are_missing(rows.db, error)
        message = error_text(error)
        logger.error("schedule slot skipped name=%r slot=%s error=%s", row.name, slot.isoformat(), message)
        return _skip(rows, row, slots, slot, message), row


def _send(
    rows: ScheduleQuerySet, row: Schedule, slots: Slots, slot: datetime, prepared: Prepared
) -> tuple[Fired, Schedule]:
    with transaction.atomic(using=rows.db):
        fresh = _as_planned(rows, row.pk, row.next_run_at).locked().first()
        if fresh is None or any(getattr(fresh, name) != getattr(row, name) for name in PREPARED_BY):
            raise RaceLost
        if fresh.overlap != Overlap.ALLOW and _live_runs(fresh).exists():
            if fresh.overlap == Overlap.SKIP:
                return _skip_overlap(rows, fresh, slots, slot), fresh
            cancel_previous(fresh)
        handle = send(fresh, prepared, slot)
        _advance(rows, fresh, slots, slot, **_run_columns(fresh, handle))
    if handle.replayed:
        log_format = "schedule slot skipped name=%r slot=%s: a live run has its unique key id=%s"
        logger.info(log_format, row.name, slot.isoformat(), handle.id)
        return Fired(row.name, slot), fresh
    logger.info("schedule sent name=%r slot=%s id=%s", row.name, slot.isoformat(), handle.id)
    return Fired(row.name, slot, handle), fresh


def _skip_overlap(rows: ScheduleQuerySet, row: Schedule, slots: Slots, slot: datetime) -> Fired:
    logger.info("schedule slot skipped name=%r slot=%s: the previous run has not finished", row.name, slot.isoformat())
    return _skip(rows, row, slots, slot)


def _skip(rows: ScheduleQuerySet, row: Schedule, slots: Slots, slot: datetime, error: str = "") -> Fired:
    """Skip the slots up to ``slot`` and store ``error`` in the row."""
    _advance(rows, row, slots, slot, last_error=error)
    return Fired(row.name, slot, error=error)


def _advance(rows: ScheduleQuerySet, row: Schedule, slots: Slots, slot: datetime, **values: Any) -> None:
    """Plan the next run after a slot that is done."""
    run_at = row.next_run_at
    row.plan_for(slots, slots.after(slot))
    _write(rows, row, run_at, last_slot_at=slot, **values)


def _write(rows: ScheduleQuerySet, row: Schedule, run_at: datetime | None, **values: Any) -> None:
    """Update the row. Raises :class:`RaceLost` if it has changed meanwhile."""
    if not _as_planned(rows, row.pk, run_at).record_run(**row.planned, **values, updated_at=Now()):
        raise RaceLost


def _run_columns(row: Schedule, handle: Handle) -> dict[str, Any]:
    """Return the columns to update after a send. A run deduplicated by its unique key does not count as a new run."""
    column = "last_workflow_id" if row.task_name is None else "last_task_id"
    setattr(row, column, handle.id)  # for the overlap check of the next slot
    counted = {} if handle.replayed else {"last_run_at": Now(), "run_count": F("run_count") + 1}
    return {**counted, column: handle.id, "last_error": ""}


# A run now.


def run_now(row: Schedule) -> Handle:
    """Send a schedule now and update its last run; the next run stays as planned.

    Raises the errors of a send, with a note that names the schedule.
    """
    database = config_of(row.backend).database
    mine = Schedule.objects.using(database).filter(pk=row.pk)
    try:
        prepared = prepare(row, database_now(database))
        with transaction.atomic(using=database):
            # Lock the schedule before its task, as the scheduler does, to avoid a deadlock.
            mine.locked(skip=False).values_list("pk").first()
            handle = send(row, prepared)
            mine.update(updated_at=Now(), **_run_columns(row, handle))
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


# The runs of a schedule that have not ended.


def cancel_previous(row: Schedule) -> None:
    """Cancel all runs of the schedule that have not ended, including running ones."""
    runs = _live_runs(row)
    if isinstance(runs, TaskQuerySet):
        runs.cancel(include_running=True)
        return
    for key in runs.values_list("pk", flat=True):
        control.cancel(runs.db, key, include_running=True)


def _live_runs(row: Schedule) -> TaskQuerySet | WorkflowQuerySet:
    """Return the runs, including those sent by hand. The last may be of another sender that had its unique key."""
    database = config_of(row.backend).database
    mine = Q(schedule_id=row.pk) if row.last_run_id is None else Q(schedule_id=row.pk) | Q(pk=row.last_run_id)
    if row.task_name is None:
        return WorkflowRow.objects.using(database).live().filter(mine)
    return Task.objects.using(database).filter(mine, status__in=TASK_LIVE_STATES)


def error_text(error: Exception) -> str:
    """Return the text that ``last_error`` stores for an error."""
    return f"{type(error).__name__}: {primary_message(error) if isinstance(error, Error) else error}"[:ERROR_LENGTH]
