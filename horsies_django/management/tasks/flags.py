"""Define and parse the flags of ``horsies_task``."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.core.management.base import CommandParser
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware

from horsies_django.core.ids import parse_uuid
from horsies_django.management.environment import parse_duration_flag
from horsies_django.ops.inspector.filters import TaskFilters
from horsies_django.ops.inspector.inspector import PAGE
from horsies_django.ops.inspector.task_states import ALLOWED

#: Reads the ids from standard input.
STDIN: Final = "-"


def add_common(parser: CommandParser) -> None:
    """Add the flags of every action."""
    parser.add_argument("--backend", metavar="ALIAS", help="Only tasks of this key of TASKS (default: all).")
    parser.add_argument("--json", action="store_true", help="Print JSON; a list is one object per line.")


def add_filters(parser: CommandParser) -> None:
    """Add the flags that filter tasks."""
    parser.add_argument("--status", metavar="A,B", help=f"Only tasks in these states: {ALLOWED}.")
    parser.add_argument("--queue", metavar="NAME", help="Only tasks in this queue.")
    parser.add_argument(
        "--task", metavar="NAME", help="Only calls of the task with this name; its old names count too."
    )
    parser.add_argument(
        "--older-than", metavar="DURATION", help='Only tasks sent longer ago than this: "90s", "12h", "7d".'
    )
    parser.add_argument(
        "--error", metavar="FINGERPRINT", help="Only tasks whose last attempt failed with this error; see `show`."
    )


def add_listing(parser: CommandParser) -> None:
    """Add the flags of ``list``."""
    add_filters(parser)
    parser.add_argument("--limit", metavar="N", default=str(PAGE), help="Print at most N tasks (default: %(default)s).")
    parser.add_argument("--all", action="store_true", help="Print all tasks, page by page.")
    parser.add_argument("--after", metavar="ID", help="Start after this task, the last of the previous page.")
    parser.add_argument("--ids", action="store_true", help="Print ids only, for another command's standard input.")


def add_action(parser: CommandParser) -> None:
    """Add the flags of actions on many tasks: which tasks, and how to confirm."""
    parser.add_argument("ids", metavar="ID", nargs="*", help="Ids of tasks; - reads ids from standard input.")
    parser.add_argument("--all", action="store_true", help="All tasks that match the filters; asks for confirmation.")
    add_filters(parser)
    parser.add_argument("--limit", metavar="N", help="Change at most N tasks, the newest first.")
    parser.add_argument("--yes", action="store_true", help="Do not ask for confirmation.")
    parser.add_argument("--dry-run", action="store_true", help="Change nothing; print what would be done.")


def parse_filters(options: dict[str, Any]) -> TaskFilters:
    """Parse the filter flags. Raises ValueError naming the flag."""
    given = options["status"]
    named = given.split(",") if isinstance(given, str) else given
    status = None if named is None else [name.strip().lower() for name in named]
    age = options["older_than"]
    try:
        return TaskFilters.of(
            status=status,
            queue=options["queue"],
            task=options["task"],
            older_than=None if age is None else parse_duration_flag("--older-than", age),
            error=options["error"],
        )
    except ValueError as error:
        raise ValueError(_as_flag(str(error))) from None


def parse_ids(given: list[str]) -> list[UUID]:
    """Parse ids, reading standard input in place of ``-``. Raises ValueError for an invalid id."""
    texts: list[str] = []
    for text in given:
        texts += sys.stdin.read().split() if text == STDIN else [str(text)]
    return [parse_uuid(text) for text in texts]


def parse_count(flag: str, given: str | int | None) -> int | None:
    """Parse a whole number of at least 1. Raises ValueError naming the flag."""
    if given is None:
        return None
    text = str(given)
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{flag}: {given!r} is not allowed; allowed: a whole number from 1 on.")
    return int(text)


def parse_retention(text: Any) -> Any:
    """Parse ``retention``: one duration, or by state as in ``completed=1d,failed=forever``. Validates nothing."""
    if not isinstance(text, str):
        return text
    if "=" not in text:
        return _parse_duration(text)
    pairs = (part.partition("=") for part in text.split(","))
    return {state.strip().lower(): _parse_duration(kept.strip()) for state, _, kept in pairs}


def _parse_duration(text: str) -> float | str | None:
    if text == "forever":
        return None
    return float(text) if text.replace(".", "", 1).isdecimal() and text.isascii() else text


def parse_time(flag: str, text: str | datetime) -> datetime:
    """Parse a date and time, by default in the project's time zone. Raises ValueError naming the flag."""
    try:
        moment = text if isinstance(text, datetime) else parse_datetime(text)
    except (ValueError, TypeError):
        moment = None
    if moment is None:
        raise ValueError(f"{flag}: {text!r} is not allowed; allowed: a time like 2026-12-24T18:00+01:00.")
    return make_aware(moment) if is_naive(moment) else moment


def _as_flag(message: str) -> str:
    name, _, rest = message.partition(" ")
    return f"--{name.replace('_', '-')} {rest}"
