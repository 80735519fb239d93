"""Metrics of schedules: those that are due next, and how many have an invalid timing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from django.db.models import F

from ...core.schedule_enums import DisabledBy
from ...db.expressions import SecondOf, SecondsUntil
from ...db.now import Now
from ...db.statements import count_query, decode_rows, rows_query, run_queries, scalar
from ...models import Schedule

#: How many schedules are listed, and the upper bound for counting invalid ones.
MAX_SHOWN: Final = 5
MAX_COUNTED: Final = 1_000

#: Seconds after which a due run counts as late.
LATE_AFTER: Final = 30


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """A schedule, what it runs, and the seconds until it is due."""

    id: int
    name: str
    runs: str
    timing: str
    timezone: str
    due_in: float


@dataclass(frozen=True, slots=True)
class NextSchedules:
    """The schedules that are due next, and how many are disabled because of an invalid timing."""

    next: tuple[DueSchedule, ...]
    broken: int
    second: float  # seconds since 1970 by the database's clock, when the others were read

    @property
    def is_late(self) -> bool:
        """Whether a run is late."""
        return any(one.due_in < -LATE_AFTER for one in self.next)


def next_schedules(database: str, backends: Collection[str]) -> NextSchedules:
    """Read the schedules of these backends in one statement, each part of it by an index."""
    rows = Schedule.objects.using(database)
    columns = {
        "id": F("pk"), "name": F("name"), "task": F("task_name"), "workflow": F("workflow_name"),
        "timing": F("timing"), "timezone": F("timezone"), "due_in": SecondsUntil("next_run_at"),
    }  # fmt: skip
    parts = {
        alias: rows_query(
            rows.filter(enabled=True, backend=alias, next_run_at__isnull=False).order_by("next_run_at")[:MAX_SHOWN],
            columns,
            database,
        )
        for alias in backends
    }
    broken = rows.filter(enabled=False, disabled_by=DisabledBy.TIMING)
    others = {"broken": count_query(broken, MAX_COUNTED), "second": scalar(SecondOf(Now()), rows)}
    answers = run_queries(database, {**{f"of {alias}": part for alias, part in parts.items()}, **others})
    found = [_due_schedule(*row) for alias in backends for row in decode_rows(answers[f"of {alias}"])]
    found.sort(key=lambda one: one.due_in)
    return NextSchedules(tuple(found[:MAX_SHOWN]), decode_rows(answers["broken"])[0], float(answers["second"]))


def _due_schedule(
    key: int, name: str, task: str | None, workflow: str | None, timing: str, timezone: str, due_in: float
) -> DueSchedule:
    return DueSchedule(key, name, task or workflow or "", timing, timezone, due_in)
