"""Read and parse the flags of commands and the environment variables that replace them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final

import environ

from horsies_django.core.option_parsers import parse_duration

_TRUE: Final = environ.Env.BOOLEAN_TRUE_STRINGS
_FALSE: Final = ("", "0", "false", "no", "off", "n", "f")


def flag_or_variable(command: str, flag: str, given: Any, parse: Callable[[str], Any]) -> tuple[str, Any]:
    """Return the source of a value and the value: from the flag if given, else from its variable, else None.

    The variable of ``--poll-interval`` of ``horsies_worker`` is ``HORSIES_WORKER_POLL_INTERVAL``. A text that ``parse``
    rejects is returned unparsed, so that the caller's validation can name it.
    """
    if given is not None:
        return f"--{flag}", given
    variable = f"{command}_{flag}".upper().replace("-", "_")
    env = environ.Env()
    if variable not in env.ENVIRON:
        return variable, None
    text = env.str(variable)
    try:
        return variable, parse(text)
    except ValueError:
        return variable, text


def boolean(text: str) -> bool:
    """Parse the variable of a boolean flag. Raises ValueError."""
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError(text)


def parse_names(given: str | Iterable[str] | None) -> list[str]:
    """Split comma-separated names; also accepts a list, as ``call_command`` may pass one."""
    parts = given.split(",") if isinstance(given, str) else given or ()
    return [name for part in parts if (name := part.strip())]


def parse_duration_flag(where: str, given: str | float | timedelta) -> timedelta:
    """Parse a duration. Raises ValueError naming the flag or variable."""
    value = float(given) if isinstance(given, str) and given.replace(".", "", 1).isdigit() else given
    try:
        found = parse_duration(value)
    except ValueError:
        found = None
    if found is None:
        raise ValueError(f"{where}: {given!r} is not allowed; allowed: seconds, or a text like 90s, 12h, 7d.")
    return found


def positive_seconds(where: str, given: str | float | timedelta | None) -> float | None:
    """Parse a positive number of seconds; None stays None. Raises ValueError naming the flag or variable."""
    if given is None:
        return None
    try:
        seconds = given.total_seconds() if isinstance(given, timedelta) else float(given)
    except (ValueError, TypeError):
        seconds = -1
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{where}: {given!r} is not allowed; allowed: a positive number of seconds.")
    return seconds
