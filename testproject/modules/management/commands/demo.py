"""``manage.py demo`` runs a workflow over the standard library, from enqueueing to the result."""

from __future__ import annotations

import getpass
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Count
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from horsies_django import WORKFLOW_TASK_TERMINAL_STATES, WorkflowHandle, WorkflowTaskStatus
from horsies_django.models import TaskAttempt, Workflow, WorkflowTask
from testproject.modules.analysis import STDLIB, Report
from testproject.modules.tasks import APPROVED, Inspection, deliver

_ENDED: Final = sorted(WORKFLOW_TASK_TERMINAL_STATES)

#: The codes of the nodes that fail on purpose, with what the progress says of them.
_PLANNED: Final = {
    "MAP_ITEM_FAILED": "[yellow]Completed[/], apart from the planned failures",
    "EVENT_TIMEOUT": "[green]Not approved in time[/], as planned",
}

#: The address of the site.
_ADDRESS: Final = "127.0.0.1:8000"


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
        parser.add_argument(
            "--keep",
            nargs="?",
            const=_ADDRESS,
            metavar="ADDRESS",
            help=f"Leave a worker and the site running until Ctrl+C, the site at this address (default: {_ADDRESS}).",
        )

    def handle(
        self, *args: Any, processes: int, patience: float, approve: bool, keep: str | None, **options: Any
    ) -> None:
        console = Console(file=self.stdout, width=None if sys.stdout.isatty() else 100)
        if approve:
            call_command("migrate", verbosity=0)
            _approve(console)
            return
        if processes < 1:
            raise CommandError(f"--processes is {processes}; allowed: 1 or more.")
        if not patience > 0:  # NaN is not
            raise CommandError(f"--patience is {patience:g}; allowed: more than 0 seconds.")
        if keep:
            _check_address(keep)
        call_command("migrate", verbosity=0)
        handle = Inspection.build_with(patience=patience).start()
        console.print(
            f"Started a workflow: a task for each module of {STDLIB}, then a report, a check and an approval."
        )
        console.print(
            "Some of it fails on purpose, to show failures in the admin: four files do not parse, and the report is "
            "delivered to a directory that does not exist."
        )
        console.print(f"To approve the report, run this until {patience:g} s after its check (--patience):")
        _show_command(console, "demo --approve")
        with ExitStack() as stack:
            stack.enter_context(_interrupted_by_signals())
            worker = stack.enter_context(_running(["horsies_worker", "-v0", "--processes", str(processes)]))
            _watch(console, handle, worker)
            result = handle.get(timeout=0)
            if not result.is_ok():
                raise CommandError(result.err.message)
            report = result.ok
            delivered = deliver.send(report).get(timeout=60)
            console.print(_totals_table(Report(**report["totals"]), report["failed"]))
            console.print(_largest_table(report["largest"]))
            console.print(_planned_table(report["failed"], None if delivered.is_ok() else delivered.err.message))
            console.print(_approval(report["approved_by"]))
            if delivered.is_ok():
                console.print(f"Delivered: {delivered.ok}", soft_wrap=True, highlight=False)
            console.print(
                "[bold green]Success.[/] A plain loop without the queue counts the same. "
                f"[bold]{_speed(handle):,.0f}[/] tasks/s."
            )
            console.print("Each task parses a module: this sets the rate, not the queue.")
            if keep:
                _serve(console, worker, stack.enter_context(_running(["runserver", "--noreload", keep])), keep)
        if not keep:
            _explain_admin(console)


def _approve(console: Console) -> None:
    key = Inspection._meta.options.definition_key
    running = Workflow.objects.live().filter(definition_key=key).order_by("sent_at").last()
    if running is None or not WorkflowHandle[Any](running.pk).send_event(APPROVED, getpass.getuser()):
        raise CommandError("No demo is running.")
    console.print("Approved.")


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM interrupt the block, so that it stops what it has started. Shells may ignore SIGINT."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of the project during the block, then stop it."""
    # A worker logs the failures of tasks, which the admin shows. A session of its own: Ctrl+C must reach it once only.
    process = subprocess.Popen(
        [sys.executable, sys.argv[0], *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


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
                progress.update(bars[index], completed=done, total=total, status=_status(state, error_code))
                if state in _ENDED:
                    progress.stop_task(bars[index])
            time.sleep(0.1)


def _status(state: str, error_code: str) -> str:
    if error_code in _PLANNED:
        return _PLANNED[error_code]
    label = f"{WorkflowTaskStatus(state).label} {error_code}"
    colours = {WorkflowTaskStatus.COMPLETED: "green", WorkflowTaskStatus.FAILED: "red"}
    colour = colours.get(WorkflowTaskStatus(state), "default")
    return f"[{colour}]{label}[/]"


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
    for heading in ("lines", "functions", "classes", "imports", "with docstring", "do not parse"):
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


def _approval(approved_by: str | None) -> str:
    if approved_by:
        return f"Approved by {approved_by}."
    return "Not approved in time, so the report was published without approval."


def _planned_table(failed: dict[str, str], undelivered: str | None) -> Table:
    """Return the planned failures. ``undelivered`` is why the report was not delivered; None if it was."""
    table = Table(title="Planned failures, to look at in the admin", title_justify="left")
    table.add_column("task")
    table.add_column("error")
    for path, error in failed.items():
        table.add_row(f"report of {Path(path).name}", escape(error))
    if undelivered is not None:
        table.add_row("deliver", f"{escape(undelivered)} Create the directory, then retry the task in the admin.")
    return table


def _show_command(console: Console, command: str) -> None:
    """Print a command without wrapping it, so that it can be copied."""
    console.print(f"  {sys.executable} manage.py {command}", soft_wrap=True, highlight=False)


def _explain_admin(console: Console) -> None:
    _create_user()
    console.print("To see it in the admin (user demo, password demo), run this again with --keep, or in two terminals:")
    _show_command(console, "runserver")
    _show_command(console, "horsies_worker")
    _show_overview(console, _ADDRESS)


def _serve(console: Console, worker: subprocess.Popen[bytes], site: subprocess.Popen[bytes], address: str) -> None:
    """Wait for Ctrl+C. Raises CommandError if the worker or the site ends."""
    _create_user()
    console.print("The site and a worker run until Ctrl+C. User demo, password demo:")
    _show_overview(console, address)
    with suppress(KeyboardInterrupt):
        while worker.poll() is None and site.poll() is None:
            time.sleep(0.2)
        if worker.poll() is not None:
            raise CommandError(f"The worker ended with exit status {worker.returncode}.")
        raise CommandError(f"The site at {address} ended with exit status {site.returncode}.")


def _check_address(address: str) -> None:
    """Raise CommandError unless a site can have this address."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        raise CommandError(f"--keep is {address}; allowed: an address such as {_ADDRESS}.")
    try:
        socket.create_server((host, int(port))).close()
    except (OSError, OverflowError) as error:
        raise CommandError(f"--keep is {address}, which can't be used: {error}.") from error


def _create_user() -> None:
    users = get_user_model()
    if not users.objects.filter(is_superuser=True).exists():
        users.objects.create_superuser("demo", "demo@example.com", "demo")


def _show_overview(console: Console, address: str) -> None:
    console.print(f"  http://{address}/admin/horsies_django/overview/", soft_wrap=True)
    console.print(f"  http://{address}/report/ shows a report while a task writes it.", soft_wrap=True)
