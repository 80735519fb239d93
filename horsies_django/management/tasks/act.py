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

#: What is said of tasks that a verb was done to.
PARTICIPLES: Final = {
    "run": "due now",
    "cancel": "cancelled",
    "retry": "due again",
    "move": "moved",
    "delete": "deleted",
}

#: Tasks left alone that are named; beyond that there are only numbers.
MAX_NAMED: Final = 20

#: Seconds between two words of how far it has come.
PROGRESS_INTERVAL: Final = 2.0

_FILTERS: Final = ("status", "queue", "task", "older_than")


def act(inspector: Inspector, action: str, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
    """Do it to the tasks that are meant, and print what became of them.

    Raises ValueError for wrong usage, and CommandError if there was something that could not be done.
    """
    verb = _action(action, options)
    limit = parse_count("--limit", options["limit"])
    chosen = _selection(inspector, verb, options)
    is_dry = options["dry_run"]
    if isinstance(chosen, Matching) and not (is_dry or options["yes"] or _confirm(chosen, verb, err)):
        raise CommandError("Nothing was done.", returncode=1)
    report = Report(verb=verb.name, is_dry=is_dry)
    trouble = ""
    try:
        for report in _with_progress(chosen.apply_in_batches(verb, dry_run=is_dry, limit=limit), err):  # noqa: B007  # the last one counts
            pass
    except DatabaseError as error:
        trouble = f"The database: {error}".rstrip()
    except KeyboardInterrupt:
        trouble = "Stopped."
    _print(report, options, out)
    if trouble or report.left:
        raise CommandError(trouble or f"{report.left} left alone.", returncode=1)


def _action(action: str, options: dict[str, Any]) -> TaskAction:
    if action == "move":
        priority = options["priority"]
        try:
            return move_action(options["to_queue"], None if priority is None else int(priority))
        except ValueError as error:
            raise ValueError(f"move: {error}") from None
    cancel = CANCEL_RUNNING if options.get("running") else CANCEL
    return {"run": RUN, "cancel": cancel, "retry": RETRY, "delete": DELETE}[action]


def _selection(inspector: Inspector, verb: TaskAction, options: dict[str, Any]) -> Selection:
    """Return the tasks that are meant. Raises ValueError if it is not said which, or said twice."""
    is_narrowed = any(options[name] is not None for name in _FILTERS)
    if options["all"] == bool(options["ids"]):
        raise ValueError("Give either ids, or --all with or without filters.")
    if not options["all"]:
        if is_narrowed:
            raise ValueError("Filters go with --all: a task that is named by its id is meant whatever it is.")
        return inspector.with_ids(parse_ids(options["ids"]))
    which = parse_filters(options)
    narrow_to_action(which, verb)  # raises what it has to before anybody is asked
    return Matching(inspector.rows, which)


def _confirm(matching: Matching, verb: TaskAction, err: OutputWrapper) -> bool:
    """Ask. Raises ValueError if there is nobody to answer."""
    if not sys.stdin.isatty():
        raise ValueError("--all asks first, and there is no terminal to ask at: give --yes, or --dry-run.")
    which = narrow_to_action(matching.filters, verb)
    estimate = estimate_rows(which.scan(matching.rows), Estimate(before=upper_bound(matching.rows).upper))
    states = ", ".join(sorted(which.states))
    err.write(f"{verb.name}: {estimate} tasks ({states}). Go on? [y/N] ", ending="")
    err.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _with_progress(steps: Iterator[Report], err: OutputWrapper) -> Iterator[Report]:
    """Say every now and then how far it has come, if somebody looks on."""
    told_at = time.monotonic()
    for report in steps:
        yield report
        if err.isatty() and time.monotonic() - told_at > PROGRESS_INTERVAL:
            err.write(f"… {report.done:,} {PARTICIPLES[report.verb]}")
            told_at = time.monotonic()


def _print(report: Report, options: dict[str, Any], out: OutputWrapper) -> None:
    if options["json"]:
        out.write(json.dumps(report.as_json(), ensure_ascii=False))
        return
    out.write(f"{'would be ' if report.is_dry else ''}{PARTICIPLES[report.verb]}: {report.done}")
    if not report.left:
        return
    out.write(f"left alone: {report.left}")
    if report.left > min(MAX_NAMED, len(report.left_alone)):
        for why, count in report.reasons.items():
            out.write(f"  {count} of them: {why}")
    for left in report.left_alone[:MAX_NAMED]:
        out.write(one_line(f"  {left}"))
