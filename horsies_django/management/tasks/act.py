"""``horsies_task run``, ``cancel``, ``retry``, ``move`` and ``delete``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from django.core.management.base import CommandError, OutputWrapper
from django.db import DatabaseError

from horsies_django.core.printable import one_line
from horsies_django.ops.inspector import Inspector, Matching, Report, Selection
from horsies_django.ops.inspector.actions import CANCEL, CANCEL_RUNNING, DELETE, RETRY, RUN, TaskAction, move_action
from horsies_django.ops.inspector.selection import narrow_to_action
from horsies_django.ops.keyset.estimate import Estimate, estimate_rows, upper_bound

from .flags import parse_count, parse_filters, parse_ids

#: How the output describes the processed tasks, by action.
PARTICIPLES: Final = {
    "run": "due now",
    "cancel": "cancelled",
    "retry": "re-queued",
    "move": "moved",
    "delete": "deleted",
}

#: Maximum skipped tasks printed with their ids; of more, only the counts are printed.
MAX_NAMED: Final = 20

#: Seconds between two lines of progress.
PROGRESS_INTERVAL: Final = 2.0

_FILTERS: Final = ("status", "queue", "task", "older_than", "error")


def act(inspector: Inspector, action: str, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
    """Apply an action to the selected tasks and print a report.

    Raises ValueError for wrong usage, and CommandError if a task was skipped or the database failed.
    """
    task_action = _action(action, options)
    limit = parse_count("--limit", options["limit"])
    selection = _selection(inspector, task_action, options)
    is_dry = options["dry_run"]
    if isinstance(selection, Matching) and not (is_dry or options["yes"] or _confirm(selection, task_action, err)):
        raise CommandError("Nothing was done.", returncode=1)
    report = Report(action=task_action.name, is_dry=is_dry)
    failure = ""
    try:
        for latest in _with_progress(selection.apply_in_batches(task_action, dry_run=is_dry, limit=limit), err):
            report = latest
    except DatabaseError as error:
        failure = f"The database: {error}".rstrip()
    except KeyboardInterrupt:
        failure = "Stopped."
    _print(report, options, out)
    if failure or report.left:
        raise CommandError(failure or f"{report.left} skipped.", returncode=1)


def _action(action: str, options: dict[str, Any]) -> TaskAction:
    if action == "move":
        priority = options["priority"]
        try:
            return move_action(options["to_queue"], None if priority is None else int(priority))
        except ValueError as error:
            raise ValueError(f"move: {error}") from None
    cancel = CANCEL_RUNNING if options.get("running") else CANCEL
    return {"run": RUN, "cancel": cancel, "retry": RETRY, "delete": DELETE}[action]


def _selection(inspector: Inspector, task_action: TaskAction, options: dict[str, Any]) -> Selection:
    """Return the selected tasks. Raises ValueError if neither or both of ids and ``--all`` are given."""
    is_narrowed = any(options[name] is not None for name in _FILTERS)
    if options["all"] == bool(options["ids"]):
        raise ValueError("Give either ids, or --all with or without filters.")
    if not options["all"]:
        if is_narrowed:
            raise ValueError("Filters need --all; they do not apply to tasks given by id.")
        return inspector.with_ids(parse_ids(options["ids"]))
    filters = parse_filters(options)
    narrow_to_action(filters, task_action)  # raises ValueError before the user is asked
    return Matching(inspector.rows, filters)


def _confirm(matching: Matching, task_action: TaskAction, err: OutputWrapper) -> bool:
    """Ask for confirmation. Raises ValueError if standard input is not a terminal."""
    if not sys.stdin.isatty():
        raise ValueError("--all asks first, and there is no terminal to ask at: give --yes, or --dry-run.")
    filters = narrow_to_action(matching.filters, task_action)
    estimate = estimate_rows(filters.scan(matching.rows), Estimate(before=upper_bound(matching.rows).upper))
    states = ", ".join(sorted(filters.states))
    err.write(f"{task_action.name}: {estimate} tasks ({states}). Continue? [y/N] ", ending="")
    err.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _with_progress(steps: Iterator[Report], err: OutputWrapper) -> Iterator[Report]:
    """Print progress every ``PROGRESS_INTERVAL`` seconds if stderr is a terminal."""
    printed_at = time.monotonic()
    for report in steps:
        yield report
        if err.isatty() and time.monotonic() - printed_at > PROGRESS_INTERVAL:
            err.write(f"… {report.done:,} {PARTICIPLES[report.action]}")
            printed_at = time.monotonic()


def _print(report: Report, options: dict[str, Any], out: OutputWrapper) -> None:
    if options["json"]:
        out.write(json.dumps(report.as_json(), ensure_ascii=False))
        return
    out.write(f"{'would be ' if report.is_dry else ''}{PARTICIPLES[report.action]}: {report.done}")
    if not report.left:
        return
    out.write(f"skipped: {report.left}")
    if report.left > min(MAX_NAMED, len(report.skipped)):
        for why, count in report.reasons.items():
            out.write(f"  {count} of them: {why}")
    for left in report.skipped[:MAX_NAMED]:
        out.write(one_line(f"  {left}"))
