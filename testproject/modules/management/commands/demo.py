"""``manage.py demo`` runs a workflow over the standard library, from enqueueing to the result."""

from __future__ import annotations

import getpass
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Count
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from horsies_django import WORKFLOW_TASK_TERMINAL_STATES, WorkflowHandle, WorkflowTaskStatus
from horsies_django.models import TaskAttempt, Workflow, WorkflowTask
from testproject.modules.analysis import STDLIB, Report
from testproject.modules.tasks import APPROVED, Inspection, deliver

_ENDED: Final = sorted(WORKFLOW_TASK_TERMINAL_STATES)


class Command(BaseCommand):
    """Analyses the standard library in a workflow that compares its totals with a plain loop."""

    help = (
        "Analyse the standard library in a workflow: a task for each module, a report, a comparison with a plain loop, "
        "and an event by which a user can approve the report."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--processes", type=int, default=2, metavar="N", help="Runner processes (default: 2).")
        parser.add_argument(
            "--patience",
            type=float,
            default=3.0,
            metavar="SECONDS",
            help="How long to wait for --approve (default: 3).",
        )
        parser.add_argument("--approve", action="store_true", help="Approve the report of the running demo.")

    def handle(self, *args: Any, processes: int, patience: float, approve: bool, **options: Any) -> None:
        console = Console(file=self.stdout, width=None if sys.stdout.isatty() else 100)
        if approve:
            call_command("migrate", verbosity=0)
            _approve(console)
            return
        if processes < 1:
            raise CommandError(f"--processes is {processes}; allowed: 1 or more.")
        if not patience > 0:  # NaN is not
            raise CommandError(f"--patience is {patience:g}; allowed: more than 0 seconds.")
        call_command("migrate", verbosity=0)
        handle = Inspection.build_with(patience=patience).start()
        console.print(
            f"Started a workflow: a task for each module of {STDLIB}, then a report, a check and an approval."
        )
        console.print(
            "Four files do not parse, on purpose. "
            f"To approve the report, run this until {patience:g} s after its check (--patience):"
        )
        _show_command(console, "demo --approve")
        with _worker(processes) as worker:
            _watch(console, handle, worker)
            result = handle.get(timeout=0)
            if not result.is_ok():
                raise CommandError(result.err.message)
            report = result.ok
            delivered = deliver.send(report).get(timeout=60)

        console.print(_totals_table(Report(**report["totals"]), report["failed"]))
        console.print(_largest_table(report["largest"]))
        for path, error in report["failed"].items():
            console.print(f"[red]FAILED[/] {Path(path).name}: {error}", highlight=False)
        console.print(f"A plain loop without the queue counts the same. [bold]{_speed(handle):,.0f}[/] tasks/s.")
        console.print(f"Approved by {report['approved_by']}." if report["approved_by"] else "Not approved in time.")
        if delivered.is_ok():
            console.print(f"Delivered: {delivered.ok}", soft_wrap=True, highlight=False)
        else:
            console.print("[red]FAILED[/] deliver: fix the cause that the admin shows, then retry the task there.")
        _explain_admin(console)


def _approve(console: Console) -> None:
    key = Inspection._meta.options.definition_key
    running = Workflow.objects.live().filter(definition_key=key).order_by("sent_at").last()
    if running is None or not WorkflowHandle[Any](running.pk).send_event(APPROVED, getpass.getuser()):
        raise CommandError("No demo is running.")
    console.print("Approved.")


@contextmanager
def _worker(processes: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker during the block, then stop it."""
    command = [sys.executable, sys.argv[0], "horsies_worker", "-v0", "--processes", str(processes)]
    # All failures of the demo are intended; the admin shows their tracebacks.
    worker = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield worker
    finally:
        worker.terminate()
        worker.wait()


def _watch(console: Console, handle: WorkflowHandle[Any], worker: subprocess.Popen[bytes]) -> None:
    """Show a progress bar for each node until the workflow has ended. A map's bar counts its items."""
    nodes = WorkflowTask.objects.filter(workflow=handle.id)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[status]}"), console=console) as progress:
        bars = {
            index: progress.add_task(node_id, total=1, start=False, status="")
            for index, node_id in nodes.order_by("task_index").values_list("task_index", "node_id")
        }
        is_over = False
        while not is_over:
            if worker.poll() is not None:
                raise CommandError(f"The worker ended with exit status {worker.returncode}.")
            # Read the status before the nodes, so that the last update shows their final states.
            status = handle.status()
            is_over = status is None or status.is_terminal
            for index, (state, error_code, done, total) in _progress(handle).items():
                if state not in (WorkflowTaskStatus.PENDING, WorkflowTaskStatus.SKIPPED):
                    progress.start_task(bars[index])
                progress.update(
                    bars[index], completed=done, total=total, status=f"{WorkflowTaskStatus(state).label} {error_code}"
                )
                if state in _ENDED:
                    progress.stop_task(bars[index])
            time.sleep(0.1)


def _progress(handle: WorkflowHandle[Any]) -> dict[int, tuple[str, str, int, int]]:
    """Return the status, the error code, and the ended and total counts of each node.

    The counts are those of a map's items; any other node counts as one.
    """
    nodes = WorkflowTask.objects.filter(workflow=handle.id)
    items = nodes.filter(map_index__isnull=False).values("map_index").order_by()
    counts = items.values_list("map_index", Count("completed_at"), Count("pk"))
    in_maps = {index: (done, total) for index, done, total in counts}
    states = nodes.filter(map_index__isnull=True).values_list("task_index", "status", "error_code")
    return {
        index: (status, code or "", *in_maps.get(index, (int(status in _ENDED), 1))) for index, status, code in states
    }


def _speed(handle: WorkflowHandle[Any]) -> float:
    """Return the modules analysed per second, from the first start to the last end."""
    items = WorkflowTask.objects.filter(workflow=handle.id, map_index__isnull=False)
    times = TaskAttempt.objects.filter(task_id__in=items.values("task_id")).values_list("started_at", "finished_at")
    starts, ends = zip(*times, strict=True)
    return len(starts) / max((max(ends) - min(starts)).total_seconds(), 0.001)


def _totals_table(totals: Report, failed: dict[str, str]) -> Table:
    table = Table(title="The standard library")
    for heading in ("lines", "functions", "classes", "imports", "with docstring", "failed"):
        table.add_column(heading, justify="right")
    counts = (totals.lines, totals.functions, totals.classes, totals.imports)
    table.add_row(*(f"{count:,}" for count in counts), f"{totals.coverage:.1f} %", str(len(failed)))
    return table


def _largest_table(largest: list[tuple[str, dict[str, int]]]) -> Table:
    table = Table(title="The ten largest modules")
    table.add_column("module")
    for heading in ("lines", "functions", "classes", "imports", "with docstring"):
        table.add_column(heading, justify="right")
    for path, counts in largest:
        entry = Report(**counts)
        columns = (entry.lines, entry.functions, entry.classes, entry.imports)
        name = str(Path(path).relative_to(STDLIB))
        table.add_row(name, *(f"{count:,}" for count in columns), f"{entry.coverage:.1f} %")
    return table


def _show_command(console: Console, command: str) -> None:
    """Print a command without wrapping it, so that it can be copied."""
    console.print(f"  {sys.executable} manage.py {command}", soft_wrap=True, highlight=False)


def _explain_admin(console: Console) -> None:
    users = get_user_model()
    if not users.objects.filter(is_superuser=True).exists():
        users.objects.create_superuser("demo", "demo@example.com", "demo")
    console.print("To see it in the admin (user demo, password demo), run these in two terminals:")
    _show_command(console, "runserver")
    _show_command(console, "horsies_worker")
    console.print("  http://127.0.0.1:8000/admin/horsies_django/overview/", soft_wrap=True)
