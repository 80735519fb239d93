"""Validate cron expressions field by field, and iterate over their times with croniter."""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

#: Years to search for a match. A leap day falls on a given weekday at least every 40 years.
YEARS: Final = 50


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    allowed: str
    size: int


_LISTS: Final = "lists, ranges and steps (1,15  10-20  */5)"
_SECOND: Final = _Field("second", f"0 to 59, *, {_LISTS}", 60)
_FIELDS: Final = (
    _Field("minute", f"0 to 59, *, {_LISTS}", 60),
    _Field("hour", f"0 to 23, *, {_LISTS}", 24),
    _Field("day of the month", f"1 to 31, *, L for the last, 15W for the nearest weekday, {_LISTS}", 31),
    _Field("month", f"1 to 12 or JAN to DEC, *, {_LISTS}", 12),
    _Field("day of the week", f"0 to 7 or SUN to SAT (0 and 7 are Sunday), *, 5#3, L5, {_LISTS}", 7),
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

_TOO_LONG: Final = "the step is longer than the range, so only the first value matches"

#: No value of a field, and no useful step, has four digits.
_LONG: Final = re.compile(r"\d{4}")

#: A part of a list: a value, a range or a star, and a step.
_PART: Final = re.compile(r"(?P<first>\*|\w+)(-(?P<last>\w+))?(/(?P<step>\d+))?", re.ASCII)


def expanded(expression: str) -> str:
    """Return an expression with one space between its fields, and names like ``@daily`` written out."""
    text = " ".join(expression.split())
    return _ALIASES.get(text.lower(), text)


def iterator(fields: str, start: datetime.datetime) -> Any:
    """Return croniter's iterator over naive local times after ``start``.

    Like the other functions it imports croniter only when called: a process that only sends tasks never needs it.
    """
    from croniter import croniter

    return croniter(fields, start, second_at_beginning=True, max_years_between_matches=YEARS)


def cron_problems(expression: object) -> Iterator[str]:
    """Yield a sentence for each mistake, quoting the expression and naming the field."""
    if not isinstance(expression, str):
        yield f"Cron: the expression is {expression!r}; allowed: a text like '0 9 * * MON-FRI'."
        return
    yield from _problems(expanded(expression))


def cron_warnings(expression: str) -> Iterator[str]:
    """Yield a sentence for each part of a valid expression that cron reads differently, or refuses."""
    text = expanded(expression)
    parts = text.split()
    fields = (_SECOND, *_FIELDS) if len(parts) == 6 else _FIELDS
    day, weekday = parts[-3], parts[-1]
    if not {"*", "?"} & {day, weekday} and (day.startswith("*/") or weekday.startswith("*/")):
        yield (
            f"{text!r} sets the day of the month, {day!r}, and the day of the week, {weekday!r}: here either is "
            "sufficient; cron requires both, because one begins with '*'."
        )
    for place, (field, part) in enumerate(zip(fields, parts, strict=True)):
        for item in part.split(","):
            match = _PART.fullmatch(item)
            if match is not None and (cron := _reading_of_cron(match, field, place, len(parts))):
                values = ", ".join(map(str, _values(place, item, len(parts)) or ()))
                yield f"{text!r}: the {field.name} has {item!r}: here it means {values}; {cron}."


def _reading_of_cron(match: re.Match[str], field: _Field, place: int, count: int) -> str:
    """Return how cron reads a part of a list, if it differs or surprises; otherwise an empty text."""

    def numbers(text: str) -> list[Any]:
        return _values(place, text, count) or []

    first, last, step = match["first"], match["last"], int(match["step"] or 1)
    if first == "*":
        return _TOO_LONG if step > field.size else ""
    if last is None:
        return "cron ignores the step" if len(numbers(match[0])) > 1 else ""
    low = int(first) if first.isdigit() else numbers(first)[0]
    high = 7 if field.size == 7 and numbers(last) == [0] else numbers(last)[0]
    if low > high:
        return "cron refuses it"
    if step > high - low + 1:
        return _TOO_LONG
    expected = {value % 7 if field.size == 7 else value for value in range(low, high + 1, step)}
    values = set(numbers(match[0]))
    is_same = len(expected) == field.size if values == {"*"} else expected == values
    return "" if is_same else f"cron reads {', '.join(map(str, sorted(expected)))}"


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
    return not _LONG.search(part) and _values(place, part, count) is not None


def _values(place: int, part: str, count: int) -> Any:
    """Return the values of one field; None if it can't be read."""
    from croniter import CroniterError, croniter

    parts = ["*"] * count
    parts[place] = part
    try:
        values, _ = croniter.expand(" ".join(parts), second_at_beginning=True)
    except CroniterError:
        return None
    return values[place if count == 5 else place - 1]  # croniter moves the second to the end


def _of_the_whole(text: str) -> tuple[str, ...]:
    from croniter import CroniterBadDateError, CroniterError

    try:
        iterator(text, datetime.datetime(2026, 1, 1)).get_next(datetime.datetime)  # noqa: DTZ001  # a naive local time, as croniter takes it
    except CroniterBadDateError:
        return (f"{text!r} never matches: no month has that day; allowed: an existing day.",)
    except CroniterError as error:
        return (f"{text!r} can't be read: {error}; allowed: 5 fields of cron, or 6 with the second in front.",)
    return ()
