"""Syncing: the schedules of code become rows.

Rows are known by their names. Those made by hand and those of other projects are left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models.functions import Now

from ..core.clock import aware
from ..core.options import Options
from ..core.schedule_enums import DisabledBy
from ..db.clock import database_now
from ..models.schedule import PLAN_COLUMNS, Schedule, ScheduleQuerySet
from .declaring import DeclaredSchedule, declarations
from .mistakes import errors_of
from .project import project_of

logger = logging.getLogger("horsies_django.scheduler")

#: Times that a row is read anew which the beat, or somebody else, changes at the same time.
TRIES: Final = 5

#: Names of one statement.
BATCH: Final = 500


@dataclass(frozen=True, slots=True)
class SyncReport:
    """How many rows were made, changed and disabled."""

    created: int = 0
    changed: int = 0
    disabled: int = 0

    def __str__(self) -> str:
        return f"schedules synced: {self.created} new, {self.changed} changed, {self.disabled} disabled"


def sync(options: Options, backend: str) -> SyncReport:
    """Write the schedules that code declares for this backend into rows.

    One with a mistake is logged and left as its row is. The next run is worked out anew only where the timing, the time
    zone, the window or the jitter changed, so that a redeploy starves nothing.
    """
    project = project_of(options)
    rows = Schedule.objects.using(options.database)
    known = {row.name: row for row in rows.filter(source=project)}
    wanted = {
        declared.name: declared for declared in declarations if declared.backend == backend and _is_valid(declared)
    }
    new = [declared for name, declared in wanted.items() if name not in known]
    created = _create(rows, new, project)
    changed = sum(_change(rows, known[name], declared) for name, declared in wanted.items() if name in known)
    declared_names = {str(declared.name) for declared in declarations}
    gone = [
        row.pk
        for row in known.values()
        if row.backend == backend and row.name not in declared_names and row.declared_enabled is not None
    ]
    report = SyncReport(created, changed, _disable(rows, gone))
    logger.log(logging.INFO if any((created, changed, report.disabled)) else logging.DEBUG, "%s", report)
    return report


def _is_valid(declared: DeclaredSchedule) -> bool:
    found = list(errors_of(declared))
    for mistake in found:
        logger.error("%s", mistake)
    return not found


def _create(rows: ScheduleQuerySet, new: Iterable[DeclaredSchedule], project: str) -> int:
    made = [declared.row(project) for declared in new]
    if not made:
        return 0
    before = set(_owned_by_others(rows, [row.name for row in made], project))
    for name in sorted(before):
        logger.warning("schedule %r of the code has no row: that name is one made by hand, or another project's", name)
    made = [row for row in made if row.name not in before]
    now = database_now(rows.db)
    for row in made:
        row.disabled_by = "" if row.enabled else DisabledBy.CODE
        row.plan(now)
    rows.bulk_create(made, ignore_conflicts=True, batch_size=BATCH)
    return len(made)


def _owned_by_others(rows: ScheduleQuerySet, names: list[str], project: str) -> Iterable[str]:
    for place in range(0, len(names), BATCH):
        others = rows.filter(name__in=names[place : place + BATCH]).exclude(source=project)
        yield from others.values_list("name", flat=True)


def _change(rows: ScheduleQuerySet, row: Schedule, declared: DeclaredSchedule) -> bool:
    """Bring a row up to date; return whether there was anything to change."""
    columns = declared.columns()
    for _ in range(TRIES):
        if not (changes := _changes(row, columns)):
            return False
        # Whoever passes a slot in between has worked out another next run: then it is read anew.
        mine = rows.filter(pk=row.pk, enabled=row.enabled).planned_for(row.next_run_at)
        if mine.update(**changes | _planned(row, changes, rows.db), updated_at=Now()):
            return True
        if (fresh := rows.filter(pk=row.pk).first()) is None:
            return False
        row = fresh
    return False


def _changes(row: Schedule, columns: Mapping[str, Any]) -> dict[str, Any]:
    changes = {name: value for name, value in columns.items() if not _is_same(getattr(row, name), value)}
    if "enabled" in changes and not _switches_enabled(row, changes):
        del changes["enabled"]
    return changes


def _switches_enabled(row: Schedule, changes: Mapping[str, Any]) -> bool:
    """Whether the code says to enable or disable a row, and what an operator has said does not stand against it."""
    says_so_now = "declared_enabled" in changes
    if not changes["enabled"]:
        return says_so_now
    if row.disabled_by in (DisabledBy.END, DisabledBy.TIMING):
        # What had no slot left has none until its timing is another.
        return bool(changes.keys() & set(PLAN_COLUMNS) - {"enabled"})
    return says_so_now and row.disabled_by != DisabledBy.OPERATOR


def _planned(row: Schedule, changes: Mapping[str, Any], alias: str) -> dict[str, Any]:
    """Return what else changes with these columns: the next run, if one of those changes that it follows from."""
    if not changes.keys() & set(PLAN_COLUMNS):
        return {}
    for name, value in changes.items():
        setattr(row, name, value)
    if "enabled" in changes:
        row.disabled_by = DisabledBy.CODE  # unless it is enabled
    row.plan(database_now(alias))
    return {**row.planned, "enabled": row.enabled, "disabled_by": row.disabled_by}


def _disable(rows: ScheduleQuerySet, gone: list[Any]) -> int:
    """Disable those that were there until now; one that an operator enables later goes on."""
    count = 0
    for place in range(0, len(gone), BATCH):
        mine = rows.filter(pk__in=gone[place : place + BATCH])
        count += mine.disable(by=DisabledBy.CODE)
        mine.update(declared_enabled=None)
    return count


def _is_same(stored: Any, given: Any) -> bool:
    if isinstance(stored, datetime) and isinstance(given, datetime):
        return aware(stored) == aware(given)
    return bool(stored == given)
