"""``manage.py demo``: the main job, end to end, on input that every machine has."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from horsies_django import TASK_TERMINAL_STATES, TaskStatus
from horsies_django.models import Task, TaskAttempt
from testproject.modules.analysis import STDLIB, Report, analyse, sources
from testproject.modules.tasks import report


class Command(BaseCommand):
    """Analyses the standard library through the queue and checks the totals against a plain loop."""

    help = "Analyse every module of the standard library, one task each, and check the totals against a plain loop."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--processes", type=int, default=2, metavar="N", help="Runner processes (default: 2).")

    def handle(self, *args: Any, processes: int, **options: Any) -> None:
        console = Console(file=self.stdout, width=None if sys.stdout.isatty() else 100)
        call_command("migrate", verbosity=0)
        paths = sources()
        with transaction.atomic():
            handles = report.send_many({"path": str(path)} for path in paths)
        console.print(f"Enqueued [bold]{len(handles)}[/] tasks in one transaction, one for each module of {STDLIB}.")

        names = {handle.id: path for handle, path in zip(handles, paths, strict=True)}
        took = _run_worker(console, names, processes)
        totals, largest, failed = _collect(names)
        console.print(_totals_table(totals, failed))
        console.print(_largest_table(largest))
        for path, error in failed.items():
            console.print(f"[red]FAILED[/] {path.name}: {error}", highlight=False)

        expected, expected_failed = _plain_loop(paths)
        if totals != expected or len(failed) != expected_failed:
            raise CommandError(
                f"The queue counted {totals} and {len(failed)} failures; a plain loop {expected} and {expected_failed}."
            )
        console.print(f"A plain loop without the queue counts the same. [bold]{len(names) / took:,.0f}[/] tasks/s.")
        _explain_admin(console)


def _run_worker(console: Console, names: dict[UUID, Path], processes: int) -> float:
    """Run a worker until all is done, show how far it is, and return the seconds from first start to last end."""
    command = [sys.executable, sys.argv[0], "horsies_worker", "--drain", "-v0", "--processes", str(processes)]
    mine = Task.objects.filter(pk__gte=min(names), pk__lte=max(names))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # What fails here fails on purpose; the admin has the tracebacks.
    worker = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("horsies_worker", total=len(names))
        while worker.poll() is None:
            progress.update(bar, completed=mine.filter(status__in=TASK_TERMINAL_STATES).count())
            time.sleep(0.1)
        progress.update(bar, completed=mine.filter(status__in=TASK_TERMINAL_STATES).count())
    if worker.returncode:
        raise CommandError(f"The worker ended with exit status {worker.returncode}.")
    moments = TaskAttempt.objects.filter(task_id__in=list(names)).values_list("started_at", "finished_at")
    starts, ends = zip(*moments, strict=True)
    return max((max(ends) - min(starts)).total_seconds(), 0.001)


def _collect(names: dict[UUID, Path]) -> tuple[Report, list[tuple[Path, Report]], dict[Path, str]]:
    """Read the results back: the totals, each module by its size, and what failed with its error."""
    rows = Task.objects.filter(pk__in=names).values_list("pk", "status", "error_code", "result")
    reports: list[tuple[Path, Report]] = []
    failed: dict[Path, str] = {}
    for key, status, code, result in rows:
        if status == TaskStatus.COMPLETED:
            reports.append((names[key], Report(**result["ok"])))
        else:
            failed[names[key]] = f"{code}: {(result or {}).get('err', {}).get('message', status)}"
    largest = sorted(reports, key=lambda entry: entry[1].lines, reverse=True)[:10]
    return sum((entry for _, entry in reports), Report()), largest, failed


def _plain_loop(paths: list[Path]) -> tuple[Report, int]:
    totals, failed = Report(), 0
    for path in paths:
        try:
            totals += analyse(path)
        except (SyntaxError, ValueError):
            failed += 1
    return totals, failed


def _totals_table(totals: Report, failed: dict[Path, str]) -> Table:
    table = Table(title="The standard library")
    for heading in ("lines", "functions", "classes", "imports", "with docstring", "failed"):
        table.add_column(heading, justify="right")
    counts = (totals.lines, totals.functions, totals.classes, totals.imports)
    table.add_row(*(f"{count:,}" for count in counts), f"{totals.coverage:.1f} %", str(len(failed)))
    return table


def _largest_table(largest: list[tuple[Path, Report]]) -> Table:
    table = Table(title="The ten largest modules")
    table.add_column("module")
    for heading in ("lines", "functions", "classes", "imports", "with docstring"):
        table.add_column(heading, justify="right")
    for path, entry in largest:
        counts = (entry.lines, entry.functions, entry.classes, entry.imports)
        name = str(path.relative_to(STDLIB))
        table.add_row(name, *(f"{count:,}" for count in counts), f"{entry.coverage:.1f} %")
    return table


def _explain_admin(console: Console) -> None:
    users = get_user_model()
    if not users.objects.filter(is_superuser=True).exists():
        users.objects.create_superuser("demo", "demo@example.com", "demo")
    console.print("Look at the tasks, their results and tracebacks in the admin (user demo, password demo):")
    console.print(f"  {sys.executable} manage.py runserver    http://127.0.0.1:8000/admin/horsies_django/task/")
