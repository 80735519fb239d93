"""``manage.py horsies_prune``."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from django.core.management.base import CommandParser

from horsies_django.core.operations import log_operation
from horsies_django.core.status import TASK_TERMINAL_STATES, TaskStatus
from horsies_django.management.base import QueueCommand, usage_errors
from horsies_django.management.environment import parse_duration_flag
from horsies_django.models import Task, Workflow
from horsies_django.reaper.prune import prune, prune_older_than

_STATES: Final = sorted(status.lower() for status in TASK_TERMINAL_STATES)


class Command(QueueCommand):
    """Deletes ended tasks and workflows now: those past their retention, or all that ended before a given age."""

    help = (
        "Delete ended tasks whose retention has passed, with their attempts and heartbeats, ended workflows, with "
        "their nodes, events and subworkflows, and old heartbeats. The reaper does the same in small batches. With "
        "--older-than, delete every task and every workflow that ended longer ago than that, regardless of its "
        "retention. Each flag that takes a value also reads an environment variable: HORSIES_PRUNE_OLDER_THAN for "
        "--older-than. The flag takes precedence."
    )

    backend_help = "Only rows of this key of TASKS (default: all)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--dry-run", action="store_true", help="Delete nothing; print how many rows would be deleted."
        )
        parser.add_argument("--older-than", metavar="DURATION", help='Seconds, or a text like "90s", "12h" or "7d".')
        parser.add_argument(
            "--status", metavar="A,B", help=f"Only tasks and workflows in these states: {', '.join(_STATES)}."
        )
        self.add_backend(parser)

    def handle(self, *args: Any, dry_run: bool, **options: Any) -> None:
        with usage_errors():
            alias = self.flag("backend", options["backend"])[1]
            settings = self.backend(alias).config
            age = _age(*self.flag("older-than", options["older_than"]))
            states = _states(*self.flag("status", options["status"]))
        with self.tables(settings.database, needs_grants=not dry_run):
            tasks = Task.objects.using(settings.database).filter(status__in=sorted(states))
            workflows = Workflow.objects.using(settings.database).filter(status__in=sorted(states))
            if alias is not None:
                tasks, workflows = tasks.filter(backend=alias), workflows.filter(backend=alias)
            if age is None:
                pruned = prune(settings, tasks, workflows, dry_run=dry_run)
            else:
                pruned = prune_older_than(tasks, workflows, age, states, dry_run=dry_run)
        if not dry_run:
            what = {"older_than": options["older_than"], "status": options["status"], "backend": alias}
            log_operation("prune", pruned.tasks, workflows=pruned.workflows, heartbeats=pruned.heartbeats, **what)
        verb = "would be deleted" if dry_run else "deleted"
        self.write_lines(*(f"{name} {verb}: {count}" for name, count in pruned._asdict().items()))


def _age(where: str, value: str | float | timedelta | None) -> timedelta | None:
    return None if value is None else parse_duration_flag(where, value)


def _states(where: str, value: str | Iterable[str] | None) -> frozenset[TaskStatus]:
    if value is None:
        return TASK_TERMINAL_STATES
    names = [name.strip().lower() for name in (value.split(",") if isinstance(value, str) else value)]
    # An empty list must not mean all states.
    if not names or any(name not in _STATES for name in names):
        raise ValueError(f"{where}: {value!r} is not allowed; allowed: {', '.join(_STATES)}.")
    return frozenset(TaskStatus(name.upper()) for name in names)
