"""Passing: one schedule's due slots are sent, or left out, and its next run is set, in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import Error, transaction
from django.db.models import F
from django.db.models.functions import Now

from ..models.schedule import Schedule, ScheduleQuerySet
from ..refusals import is_refusal
from . import firing
from .choices import CatchUp, Overlap
from .moments import aware, stored
from .slots import Slots

logger = logging.getLogger("horsies_django.scheduler")

#: Seconds after which a slot counts as missed: a restart of the scheduler takes less.
MISSED_AFTER: Final = 60.0

#: Slots of one schedule that one transaction makes up for.
SLOTS_PER_TRANSACTION: Final = 100

#: Characters of an error that a row keeps.
ERROR_LENGTH: Final = 2_000


@dataclass(frozen=True, slots=True)
class Passed:
    """A slot that was passed: with a handle it was sent, with an error it could not be; else it was skipped."""

    schedule: str
    slot: datetime | None
    handle: firing.Handle | None = None
    error: str = ""

    def __str__(self) -> str:
        slot = "-" if self.slot is None else self.slot.isoformat()
        if self.handle is not None:
            return f"{self.schedule}: {slot} sent, id={self.handle.id}"
        return f"{self.schedule}: {slot} {f'failed: {self.error}' if self.error else 'skipped'}"


class Lost(Exception):
    """Somebody else has passed the slot."""


def pass_due(rows: ScheduleQuerySet, key: Any, run_at: datetime | None, now: datetime) -> list[Passed]:
    """Pass what is due of one schedule, if its next run is still ``run_at``; return what became of each slot.

    What would fail again is noted in the row, and its slots are left behind. Raises django.db.Error for what may go
    well another time: then nothing has happened.
    """
    try:
        with transaction.atomic(using=rows.db):
            row = _mine(rows, key, run_at).locked().first()
            return [] if row is None else _pass(rows, row, now)
    except Lost:
        return []
    except Error as error:
        if not is_refusal(error):
            raise
        return _give_up(rows, key, run_at, now, error)
    except Exception as error:  # noqa: BLE001  # builders of workflows are a user's, and so are modules of tasks
        return _give_up(rows, key, run_at, now, error)


def _mine(rows: ScheduleQuerySet, key: Any, run_at: datetime | None) -> ScheduleQuerySet:
    return rows.filter(pk=key, enabled=True).planned_for(run_at)


def _pass(rows: ScheduleQuerySet, row: Schedule, now: datetime) -> list[Passed]:
    run_at = row.next_run_at
    passed: list[Passed] = []
    values: dict[str, Any] = {"last_error": ""}
    slots = _readable(row)
    if slots is None or run_at is None:
        row.plan(now)
        values = {"last_error": row.last_error}
    else:
        due, last = _due(row, slots, now)
        passed = [_fire(row, slot, now) for slot in due] or [Passed(row.name, last)]
        row.plan_for(slots, slots.after(last))
        values |= {"last_slot_at": stored(last)} | _counted(row, passed)
    _write(rows, row, run_at, values)
    return passed


def _readable(row: Schedule) -> Slots | None:
    try:
        return row.slots
    except ValueError:
        return None


def _due(row: Schedule, slots: Slots, now: datetime) -> tuple[Sequence[datetime], datetime]:
    """Return the slots to be sent now, and the last that is passed with them."""
    planned = slots.slot_of(aware(row.next_run_at), aware(row.next_slot_at))
    assert planned is not None
    most = row.max_catch_up_runs if row.catch_up == CatchUp.ALL else 1
    found = slots.missed(planned, now, most)[:SLOTS_PER_TRANSACTION]
    is_late = (now - slots.due_at(found[-1])).total_seconds() > MISSED_AFTER
    return ([] if row.catch_up == CatchUp.NONE and is_late else found), found[-1]


def _fire(row: Schedule, slot: datetime, now: datetime) -> Passed:
    if row.overlap != Overlap.ALLOW and firing.is_unfinished(row):
        if row.overlap == Overlap.SKIP:
            logger.info("schedule %r skips its slot %s: the run before has not finished", row.name, slot)
            return Passed(row.name, slot)
        firing.cancel_previous(row)
    handle = firing.send(row, now)
    for name, value in firing.last_id(handle).items():
        setattr(row, name, value)
    logger.info("schedule %r has sent its slot %s: id=%s", row.name, slot.isoformat(), handle.id)
    return Passed(row.name, slot, handle)


def _counted(row: Schedule, passed: Sequence[Passed]) -> dict[str, Any]:
    count = sum(one.handle is not None for one in passed)
    if not count:
        return {}
    ids = {"last_task_id": row.last_task_id, "last_workflow_id": row.last_workflow_id}
    return {"last_run_at": Now(), "run_count": F("run_count") + count, **ids}


def _write(rows: ScheduleQuerySet, row: Schedule, run_at: datetime | None, values: dict[str, Any]) -> None:
    """Raises :class:`Lost` if the row is no longer what it was."""
    planned = {**row.planned, "enabled": row.enabled, "disabled_by": row.disabled_by}
    if not _mine(rows, row.pk, run_at).update(**planned, **values, updated_at=Now()):
        raise Lost


def _give_up(
    rows: ScheduleQuerySet, key: Any, run_at: datetime | None, now: datetime, error: Exception
) -> list[Passed]:
    """Leave slots behind that can't be sent, and say so in the row."""
    told = f"{type(error).__name__}: {error}"[:ERROR_LENGTH]
    try:
        with transaction.atomic(using=rows.db):
            row = _mine(rows, key, run_at).locked().first()
            if row is None:
                return []
            due, last = _due(row, row.slots, now)
            row.plan_for(row.slots, row.slots.after(last))
            _write(rows, row, run_at, {"last_error": told, "last_slot_at": stored(last)})
    except Lost:
        return []
    logger.error("schedule %r can't be sent, %d slots are left out: %s", row.name, len(due), told)
    return [Passed(row.name, last, error=told)]
