"""The flags of ``horsies_task``, and what they say."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.core.management.base import CommandParser
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware

from horsies_django.core.ids import parse_uuid
from horsies_django.management.environment import parse_duration_flag
from horsies_django.ops.inspector.filters import TaskFilters
from horsies_django.ops.inspector.inspector import PAGE
from horsies_django.ops.inspector.task_states import ALLOWED

#: Stands for the ids on standard input.
STDIN: Final = "-"


def add_common(parser: CommandParser) -> None:
    """Add what every action takes."""
    parser.add_argument("--backend", metavar="ALIAS", help="Only what is of this key of TASKS (default: all).")
    parser.add_argument("--json", action="store_true", help="Print JSON: one object, of a list one for each line.")


def add_filters(parser: CommandParser) -> None:
    """Add what tasks are narrowed by."""
    parser.add_argument("--status", metavar="A,B", help=f"Only what is in these states: {ALLOWED}.")
    parser.add_argument("--queue", metavar="NAME", help="Only what is in this queue.")
    parser.add_argument("--task", metavar="NAME", help="Only calls of the task of this name, old names of it included.")
    parser.add_argument("--older-than", metavar="DURATION", help='Only what was sent so long ago: "90s", "12h", "7d".')


def add_listing(parser: CommandParser) -> None:
    """Add what a list takes."""
    add_filters(parser)
    parser.add_argument("--limit", metavar="N", default=str(PAGE), help="At most so many (default: %(default)s).")
    parser.add_argument("--all", action="store_true", help="All there are, page by page.")
    parser.add_argument("--after", metavar="ID", help="Begin after this one: the last of the page before.")
    parser.add_argument("--ids", action="store_true", help="Print ids only, for another command's standard input.")


def add_action(parser: CommandParser) -> None:
    """Add what says to which tasks something is done, and how carefully."""
    parser.add_argument("ids", metavar="ID", nargs="*", help="Tasks, by their ids; - reads ids from standard input.")
    parser.add_argument("--all", action="store_true", help="All that the filters leave; it asks first.")
    add_filters(parser)
    parser.add_argument("--limit", metavar="N", help="To so many at most, the newest first.")
    parser.add_argument("--yes", action="store_true", help="Do not ask.")
    parser.add_argument("--dry-run", action="store_true", help="Change nothing; say what would be done.")


def parse_filters(options: dict[str, Any]) -> TaskFilters:
    """Return what the filters say. Raises ValueError naming the flag."""
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
        )
    except ValueError as error:
        raise ValueError(_as_flag(str(error))) from None


def parse_ids(given: list[str]) -> list[UUID]:
    """Return the ids that were given, those on standard input in the place of -. Raises ValueError for what is none."""
    texts: list[str] = []
    for text in given:
        texts += sys.stdin.read().split() if text == STDIN else [str(text)]
    return [parse_uuid(text) for text in texts]


def parse_count(flag: str, given: str | int | None) -> int | None:
    """Return a number from 1 on. Raises ValueError naming the flag."""
    if given is None:
        return None
    text = str(given)
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{flag}: {given!r} is not allowed; allowed: a whole number from 1 on.")
    return int(text)


def parse_retention(text: Any) -> Any:
    """Return the option ``retention``: one duration, or by state as in ``completed=1d,failed=forever``, unchecked."""
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
    """Return a moment; without a zone of its own it is in the project's. Raises ValueError naming the flag."""
    try:
        moment = text if isinstance(text, datetime) else parse_datetime(text)
    except (ValueError, TypeError):
        moment = None
    if moment is None:
        raise ValueError(f"{flag}: {text!r} is not allowed; allowed: a time like 2026-12-24T18:00+01:00.")
    return make_aware(moment) if settings.USE_TZ and is_naive(moment) else moment


def _as_flag(said: str) -> str:
    name, _, rest = said.partition(" ")
    return f"--{name.replace('_', '-')} {rest}"
