"""Passing: one schedule's due slots, each sent, or left out, in one transaction with the next run that is set."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from django.db.models.functions import Now

from ..core.clock import aware, stored
from ..core.schedule_enums import MAX_CATCH_UP, CatchUp, Overlap
from ..core.schedule_slots import Slots
from ..db.errors import is_outage
from ..models.check_migrated import raise_if_grants_are_missing
from ..models.schedule import Schedule, ScheduleQuerySet
from . import dispatch

logger = logging.getLogger("horsies_django.scheduler")

#: Seconds after which a slot counts as missed: a restart of the scheduler takes less.
MISSED_AFTER: Final = 60.0

#: Slots of one schedule that one look makes up for.
SLOTS_PER_PASS: Final = 100

#: What is sent follows from these: where one of them has changed meanwhile, it is prepared anew.
PREPARED_BY: Final = ("backend", "task_name", "workflow_name", "args", "kwargs", "options")


@dataclass(frozen=True, slots=True)
class Fired:
    """A slot that was passed: with a handle it was sent, with an error it could not be; else it was skipped."""

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
    """Somebody else has passed the slot, or is at it."""


def fire_due(rows: ScheduleQuerySet, key: Any, run_at: datetime | None, now: datetime) -> Iterator[Fired]:
    """Pass what is due of one schedule, if its next run is still ``run_at``; yield what became of each slot.

    Each slot has a transaction of its own, and none is open while a project's code builds what is sent. A slot that
    would fail again is left behind, with the error in the row. Raises OperationalError or InterfaceError for what may
    go well another time, and :class:`firing.UnknownTarget` for what another process may know: then the slot stays.
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
        if (now - aware(row.next_run_at)).total_seconds() <= MISSED_AFTER:  # type: ignore[operator]
            raise
        due, last_error = [], str(error)
        logger.error("schedule %r can't be sent, its slots up to %s are left out: %s", row.name, last, error)
    else:
        last_error = ""
    if not due:
        yield _store_error(rows, row, slots, last, last_error)
    for slot in due:
        passed, row = _fire(rows, row, slots, slot, now)
        yield passed


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
    """Return the slots to be sent now, and the last that is passed with them."""
    planned = _planned(row, slots)
    most = min(row.max_catch_up_runs, MAX_CATCH_UP) if row.catch_up == CatchUp.ALL else 1
    found = slots.missed(planned, now, most)[:SLOTS_PER_PASS]
    is_late = (now - slots.due_at(found[-1])).total_seconds() > MISSED_AFTER
    return ([] if row.catch_up == CatchUp.NONE and is_late else found), found[-1]


def _fire(rows: ScheduleQuerySet, row: Schedule, slots: Slots, slot: datetime, now: datetime) -> tuple[Fired, Schedule]:
    """Send a slot, or leave it behind; return what became of it, and the row as it is then."""
    try:
        if row.overlap == Overlap.SKIP and dispatch.is_unfinished(row):
            return _skip(rows, row, slots, slot), row
        return _send(rows, row, slots, slot, dispatch.prepare(row, now))
    except RaceLost:
        raise
    except Exception as error:
        # Builders of workflows are a project's, and so are modules of tasks.
        if is_outage(error):
            raise
        raise_if_grants_are_missing(rows.db, error)
        told = dispatch.error_text(error)
        logger.error("schedule %r can't be sent, its slot %s is left out: %s", row.name, slot.isoformat(), told)
        return _store_error(rows, row, slots, slot, told), row


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
        stands_in = "schedule %r skips its slot %s: what it would send has the unique key of id=%s"
        logger.info(stands_in, row.name, slot.isoformat(), handle.id)
        return Fired(row.name, slot), fresh
    logger.info("schedule %r has sent its slot %s: id=%s", row.name, slot.isoformat(), handle.id)
    return Fired(row.name, slot, handle), fresh


def _skip(rows: ScheduleQuerySet, row: Schedule, slots: Slots, slot: datetime) -> Fired:
    logger.info("schedule %r skips its slot %s: the run before has not finished", row.name, slot.isoformat())
    return _store_error(rows, row, slots, slot)


def _store_error(rows: ScheduleQuerySet, row: Schedule, slots: Slots, slot: datetime, error: str = "") -> Fired:
    """Leave slots behind, up to this one, and say why in the row."""
    _advance(rows, row, slots, slot, {"last_error": error})
    return Fired(row.name, slot, error=error)


def _advance(rows: ScheduleQuerySet, row: Schedule, slots: Slots, slot: datetime, values: dict[str, Any]) -> None:
    run_at = row.next_run_at
    row.plan_for(slots, slots.after(slot))
    _write(rows, row, run_at, {"last_slot_at": stored(slot), **values})


def _write(rows: ScheduleQuerySet, row: Schedule, run_at: datetime | None, values: dict[str, Any]) -> None:
    """Raises :class:`Lost` if the row is no longer what it was."""
    planned = {**row.planned, "enabled": row.enabled, "disabled_by": row.disabled_by}
    if not _locked_row(rows, row.pk, run_at).update(**planned, **values, updated_at=Now()):
        raise RaceLost
