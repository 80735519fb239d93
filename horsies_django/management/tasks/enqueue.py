"""``horsies_task enqueue``."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser, OutputWrapper
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware

from horsies_django.core.retry import ANY_CODE, RetryPolicy
from horsies_django.management.environment import parse_duration_flag
from horsies_django.ops.inspector import Inspector


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments and options of a call."""
    parser.add_argument("path", metavar="NAME", help="The name of a registered task.")
    parser.add_argument("--args", metavar="JSON", dest="positional", default="[]", help="Arguments: a JSON array.")
    parser.add_argument(
        "--kwargs", metavar="JSON", dest="named", default="{}", help="Arguments by name: a JSON object."
    )
    parser.add_argument("--queue", metavar="NAME", help="The queue, instead of the task's own.")
    parser.add_argument("--priority", metavar="N", help="The priority from -100 to 100, instead of the task's own.")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--in", metavar="DURATION", dest="delay", help='Run after this delay: "90s", "12h".')
    when.add_argument("--at", metavar="TIME", help="Run at this time or later: 2026-12-24T18:00+01:00.")
    parser.add_argument("--good-until", metavar="TIME", help="Expire the task if it has not started by this time.")
    parser.add_argument("--timeout", metavar="DURATION", help="Time limit of the task.")
    parser.add_argument(
        "--retention",
        metavar="DURATION",
        help='How long to keep the completed task: "7d", forever; or by state: completed=1d,failed=30d.',
    )
    parser.add_argument("--retries", metavar="N", help="Retry any failure up to N times, with growing delays.")
    parser.add_argument("--unique-key", metavar="KEY", help="Send nothing if a live task has this key.")
    parser.add_argument(
        "--id", metavar="UUID", help="The id of the task; sending the same call with it again does nothing."
    )


def enqueue(inspector: Inspector, options: dict[str, Any], out: OutputWrapper) -> None:
    """Send a call and print its id. Raises ValueError or TypeError for wrong arguments or options."""
    args, kwargs = _json("--args", options["positional"], list), _json("--kwargs", options["named"], dict)
    handle = inspector.enqueue(options["path"], args, kwargs, **_options(options))
    if options["json"]:
        out.write(json.dumps({"id": str(handle.id), "replayed": handle.replayed}))
    else:
        out.write(f"{handle.id}{' (it existed already)' if handle.replayed else ''}")


def _options(flags: dict[str, Any]) -> dict[str, Any]:
    at, delay, retries = flags["at"], flags["delay"], _number("--retries", flags["retries"])
    policy = None
    if retries is not None:
        policy = RetryPolicy.exponential(max_retries=retries, auto_retry_for=[ANY_CODE])
    read = {
        "queue_name": flags["queue"],
        "priority": _number("--priority", flags["priority"]),
        "run_after": at and _time("--at", at) if delay is None else parse_duration_flag("--in", delay),
        "good_until": flags["good_until"] and _time("--good-until", flags["good_until"]),
        "timeout": flags["timeout"] and parse_duration_flag("--timeout", flags["timeout"]).total_seconds(),
        "retry_policy": policy,
        "unique_key": flags["unique_key"],
        "task_id": flags["id"],
    }
    kept = {} if flags["retention"] is None else {"retention": parse_retention(flags["retention"])}
    return kept | {name: value for name, value in read.items() if value is not None}


def _json(flag: str, text: str | list[Any] | dict[str, Any], kind: type[Any]) -> Any:
    if not isinstance(text, str):
        return text
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{flag}: {text!r} is not JSON: {error}") from None
    if not isinstance(document, kind):
        allowed = "an array" if kind is list else "an object"
        raise ValueError(f"{flag}: {text!r} is not allowed; allowed: {allowed} of JSON.")
    return document


def _number(flag: str, text: str | int | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{flag}: {text!r} is not allowed; allowed: a whole number.") from None


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


def _time(flag: str, text: str | datetime) -> datetime:
    """Parse a date and time, by default in the project's time zone. Raises ValueError naming the flag."""
    try:
        moment = text if isinstance(text, datetime) else parse_datetime(text)
    except (ValueError, TypeError):
        moment = None
    if moment is None:
        raise ValueError(f"{flag}: {text!r} is not allowed; allowed: a time like 2026-12-24T18:00+01:00.")
    return make_aware(moment) if is_naive(moment) else moment
