"""Read and parse the flags of commands and the environment variables that replace them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final

import environ

from horsies_django.core.option_parsers import parse_duration

_TRUE: Final = environ.Env.BOOLEAN_TRUE_STRINGS
_FALSE: Final = ("", "0", "false", "no", "off", "n", "f")


def flag_or_variable(command: str, flag: str, flag_value: Any, parse: Callable[[str], Any]) -> tuple[str, Any]:
    """Return the source of a value and the value: from the flag if given, else from its variable, else None.

    The variable of ``--poll-interval`` of ``horsies_worker`` is ``HORSIES_WORKER_POLL_INTERVAL``. A text that ``parse``
    rejects is returned unparsed, so that the caller's validation can name it.
    """
    if flag_value is not None:
        return f"--{flag}", flag_value
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


def parse_names(value: str | Iterable[str] | None) -> list[str]:
    """Split comma-separated names; also accepts a list, as ``call_command`` may pass one."""
    parts = value.split(",") if isinstance(value, str) else value or ()
    return [name for part in parts if (name := part.strip())]


def parse_duration_flag(where: str, flag_value: str | float | timedelta) -> timedelta:
    """Parse a duration. Raises ValueError naming the flag or variable."""
    value = (
        float(flag_value) if isinstance(flag_value, str) and flag_value.replace(".", "", 1).isdigit() else flag_value
    )
    try:
        duration = parse_duration(value)
    except ValueError:
        duration = None
    if duration is None:
        raise ValueError(f"{where}: {flag_value!r} is not allowed; allowed: seconds, or a text like 90s, 12h, 7d.")
    return duration


def positive_seconds(where: str, flag_value: str | float | timedelta | None) -> float | None:
    """Parse a positive number of seconds; None stays None. Raises ValueError naming the flag or variable."""
    if flag_value is None:
        return None
    try:
        seconds = flag_value.total_seconds() if isinstance(flag_value, timedelta) else float(flag_value)
    except (ValueError, TypeError):
        seconds = -1
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{where}: {flag_value!r} is not allowed; allowed: a positive number of seconds.")
    return seconds
