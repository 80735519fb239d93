"""``manage.py horsies_schedule``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser

from horsies_django.core.clock import aware
from horsies_django.core.numbers import format_relative
from horsies_django.core.printable import one_line
from horsies_django.db.clock import database_now
from horsies_django.db.now import Now
from horsies_django.management.base import QueueCommand, table, usage_errors
from horsies_django.models import Schedule
from horsies_django.models.schedule import DisabledBy, ScheduleQuerySet
from horsies_django.schedules.declaration import declarations
from horsies_django.schedules.dispatch import try_run

_HEADS: Final = ("name", "state", "next run", "last run", "timing", "time zone", "sends", "runs", "")

#: The help of each action.
_ACTION_HELP: Final = {
    "run": "Send these schedules once now, even if disabled. Their next runs do not change.",
    "enable": "Enable these schedules, starting with their next slot.",
    "disable": "Disable these schedules. Runs that were sent continue.",
}

#: The participle of each action, for messages.
_DONE: Final = {"run": "run", "enable": "enabled", "disable": "disabled"}

#: Columns that ``list`` reads and prints as JSON; arguments and options may be sensitive and are left out.
_COLUMNS: Final = (
    "name",
    "backend",
    "task_name",
    "workflow_name",
    "timing",
    "timezone",
    "enabled",
    "disabled_by",
    "source",
    "next_run_at",
    "last_run_at",
    "last_slot_at",
    "last_task_id",
    "last_workflow_id",
    "run_count",
    "last_error",
)


class Command(QueueCommand):
    """Lists, runs, enables and disables schedules."""

    help = (
        "List schedules, run them now, enable or disable them. Schedules that code declares are listed once a worker "
        "or horsies_scheduler --once has written them to the database. --backend also reads HORSIES_SCHEDULE_BACKEND; "
        "the flag takes precedence. Exit status: 0 done, or nothing to change; 1 a schedule could not be run or "
        "enabled, or the database or its tables are unavailable; 2 wrong usage or an unknown name, in which case "
        "nothing is changed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_backend(parser)
        actions = parser.add_subparsers(dest="action", required=True, metavar="list|run|enable|disable")
        text = "Print every schedule of the backend by name, with its state, its runs and its next run."
        self.add_action(actions, "list", text, "Print one JSON object; times are ISO 8601, in UTC.")
        for action, text in _ACTION_HELP.items():
            action_parser = self.add_action(actions, action, text)
            action_parser.add_argument("names", nargs="+", metavar="NAME", help="Names of schedules.")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        with usage_errors():
            backend = self.backend(options["backend"])
        with self.tables(backend.config.database):
            rows = Schedule.objects.using(backend.config.database)
            if action == "list":
                self._list(rows.filter(backend=backend.alias), is_json=options["json"])
            else:
                self._act(action, rows, list(dict.fromkeys(options["names"])), backend.alias)

    def _list(self, rows: ScheduleQuerySet, *, is_json: bool) -> None:
        if is_json:
            values = list(rows.order_by("name").values(*_COLUMNS))
            self.stdout.write(json.dumps({"schedules": values}, indent=2, default=_as_json))
            return
        schedules = [_cells(row) for row in rows.order_by("name").only(*_COLUMNS).annotate(read_at=Now())]
        for line in table(_HEADS, schedules, 7) if schedules else ("There are no schedules.",):
            self.stdout.write(line)

    def _act(self, action: str, rows: ScheduleQuerySet, names: Sequence[str], alias: str) -> None:
        if problems := list(_unknown(rows, names, alias)):
            raise CommandError(" ".join(problems), returncode=2)
        act = {"run": _run, "enable": _enable, "disable": _disable}[action]
        failed = 0
        for name in names:
            is_done, message = act(rows.filter(name=name))
            failed += not is_done
            (self.stdout if is_done else self.stderr).write(one_line(f"The schedule {name} {message}"))
        if failed:
            raise CommandError(f"{failed} of {len(names)} could not be {_DONE[action]}.", returncode=1)


def _unknown(rows: ScheduleQuerySet, names: Sequence[str], alias: str) -> Iterator[str]:
    """Yield an error message for each name without a schedule of this backend."""
    backends = dict(rows.filter(name__in=names).values_list("name", "backend"))
    for name in names:
        if name not in backends:
            yield f"There is no schedule {name!r}.{_hint(rows, name, alias)}"
        elif backends[name] != alias:
            yield f"The schedule {name!r} is one of the backend {backends[name]!r}: give --backend {backends[name]}."


def _hint(rows: ScheduleQuerySet, name: str, alias: str) -> str:
    if any(declared.name == name and declared.backend == alias for declared in declarations):
        return " The code declares it, but no scheduler has written its row yet: horsies_scheduler --once does."
    near = get_close_matches(name, list(rows.filter(backend=alias).values_list("name", flat=True)), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _run(row: ScheduleQuerySet) -> tuple[bool, str]:
    handle = try_run(row)
    if handle is None:
        return False, f"could not be run: {row.values_list('last_error', flat=True).first() or 'it is gone'}"
    if handle.replayed:
        return True, f"has sent nothing new: id={handle.id} has its unique key."
    return True, f"has sent id={handle.id}."


def _enable(row: ScheduleQuerySet) -> tuple[bool, str]:
    if row.enable():
        return True, "is enabled."
    schedule = row.first()
    if schedule is None:
        return False, "could not be enabled: it is gone."
    if schedule.enabled:
        return True, "is enabled already."
    schedule.enabled = True
    schedule.plan(database_now(row.db))
    is_unreadable = schedule.disabled_by == DisabledBy.TIMING
    why = schedule.last_error if is_unreadable else "it has no slot left before its end."
    return False, f"could not be enabled: {why}"


def _disable(row: ScheduleQuerySet) -> tuple[bool, str]:
    return True, "is disabled." if row.disable() else "is disabled already."


def _as_json(value: Any) -> str:
    moment = aware(value) if isinstance(value, datetime) else None
    return str(value) if moment is None else moment.isoformat()


def _cells(row: Any) -> tuple[str, ...]:
    by = f" ({row.disabled_by.lower()})" if row.disabled_by else ""
    return (
        row.name,
        "enabled" if row.enabled else f"disabled{by}",
        *(_when(moment, row.read_at) for moment in (row.next_run_at if row.enabled else None, row.last_run_at)),
        row.timing,
        row.timezone,
        row.task_name or row.workflow_name or "",
        str(row.run_count),
        row.last_error,
    )


def _when(moment: datetime | None, now: datetime) -> str:
    return "-" if moment is None else format_relative((aware(now) - aware(moment)).total_seconds())
