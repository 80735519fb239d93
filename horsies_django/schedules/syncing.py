"""Write the schedules that code declares to the database.

The name identifies a row. Schedules made by hand, and those of other projects, are not changed. A process that does not
declare a schedule does not know whether another does, so it leaves the row: :meth:`ScheduleQuerySet.disable_undeclared`
disables schedules that no process has declared for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.db import transaction

from ..core.clock import aware
from ..core.options import Options
from ..db.clock import database_now
from ..models.schedule import NAMES_PER_STATEMENT, PLAN_COLUMNS, DisabledBy, Schedule, ScheduleQuerySet
from .declaration import DeclaredSchedule, declarations
from .validation import problems_of_declaration

logger = logging.getLogger("horsies_django.scheduler")

#: The columns that a declaration sets.
DECLARED_COLUMNS: Final = (
    *("backend", "task_name", "workflow_name", "args", "kwargs", "options", "declared_enabled"),
    *("catch_up", "max_catch_up_runs", "overlap", *PLAN_COLUMNS),
)


@dataclass(frozen=True, slots=True)
class SyncReport:
    """How many rows were created and changed."""

    created: int = 0
    changed: int = 0

    def __str__(self) -> str:
        return f"schedules synced: {self.created} new, {self.changed} changed"


def project_of(options: Options) -> str:
    """Return ``OPTIONS["project"]``, or else the top package of the settings; rows store it in ``source``."""
    return options.project or str(getattr(settings, "SETTINGS_MODULE", None) or "project").split(".")[0][:100]


def sync(options: Options, backend: str) -> SyncReport:
    """Write the schedules that code declares for this backend to their rows.

    A declaration with an error is logged, and its row stays unchanged. The next run is computed again only if the
    timing, the time zone, the window or the jitter changed, so that frequent deployments do not postpone it for ever.
    """
    project = project_of(options)
    rows = Schedule.objects.using(options.database)
    declared = {each.name: each.row(project) for each in declarations if each.backend == backend and _is_valid(each)}
    stored = {row.name: row for row in rows.filter(source=project)}
    created = _create(rows, [row for name, row in declared.items() if name not in stored], project)
    changed = sum(_change(rows, stored[name], row) for name, row in declared.items() if name in stored)
    rows.filter(source=project).declare(declared_names())
    report = SyncReport(created, changed)
    logger.log(logging.INFO if any((created, changed)) else logging.DEBUG, "%s", report)
    return report


def declared_names() -> set[str]:
    """Return the names of all schedules that this process declares, with errors or not."""
    return {str(declared.name) for declared in declarations}


def _is_valid(declared: DeclaredSchedule) -> bool:
    errors = problems_of_declaration(declared)
    for error in errors:
        logger.error("%s: %s", declared, error)
    return not errors


def _create(rows: ScheduleQuerySet, new: Sequence[Schedule], project: str) -> int:
    if not new:
        return 0
    others = set(rows.exclude(source=project).values_list("name", flat=True))
    for name in sorted(others & {row.name for row in new}):
        logger.warning("schedule not created name=%r: one made by hand or by another project has that name", name)
    new = [row for row in new if row.name not in others]
    now = database_now(rows.db)
    for row in new:
        row.disabled_by, row.declared_at = "" if row.enabled else DisabledBy.CODE, now
        row.plan(now)
    rows.bulk_create(new, ignore_conflicts=True, batch_size=NAMES_PER_STATEMENT)
    return len(new)


def _change(rows: ScheduleQuerySet, row: Schedule, declared: Schedule) -> bool:
    """Update a row to a declaration's; return whether it changed."""
    if not _changes(row, declared):
        return False
    with transaction.atomic(using=rows.db):
        locked = rows.locked(skip=False).filter(pk=row.pk).first()  # a scheduler may have sent a slot meanwhile
        if locked is None or not (changes := _changes(locked, declared)):
            return False
        for name, value in changes.items():
            setattr(locked, name, value)
        if "enabled" in changes:
            locked.disabled_by = DisabledBy.CODE  # save() clears it if the row is enabled
        locked.declared_at = database_now(rows.db)
        locked.save(using=rows.db, update_fields=[*changes, "declared_at"])
        return True


def _changes(row: Schedule, declared: Schedule) -> dict[str, Any]:
    changes = {name: getattr(declared, name) for name in DECLARED_COLUMNS}
    changes = {name: value for name, value in changes.items() if not _is_same(getattr(row, name), value)}
    if "enabled" in changes and not _switches_enabled(row, changes):
        del changes["enabled"]
    return changes


def _switches_enabled(row: Schedule, changes: Mapping[str, Any]) -> bool:
    """Whether the code enables or disables a row, and no choice of an operator overrides it."""
    has_new_declaration = "declared_enabled" in changes
    if not changes["enabled"]:
        return has_new_declaration
    if row.disabled_by in (DisabledBy.END, DisabledBy.TIMING):
        # A schedule without further slots, or with a bad timing, needs another plan first.
        return bool(changes.keys() & set(PLAN_COLUMNS) - {"enabled"})
    return has_new_declaration and row.disabled_by != DisabledBy.OPERATOR


def _is_same(value: Any, declared: Any) -> bool:
    if isinstance(value, datetime) and isinstance(declared, datetime):
        return aware(value) == aware(declared)
    return bool(value == declared)
