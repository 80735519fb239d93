"""``horsies_task run``, ``cancel``, ``retry``, ``move``, ``event`` and ``delete``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

from django.core.management.base import CommandError, OutputWrapper
from django.db import DatabaseError

from horsies_django.core.ids import parse_uuid
from horsies_django.core.printable import one_line
from horsies_django.management.environment import parse_duration_flag
from horsies_django.ops.inspector import Inspector, Report, Selection, actions
from horsies_django.ops.inspector.actions import TaskAction
from horsies_django.ops.inspector.selection import TaskFilters

#: How the output describes the processed tasks, by action.
PARTICIPLES: Final = {
    "run": "due now",
    "cancel": "cancelled",
    "retry": "re-queued",
    "move": "moved",
    "send_event": "sent",
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
    if selection.ids is None and not (is_dry or options["yes"] or _confirm(selection, task_action, err)):
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
            return actions.move_action(options["to_queue"], None if priority is None else int(priority))
        except ValueError as error:
            raise ValueError(f"move: {error}") from None
    if action == "event":
        try:
            return actions.event_action(options["name"], json.loads(options["payload"]))
        except json.JSONDecodeError as error:
            raise ValueError(f"--payload is not JSON: {error}") from None
    cancel = actions.CANCEL_RUNNING if options.get("running") else actions.CANCEL
    return {"run": actions.RUN, "cancel": cancel, "retry": actions.RETRY, "delete": actions.DELETE}[action]


def _selection(inspector: Inspector, task_action: TaskAction, options: dict[str, Any]) -> Selection:
    """Return the selected tasks. Raises ValueError if neither or both of ids and ``--all`` are given."""
    is_narrowed = any(options[name] is not None for name in _FILTERS)
    if options["all"] == bool(options["ids"]):
        raise ValueError("Give either ids, or --all with or without filters.")
    if not options["all"]:
        if is_narrowed:
            raise ValueError("Filters need --all; they do not apply to tasks given by id.")
        return inspector.with_ids(parse_ids(options["ids"]))
    selection = Selection(inspector.rows, parse_filters(options))
    selection.states(task_action)  # raises ValueError before the user is asked
    return selection


def _confirm(selection: Selection, task_action: TaskAction, err: OutputWrapper) -> bool:
    """Ask for confirmation. Raises ValueError if standard input is not a terminal."""
    if not sys.stdin.isatty():
        raise ValueError("--all asks first, and there is no terminal to ask at: give --yes, or --dry-run.")
    tally, states = selection.matching(task_action).count(), ", ".join(sorted(selection.states(task_action)))
    err.write(f"{task_action.name}: {tally} tasks ({states}). Continue? [y/N] ", ending="")
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


def parse_filters(options: dict[str, Any]) -> TaskFilters:
    """Parse the filter flags. Raises ValueError naming the flag."""
    status, age = options["status"], options["older_than"]
    names = status.split(",") if isinstance(status, str) else status
    try:
        return TaskFilters.of(
            status=None if status is None else [name.strip().lower() for name in names],
            queue=options["queue"],
            task=options["task"],
            older_than=None if age is None else parse_duration_flag("--older-than", age),
            error=options["error"],
        )
    except ValueError as error:
        name, _, rest = str(error).partition(" ")
        raise ValueError(f"--{name.replace('_', '-')} {rest}") from None


def parse_ids(arguments: list[str]) -> list[UUID]:
    """Parse ids, reading standard input in place of ``-``. Raises ValueError for an invalid id."""
    texts: list[str] = []
    for text in arguments:
        texts += sys.stdin.read().split() if text == "-" else [str(text)]
    return [parse_uuid(text) for text in texts]


def parse_count(flag: str, value: str | int | None) -> int | None:
    """Parse a whole number of at least 1. Raises ValueError naming the flag."""
    if value is None:
        return None
    text = str(value)
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{flag}: {value!r} is not allowed; allowed: a whole number from 1 on.")
    return int(text)
