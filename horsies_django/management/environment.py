"""Environment variables that stand in for a command's flags."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final

import environ

from horsies_django.core.option_parsers import parse_duration

_TRUE: Final = environ.Env.BOOLEAN_TRUE_STRINGS
_FALSE: Final = ("", "0", "false", "no", "off", "n", "f")


def flag_or_variable(command: str, flag: str, given: Any, parse: Callable[[str], Any]) -> tuple[str, Any]:
    """Return where a value stands and the value: the flag's if it was given, else its variable's, else None.

    ``--poll-interval`` of ``horsies_worker`` is ``HORSIES_WORKER_POLL_INTERVAL``. What ``parse`` can't read comes back
    as the text it is, for whoever judges it to name.
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
    """Return what a switch's variable says. Raises ValueError."""
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError(text)


def parse_names(given: str | Iterable[str] | None) -> list[str]:
    """Return the names of a text, between its commas, or of the list that a caller of ``call_command`` gave."""
    parts = given.split(",") if isinstance(given, str) else given or ()
    return [name for part in parts if (name := part.strip())]


def parse_duration_flag(where: str, given: str | float | timedelta) -> timedelta:
    """Return a duration. Raises ValueError naming where a bad one stands."""
    is_number = isinstance(given, str) and given.replace(".", "", 1).isdigit()
    try:
        found = parse_duration(float(given) if is_number else given)  # type: ignore[arg-type]  # a text then
    except ValueError:
        found = None
    if found is None:
        raise ValueError(f"{where}: {given!r} is not allowed; allowed: seconds, or a text like 90s, 12h, 7d.")
    return found


def positive_seconds(where: str, given: str | float | timedelta | None) -> float | None:
    """Return a number of seconds, None if none is given. Raises ValueError naming where a bad one stands."""
    if given is None:
        return None
    try:
        seconds = given.total_seconds() if isinstance(given, timedelta) else float(given)
    except (ValueError, TypeError):
        seconds = -1
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{where}: {given!r} is not allowed; allowed: a positive number of seconds.")
    return seconds
