"""Fire the due slots of one schedule: send or skip each, and plan the next run in the same transaction."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from ..core.clock import aware
from ..core.schedule_slots import Slots
from ..db.errors import is_outage
from ..db.now import Now
from ..models.check_migrated import raise_if_grants_are_missing
from ..models.schedule import MAX_CATCH_UP, CatchUp, Overlap, Schedule, ScheduleQuerySet
from . import dispatch

logger = logging.getLogger("horsies_django.scheduler")

#: Seconds after which a slot counts as missed; longer than a restart of the scheduler takes.
MISSED_AFTER: Final = 60.0

#: Columns that determine the call; if one changes after the call was prepared, the slot is fired in a later pass.
PREPARED_BY: Final = ("backend", "task_name", "workflow_name", "args", "kwargs", "options")


@dataclass(frozen=True, slots=True)
class Fired:
    """A slot that is done: sent if ``handle`` is set, failed if ``error`` is set, otherwise skipped."""

    schedule: str
    slot: datetime | None
    handle: dispatch.Handle | None = None
    error: str = ""

    def __str__(self) -> str:
        slot = "-" if self.slot is None else self.slot.isoformat()
        if self.handle is not None:
            return f"{self.schedule}: {slot} sent, id={self.handle.id}"
        return f"{self.schedule}: {slot} {f'failed: {self.error}' if self.error else 'skipped'}"


class RaceLost(Exception):
    """Another scheduler has fired the slot, or is firing it."""


def fire_due(rows: ScheduleQuerySet, key: Any, run_at: datetime | None, now: datetime) -> Iterator[Fired]:
    """Fire the due slots of one schedule, if its next run is still ``run_at``; yield the result of each.

    Each slot has a transaction of its own; none is open while the project's code builds a workflow. A slot with a
    permanent error is skipped, and the row stores the error. Raises OperationalError or InterfaceError for transient
    errors, and :class:`dispatch.UnknownTarget` for a task or workflow that only another process may know; the slot
    then stays due.
    """
    row = _locked_row(rows, key, run_at).first()
    if row is None:
        return
    slots = _readable(row)
    try:
        if slots is None or run_at is None or row.has_outdated_plan or not slots.is_within(_planned(row, slots)):
            row.plan(now)
            _write(rows, row, run_at, {"last_error": row.last_error if slots is None else ""})
        else:
            yield from _fire_all(rows, row, slots, now)
    except RaceLost:
        return


def _fire_all(rows: ScheduleQuerySet, row: Schedule, slots: Slots, now: datetime) -> Iterator[Fired]:
    due, last = _due(row, slots, now)
    try:
        if due:
            dispatch.find(row)
    except dispatch.UnknownTarget as error:
        assert row.next_run_at is not None
        is_late = (now - aware(row.next_run_at)).total_seconds() > MISSED_AFTER
        if row.declared_at is not None or not is_late:
            raise
        due, last_error = [], str(error)
        logger.error("schedule slots skipped name=%r last=%s error=%s", row.name, last, error)
    else:
        last_error = ""
    if not due:
        yield _store_error(rows, row, slots, last, last_error)
    for slot in due:
        fired, row = _fire(rows, row, slots, slot, now)
        yield fired


def _locked_row(rows: ScheduleQuerySet, key: Any, run_at: datetime | None) -> ScheduleQuerySet:
    return rows.filter(pk=key, enabled=True).planned_for(run_at)


def _readable(row: Schedule) -> Slots | None:
    try:
        return row.slots
    except ValueError:
        return None


def _planned(row: Schedule, slots: Slots) -> datetime:
    slot = slots.slot_of(aware(row.next_run_at), aware(row.next_slot_at))
    assert slot is not None
    return slot


def _due(row: Schedule, slots: Slots, now: datetime) -> tuple[Sequence[datetime], datetime]:
    """Return the slots to send now, and the last slot that is done afterwards."""
    planned = _planned(row, slots)
    most = min(row.max_catch_up_runs, MAX_CATCH_UP) if row.catch_up == CatchUp.ALL else 1
    found = slots.missed(planned, now, most)
    is_late = (now - slots.due_at(found[-1])).total_seconds() > MISSED_AFTER
    return ([] if row.catch_up == CatchUp.NONE and is_late else found), found[-1]


def _fire(rows: ScheduleQuerySet, row: Schedule, slots: Slots, slot: datetime, now: datetime) -> tuple[Fired, Schedule]:
    """Send or skip a slot; return the result and the updated row."""
    try:
        if row.overlap == Overlap.SKIP and dispatch.is_unfinished(row):
            return _skip(rows, row, slots, slot), row
        return _send(rows, row, slots, slot, dispatch.prepare(row, now))
    except RaceLost:
        raise
    except Exception as error:
        # Workflow builders and task modules are the project's code and may raise anything.
        if is_outage(error):
            raise
        raise_if_grants_are_missing(rows.db, error)
        message = dispatch.error_text(error)
        logger.error("schedule slot skipped name=%r slot=%s error=%s", row.name, slot.isoformat(), message)
        return _store_error(rows, row, slots, slot, message), row


def _send(
    rows: ScheduleQuerySet, row: Schedule, slots: Slots, slot: datetime, prepared: dispatch.Prepared
) -> tuple[Fired, Schedule]:
    with transaction.atomic(using=rows.db):
        fresh = _locked_row(rows, row.pk, row.next_run_at).locked().first()
        if fresh is None or any(getattr(fresh, name) != getattr(row, name) for name in PREPARED_BY):
            raise RaceLost
        if fresh.overlap != Overlap.ALLOW and dispatch.is_unfinished(fresh):
            if fresh.overlap == Overlap.SKIP:
                return _skip(rows, fresh, slots, slot), fresh
            dispatch.cancel_previous(fresh)
        handle = dispatch.send(fresh, prepared, slot)
        for name, value in dispatch.last_run_id(handle).items():
            setattr(fresh, name, value)
        _advance(rows, fresh, slots, slot, {"last_error": "", **dispatch.run_id_of(handle)})
    if handle.replayed:
        log_format = "schedule slot skipped name=%r slot=%s: a live run has its unique key id=%s"
        logger.info(log_format, row.name, slot.isoformat(), handle.id)
        return Fired(row.name, slot), fresh
    logger.info("schedule sent name=%r slot=%s id=%s", row.name, slot.isoformat(), handle.id)
    return Fired(row.name, slot, handle), fresh


def _skip(rows: ScheduleQuerySet, row: Schedule, slots: Slots, slot: datetime) -> Fired:
    logger.info("schedule slot skipped name=%r slot=%s: the previous run has not finished", row.name, slot.isoformat())
    return _store_error(rows, row, slots, slot)


def _store_error(rows: ScheduleQuerySet, row: Schedule, slots: Slots, slot: datetime, error: str = "") -> Fired:
    """Skip the slots up to ``slot`` and store ``error`` in the row."""
    _advance(rows, row, slots, slot, {"last_error": error})
    return Fired(row.name, slot, error=error)


def _advance(rows: ScheduleQuerySet, row: Schedule, slots: Slots, slot: datetime, values: dict[str, Any]) -> None:
    run_at = row.next_run_at
    row.plan_for(slots, slots.after(slot))
    _write(rows, row, run_at, {"last_slot_at": slot, **values})


def _write(rows: ScheduleQuerySet, row: Schedule, run_at: datetime | None, values: dict[str, Any]) -> None:
    """Update the row. Raises :class:`RaceLost` if it has changed meanwhile."""
    planned = {**row.planned, "enabled": row.enabled, "disabled_by": row.disabled_by}
    if not _locked_row(rows, row.pk, run_at).record_run(**planned, **values, updated_at=Now()):
        raise RaceLost
