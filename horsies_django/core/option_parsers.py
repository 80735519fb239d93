"""Parsers of options, each with a text that says which values are allowed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeAlias

from django.utils.module_loading import import_string

from .limits import RATE_ALLOWED, Rate
from .results import RESERVED_CODES
from .retry import RetryPolicy, is_code

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"(\d+)\s*([smhdw])")

#: A duration in an option: seconds, a timedelta, or a text like "7d".
DurationOption: TypeAlias = timedelta | float | str

#: How long an ended task is kept: a completed one, or by state; None is for ever. See the page on retention.
Retention: TypeAlias = DurationOption | Mapping[str, DurationOption | None] | None

#: Seconds in a hundred years.
LONGEST_DURATION: Final = 100 * 365 * 86_400

DURATION_ALLOWED: Final = 'seconds, a timedelta, a text like "90s", "12h", "7d", 0 (delete at once) or None (keep)'

#: The retention of a queue or a call that sets none.
INHERIT: Final = "inherit"

#: The final states, as the option ``retention`` names them. A plain value applies to the first.
RETENTION_STATES: Final = ("completed", "failed", "cancelled", "expired")

RETENTION_ALLOWED: Final = f"{DURATION_ALLOWED}, or a dict of them for {', '.join(RETENTION_STATES)}, or {INHERIT!r}"


def problems_of_mapper(mapper: Any) -> Iterator[str]:
    """Yield a sentence for each invalid entry of an exception mapper."""
    if not isinstance(mapper, Mapping):
        yield f"exception_mapper is {mapper!r}; allowed: a dict of exception class to error code."
        return
    for kind, code in mapper.items():
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            yield f"exception_mapper has the key {kind!r}; allowed: exception classes."
        if not is_code(code) or code in RESERVED_CODES:
            yield f"exception_mapper has the code {code!r}; allowed: a text that is not one of the library's own codes."


def parse_duration(value: object) -> timedelta | None:
    """Return a duration given as seconds, as a timedelta, or as text like ``"7d"``. Raises ValueError."""
    if value is None or (isinstance(value, timedelta) and value >= timedelta()):
        return value
    seconds: float | None = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        seconds = int(match[1]) * _UNITS[match[2]]
    if seconds is not None and 0 <= seconds <= LONGEST_DURATION:
        return timedelta(seconds=seconds)
    raise ValueError(f"{value!r} is not a duration; allowed: {DURATION_ALLOWED}.")


def parse_retention(value: object) -> dict[str, timedelta | None]:
    """Return how long tasks are kept, by state; None is for ever. Missing states inherit from the next level.

    A plain value applies to completed tasks. Raises ValueError naming the state, the value and what is allowed.
    """
    if isinstance(value, str) and value == INHERIT:
        return {}
    if not isinstance(value, Mapping):
        try:
            return {RETENTION_STATES[0]: parse_duration(value)}
        except ValueError:
            raise ValueError(f"{value!r} is not a duration; allowed: {RETENTION_ALLOWED}.") from None
    kept = {}
    for state, duration in value.items():
        if state not in RETENTION_STATES:
            raise ValueError(f"{state!r} (it has {duration!r}) is not a state; allowed: {', '.join(RETENTION_STATES)}.")
        try:
            kept[state] = parse_duration(duration)
        except ValueError:
            raise ValueError(f"{state!r} has {duration!r}, not a duration; allowed: {DURATION_ALLOWED}.") from None
    return kept


def _unchanged(value: Any) -> Any:
    return value


def _is_any(value: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class OptionParser:
    """The rule of an option: what is allowed, in words and as a test, and what a value is converted to.

    No error shows the value of one that ``is_secret``.
    """

    allowed: str
    convert: Callable[[Any], Any] = _unchanged
    is_valid: Callable[[Any], bool] = _is_any
    is_secret: bool = False

    def parse(self, value: object) -> Any:
        """Return the converted value. Raises ValueError for one that is not allowed."""
        if not self.is_valid(value):
            raise ValueError
        return self.convert(value)


def _number(
    kinds: Any, allowed: str, low: float, high: float, none: str, convert: Callable[[Any], Any] = _unchanged
) -> OptionParser:
    """Accept numbers from ``low`` to ``high``; also None if ``none`` says what it means."""

    def is_valid(value: Any) -> bool:
        if value is None:
            return none != ""
        return isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high

    return OptionParser(allowed + (f", or None ({none})" if none else ""), convert, is_valid)


def integer(low: int, high: int, *, none: str = "", unit: str = "") -> OptionParser:
    """Accept whole numbers; also None if ``none`` says what it means."""
    return _number(int, f"a whole number from {low} to {high}{unit}", low, high, none)


def milliseconds(low: int, high: int) -> OptionParser:
    """Accept whole numbers of milliseconds."""
    return integer(low, high, unit=" (milliseconds)")


def seconds(low: float, high: float, *, none: str = "") -> OptionParser:
    """Accept numbers of seconds; also None if ``none`` says what it means."""
    allowed = f"{low:g} to {high:g} (seconds)"
    return _number(int | float, allowed, low, high, none, lambda value: None if value is None else float(value))


def one_of(*allowed: object) -> OptionParser:
    """Accept one of these values."""

    def is_valid(value: Any) -> bool:
        return any(value is item or (isinstance(value, str) and value == item) for item in allowed)

    return OptionParser(" or ".join(map(repr, allowed)), is_valid=is_valid)


def text(allowed: str, pattern: str, *, is_secret: bool = False) -> OptionParser:
    """Accept texts that match a regular expression."""

    def is_valid(value: Any) -> bool:
        return isinstance(value, str) and re.fullmatch(pattern, value) is not None

    return OptionParser(allowed, is_valid=is_valid, is_secret=is_secret)


def list_of(allowed: str, is_item: Callable[[Any], bool]) -> OptionParser:
    """Accept sequences whose items pass a test."""

    def is_valid(value: Any) -> bool:
        return isinstance(value, Sequence) and not isinstance(value, str) and all(map(is_item, value))

    return OptionParser(allowed, tuple, is_valid)


def _exception_mapper(value: object) -> dict[type[BaseException], str]:
    if not isinstance(value, Mapping):
        raise ValueError
    mapper = {import_string(key) if isinstance(key, str) else key: code for key, code in value.items()}
    if any(True for _ in problems_of_mapper(mapper)):
        raise ValueError
    return mapper


def _duration(allowed: str, is_valid: Callable[[timedelta], bool]) -> OptionParser:
    """Accept None, and durations that pass a test."""

    def parse(value: object) -> timedelta | None:
        duration = parse_duration(value)
        if duration is not None and not is_valid(duration):
            raise ValueError
        return duration

    return OptionParser(allowed, parse)


BOOLEAN: Final = one_of(True, False)
RETRY_POLICY: Final = OptionParser(
    "a RetryPolicy, or None", is_valid=lambda value: isinstance(value, RetryPolicy | None)
)
MAPPER: Final = OptionParser(
    "a dict of exception class, or its dotted path, to an error code that is not one of the library's own",
    _exception_mapper,
)
MIDDLEWARE: Final = list_of(
    "a list of dotted paths, the outermost first", lambda item: isinstance(item, str) and "." in item.strip(".")
)
MODULES: Final = list_of(
    'a list of dotted names of modules, like "shop.jobs"',
    lambda item: isinstance(item, str) and all(part.isidentifier() for part in item.split(".")),
)
LOGGERS: Final = list_of(
    'a list of names of loggers, like "shop"', lambda item: isinstance(item, str) and item.strip(".") == item != ""
)
RETENTION: Final = OptionParser(DURATION_ALLOWED, parse_duration)
RETENTION_BY_STATE: Final = OptionParser(RETENTION_ALLOWED, parse_retention)
WAIT: Final = _duration(
    'seconds, at least 1, a timedelta, a text like "90s", "12h", "7d", or None (never)',
    lambda wait: wait >= timedelta(seconds=1),
)
LATENCY: Final = _duration('seconds above 0, a timedelta, a text like "90s", "5m", or None (no warning)', bool)
PRIORITY: Final = integer(-100, 100)
WEIGHT: Final = integer(1, 1_000)
MAX_CONCURRENCY: Final = integer(0, 1_000_000, none="no limit")
RATE_LIMIT: Final = OptionParser(
    f"{RATE_ALLOWED}, or None (no limit)", lambda value: None if value is None else Rate.parse(value)
)

_AGE: Final = seconds(0, 31_536_000, none="kept")
CONN_MAX_AGE: Final = OptionParser(
    f"{_AGE.allowed}, or {INHERIT!r} (as DATABASES says)",
    lambda value: value if value == INHERIT else _AGE.parse(value),
)

#: The endpoints of horsies_django.urls.
ENDPOINTS: Final = ("metrics", "health/live", "health/ready")

PUBLIC_ENDPOINTS: Final = list_of(f"a list of {', '.join(map(repr, ENDPOINTS))}", lambda item: item in ENDPOINTS)
METRICS_TOKEN: Final = text(
    "a text of 1 to 1,024 printable ASCII characters without spaces, or '' (none)",
    r"[\x21-\x7e]{0,1024}",
    is_secret=True,
)
