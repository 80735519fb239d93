"""Patterns: when a schedule is due, as declared in code and as the text in a row.

The constructors accept invalid values, so that ``manage.py check`` can report all errors of a project at once:
``problems()`` yields them, and reading ``timing`` raises ValueError.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from .cron import cron_problems, cron_warnings, expanded

#: The prefixes of a timing.
CRON: Final = "cron:"
EVERY: Final = "every:"

#: The longest interval, in seconds.
LONGEST: Final = 100 * 365 * 86_400

_DAYS: Final = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
_DAY_NAMES: Final = ("MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY")


class Pattern:
    """When a schedule is due: the base of patterns."""

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each error: what was given, and what is allowed."""
        raise NotImplementedError

    @property
    def timing(self) -> str:
        """The text for a row. Raises ValueError with the errors."""
        if problems := list(self.problems()):
            raise ValueError(" ".join(problems))
        return self._text()

    def _text(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True)
class Every(Pattern):
    """A fixed time after the previous slot, independent of time zones; whole seconds in all, at least one."""

    seconds: float = 0
    minutes: float = 0
    hours: float = 0
    days: float = 0

    @property
    def total(self) -> int:
        """The interval in seconds."""
        return round(self._sum())

    def problems(self) -> Iterator[str]:
        """See :class:`Pattern`."""
        parts = {name: getattr(self, name) for name in ("seconds", "minutes", "hours", "days")}
        wrong = [f"{name} is {value!r}" for name, value in parts.items() if not _is_amount(value)]
        if wrong:
            yield f"Every: {', '.join(wrong)}; allowed: numbers from 0 on."
        elif not (1 <= (total := self._sum()) <= LONGEST and abs(total - round(total)) < 1e-6):
            yield f"Every: {total:g} seconds in all; allowed: whole seconds, from 1 to a hundred years."

    def _sum(self) -> float:
        return self.seconds + 60 * self.minutes + 3_600 * self.hours + 86_400 * self.days

    def _text(self) -> str:
        return f"{EVERY}{self.total}"


@dataclass(frozen=True)
class Cron(Pattern):
    """A cron expression of 5 fields, or 6 with seconds first. Names, ranges, steps, ``L`` and ``#`` work as usual."""

    expression: str

    def problems(self) -> Iterator[str]:
        """See :class:`Pattern`."""
        return cron_problems(self.expression)

    def warnings(self) -> Iterator[str]:
        """Yield a sentence for each part of a valid expression that cron reads differently, or refuses."""
        return cron_warnings(self.expression)

    @property
    def fields(self) -> str:
        """The expression with single spaces, and with ``@daily`` and the like expanded."""
        return expanded(self.expression)

    def _text(self) -> str:
        return CRON + self.fields


@dataclass(frozen=True)
class Hourly(Pattern):
    """Once an hour."""

    minute: int = 0
    second: int = 0

    def problems(self) -> Iterator[str]:
        """See :class:`Pattern`."""
        for name in ("minute", "second"):
            if not _is_whole(value := getattr(self, name), 0, 59):
                yield f"Hourly: {name} is {value!r}; allowed: a whole number from 0 to 59."

    def _text(self) -> str:
        return _cron_text(self.second, f"{self.minute} * * * *")


class _AtTime(Pattern):
    """A pattern with a time of day: a :class:`datetime.time`, or a text like ``09:00`` or ``09:00:30``."""

    time: datetime.time | str

    def problems(self) -> Iterator[str]:
        """See :class:`Pattern`."""
        if _time_of(self.time) is None:
            yield (
                f"{type(self).__name__}: time is {self.time!r}; allowed: a time of day in whole seconds and without "
                'a time zone, like time(9, 0) or "09:00".'
            )

    def _text(self) -> str:
        time = _time_of(self.time)
        assert time is not None
        return _cron_text(time.second, f"{time.minute} {time.hour} {self._days()}")

    def _days(self) -> str:
        """Return the last three fields of the cron expression."""
        return "* * *"


@dataclass(frozen=True)
class Daily(_AtTime):
    """Each day at a time."""

    time: datetime.time | str


@dataclass(frozen=True)
class Weekly(_AtTime):
    """On some days of the week, at a time: ``Weekly("MON", "09:00")``, ``Weekly(["mon", "friday"], time(9))``."""

    days: str | Collection[str]
    time: datetime.time | str

    def problems(self) -> Iterator[str]:
        """See :class:`Pattern`."""
        wrong = [day for day in self._names() if _weekday(day) is None]
        if wrong or not self._names():
            shown = ", ".join(map(repr, wrong)) if wrong else repr(self.days)
            yield f"Weekly: days has {shown}; allowed: {', '.join(_DAYS)}, one or several."
        yield from super().problems()

    def _names(self) -> list[Any]:
        if isinstance(self.days, str) or not isinstance(self.days, Collection):
            return [self.days]
        return list(self.days)

    def _days(self) -> str:
        days = set(map(_weekday, self._names()))
        return f"* * {','.join(day for day in _DAYS if day in days)}"


@dataclass(frozen=True)
class Monthly(_AtTime):
    """On a day of the month, at a time. Months without that day are skipped; ``"L"`` is the last day of each."""

    day: int | str
    time: datetime.time | str

    def problems(self) -> Iterator[str]:
        """See :class:`Pattern`."""
        if not (_is_whole(self.day, 1, 31) or self.day == "L"):
            yield f'Monthly: day is {self.day!r}; allowed: a whole number from 1 to 31, or "L" for the last.'
        yield from super().problems()

    def _days(self) -> str:
        return f"{self.day} * *"


def parse(timing: str) -> Every | Cron:
    """Return the pattern of a row. Raises ValueError, which describes the error."""
    if timing.startswith(CRON):
        pattern: Every | Cron = Cron(timing.removeprefix(CRON))
    elif timing.startswith(EVERY):
        text = timing.removeprefix(EVERY)
        if not (text.isascii() and text.isdigit()):
            raise ValueError(f"{timing!r} has no number of seconds; allowed: every:300, in whole seconds.")
        pattern = Every(seconds=int(text))
    else:
        raise ValueError(f"{timing!r} is not a timing; allowed: cron:0 9 * * MON-FRI or every:300.")
    pattern.timing  # noqa: B018  # raises for what is wrong with it
    return pattern


def with_kind(text: str) -> str:
    """Return a typed timing with its prefix. A bare cron expression is accepted.

    >>> with_kind("0 9 * * MON-FRI"), with_kind("@daily"), with_kind("every:300")
    ('cron:0 9 * * MON-FRI', 'cron:@daily', 'every:300')
    """
    text = text.strip()
    is_bare = text.startswith("@") or len(text.split()) in (5, 6)
    return CRON + text if is_bare and not text.startswith((CRON, EVERY)) else text


def _cron_text(second: int, fields: str) -> str:
    return f"{CRON}{second} {fields}" if second else CRON + fields


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _weekday(day: object) -> str | None:
    name = day.upper() if isinstance(day, str) else ""
    return name[:3] if name in _DAYS or name in _DAY_NAMES else None


def _time_of(value: object) -> datetime.time | None:
    if isinstance(value, str):
        try:
            value = datetime.time.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, datetime.time) and value.tzinfo is None and not value.microsecond:
        return value
    return None
