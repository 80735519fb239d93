"""Validate cron expressions field by field, and iterate over their times with croniter."""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from croniter import croniter
from croniter.croniter import CroniterBadDateError, CroniterError

#: Years to search for a match. A leap day falls on a given weekday at least every 40 years.
YEARS: Final = 50


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    allowed: str


_LISTS: Final = "lists, ranges and steps (1,15  10-20  */5)"
_SECOND: Final = _Field("second", f"0 to 59, *, {_LISTS}")
_FIELDS: Final = (
    _Field("minute", f"0 to 59, *, {_LISTS}"),
    _Field("hour", f"0 to 23, *, {_LISTS}"),
    _Field("day of the month", f"1 to 31, *, L for the last, 15W for the nearest weekday, {_LISTS}"),
    _Field("month", f"1 to 12 or JAN to DEC, *, {_LISTS}"),
    _Field("day of the week", f"0 to 7 or SUN to SAT (0 and 7 are Sunday), *, 5#3, L5, {_LISTS}"),
)

_ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

#: croniter replaces these letters with random values; names of days and months that contain them are allowed.
_DRAWN: Final = re.compile("[RH]")
_NAMES: Final = re.compile("FRI|MAR|APR|THU")


def expanded(expression: str) -> str:
    """Return an expression with one space between its fields, and names like ``@daily`` written out."""
    text = " ".join(expression.split())
    return _ALIASES.get(text.lower(), text)


def iterator(fields: str, start: datetime.datetime) -> Any:
    """Return croniter's iterator over naive local times after ``start``."""
    return croniter(fields, start, second_at_beginning=True, max_years_between_matches=YEARS)


def cron_problems(expression: object) -> Iterator[str]:
    """Yield a sentence for each mistake, quoting the expression and naming the field."""
    if not isinstance(expression, str):
        yield f"Cron: the expression is {expression!r}; allowed: a text like '0 9 * * MON-FRI'."
        return
    yield from _problems(expanded(expression))


@functools.lru_cache(maxsize=1_024)
def _problems(text: str) -> tuple[str, ...]:
    parts = text.split()
    if len(parts) not in (5, 6):
        names = ", ".join(field.name for field in _FIELDS)
        return (f"{text!r} has {len(parts)} fields; allowed: 5 ({names}), or 6 with the second in front.",)
    fields = (_SECOND, *_FIELDS) if len(parts) == 6 else _FIELDS
    wrong = [
        f"{text!r}: the {field.name} is {part!r}; allowed: {field.allowed}."
        for place, (field, part) in enumerate(zip(fields, parts, strict=True))
        if not _can_read(place, part, len(parts))
    ]
    return tuple(wrong) or _of_the_whole(text)


def _can_read(place: int, part: str, count: int) -> bool:
    if _DRAWN.search(_NAMES.sub("", part.upper())):
        return False  # croniter would choose a random value each time
    parts = ["*"] * count
    parts[place] = part
    try:
        croniter.expand(" ".join(parts), second_at_beginning=True)
    except CroniterError:
        return False
    return True


def _of_the_whole(text: str) -> tuple[str, ...]:
    try:
        iterator(text, datetime.datetime(2026, 1, 1)).get_next(datetime.datetime)  # noqa: DTZ001  # a naive local time, as croniter takes it
    except CroniterBadDateError:
        return (f"{text!r} never matches: no month has that day; allowed: an existing day.",)
    except CroniterError as error:
        return (f"{text!r} can't be read: {error}; allowed: 5 fields of cron, or 6 with the second in front.",)
    return ()
