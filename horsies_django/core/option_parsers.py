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


@dataclass(frozen=True, slots=True)
class OptionParser:
    """Describes the allowed values of an option, and parses one; ``parse`` raises ValueError for others.

    No error shows the value of one that ``is_secret``.
    """

    allowed: str
    parse: Callable[[object], Any]
    is_secret: bool = False


def integer(low: int, high: int, *, none: str = "") -> OptionParser:
    """Accept whole numbers; also None if ``none`` says what it means."""

    def parse(value: object) -> int | None:
        if none and value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError
        return value

    return OptionParser(f"a whole number from {low} to {high}" + (f", or None ({none})" if none else ""), parse)


def seconds(low: float, high: float, *, none: str = "") -> OptionParser:
    """Accept numbers of seconds; also None if ``none`` says what it means."""

    def parse(value: object) -> float | None:
        if none and value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError
        return float(value)

    return OptionParser(f"{low:g} to {high:g} (seconds)" + (f", or None ({none})" if none else ""), parse)


def one_of(*allowed: object) -> OptionParser:
    """Accept one of these values."""

    def parse(value: object) -> object:
        if not any(value is item or (isinstance(value, str) and value == item) for item in allowed):
            raise ValueError
        return value

    return OptionParser(" or ".join(repr(item) for item in allowed), parse)


def text(what: str, pattern: str) -> OptionParser:
    """Accept texts that match a regular expression."""

    def parse(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError
        return value

    return OptionParser(what, parse)


def _exception_mapper(value: object) -> dict[type[BaseException], str]:
    if not isinstance(value, Mapping):
        raise ValueError
    mapper = {import_string(key) if isinstance(key, str) else key: code for key, code in value.items()}
    if any(True for _ in problems_of_mapper(mapper)):
        raise ValueError
    return mapper


def _middleware(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(map(_is_dotted, value)):
        raise ValueError
    return tuple(value)


def _is_dotted(value: object) -> bool:
    return isinstance(value, str) and "." in value.strip(".")


def _modules(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(map(_is_module, value)):
        raise ValueError
    return tuple(value)


def _is_module(value: object) -> bool:
    return isinstance(value, str) and all(part.isidentifier() for part in value.split("."))


def _retry_policy(value: object) -> RetryPolicy | None:
    if not isinstance(value, RetryPolicy | None):
        raise ValueError
    return value


BOOLEAN: Final = one_of(True, False)
RETRY_POLICY: Final = OptionParser("a RetryPolicy, or None", _retry_policy)
MAPPER: Final = OptionParser(
    "a dict of exception class, or its dotted path, to an error code that is not one of the library's own",
    _exception_mapper,
)
MIDDLEWARE: Final = OptionParser("a list of dotted paths, the outermost first", _middleware)
MODULES: Final = OptionParser('a list of dotted names of modules, like "shop.jobs"', _modules)
RETENTION: Final = OptionParser(DURATION_ALLOWED, parse_duration)
RETENTION_BY_STATE: Final = OptionParser(RETENTION_ALLOWED, parse_retention)


def _wait(value: object) -> timedelta | None:
    if (wait := parse_duration(value)) is not None and wait < timedelta(seconds=1):
        raise ValueError
    return wait


WAIT: Final = OptionParser('seconds, at least 1, a timedelta, a text like "90s", "12h", "7d", or None (never)', _wait)


def _latency(value: object) -> timedelta | None:
    if (latency := parse_duration(value)) is not None and not latency:
        raise ValueError
    return latency


LATENCY: Final = OptionParser('seconds above 0, a timedelta, a text like "90s", "5m", or None (no warning)', _latency)


def milliseconds(low: int, high: int) -> OptionParser:
    """Accept whole numbers of milliseconds."""
    rule = integer(low, high)
    return OptionParser(f"{rule.allowed} (milliseconds)", rule.parse)


def _rate_limit(value: object) -> Rate | None:
    return None if value is None else Rate.parse(value)


PRIORITY: Final = integer(-100, 100)
WEIGHT: Final = integer(1, 1_000)
MAX_CONCURRENCY: Final = integer(0, 1_000_000, none="no limit")
RATE_LIMIT: Final = OptionParser(f"{RATE_ALLOWED}, or None (no limit)", _rate_limit)

#: The endpoints of horsies_django.urls.
ENDPOINTS: Final = ("metrics", "health/live", "health/ready")


def _endpoints(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(name in ENDPOINTS for name in value):
        raise ValueError
    return tuple(value)


PUBLIC_ENDPOINTS: Final = OptionParser(f"a list of {', '.join(map(repr, ENDPOINTS))}", _endpoints)
METRICS_TOKEN: Final = OptionParser(
    "a text of 1 to 1,024 printable ASCII characters without spaces, or '' (none)",
    text("", r"[\x21-\x7e]{0,1024}").parse,
    is_secret=True,
)
