"""Format numbers and durations for people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, TypeAlias

from django.utils.formats import number_format
from django.utils.translation import gettext as _


def format_number(number: float | None, decimals: int = 3) -> str:
    """Return a number as the current language writes it: thousands grouped, at most so many decimals. None is 0.

    >>> format_number(12345), format_number(0.25), format_number(3.0)
    ('12,345', '0.25', '3')
    """
    rounded = round(number or 0, decimals)
    return number_format(int(rounded) if rounded == int(rounded) else rounded, force_grouping=True)


def format_lower_bound(count: int, is_more: bool) -> str:
    """Return a count as :func:`format_number` does, with a plus sign if there are more."""
    return format_number(count) + ("+" if is_more else "")


def fill_numbers(text: str, numbers: int | Mapping[str, Any]) -> str:
    """Return a translated text with its ``%d``, or each ``%(name)d``, filled in by :func:`format_number`.

    >>> fill_numbers("%d tasks", 12345), fill_numbers("%(queue)s: %(held)d", {"queue": "a", "held": 12345})
    ('12,345 tasks', 'a: 12,345')
    """
    text = re.sub(r"%(\(\w+\))?d", r"%\1s", text)
    if isinstance(numbers, int):
        return text % format_number(numbers)
    return text % {name: format_number(value) if isinstance(value, int) else value for name, value in numbers.items()}


#: A timedelta or seconds. None is an unknown duration.
ElapsedTime: TypeAlias = timedelta | float | None

_MINUTE: Final = 60
_HOUR: Final = 3_600
_DAY: Final = 86_400


def format_duration(duration: ElapsedTime) -> str:
    """Return a duration in its two largest units; a dash for None.

    >>> format_duration(timedelta(seconds=75)), format_duration(0.0123), format_duration(timedelta(days=2, hours=5))
    ('1 min 15 s', '12 ms', '2 d 5 h')
    """
    if duration is None:
        return "-"
    seconds = _seconds(duration)
    whole = int(seconds)
    if whole < _MINUTE:
        return _short(seconds)
    if whole < _HOUR:
        return _("%(minutes)d min %(seconds)d s") % {"minutes": whole // _MINUTE, "seconds": whole % _MINUTE}
    if whole < _DAY:
        return _("%(hours)d h %(minutes)d min") % {"hours": whole // _HOUR, "minutes": whole % _HOUR // _MINUTE}
    return fill_numbers(_("%(days)d d %(hours)d h"), {"days": whole // _DAY, "hours": whole % _DAY // _HOUR})


def format_brief(duration: ElapsedTime) -> str:
    """Return a duration in its largest unit of which it has at least two; a dash for None.

    >>> format_brief(75), format_brief(150), format_brief(0.0123), format_brief(8_000_000)
    ('75 s', '2 min', '12 ms', '93 d')
    """
    if duration is None:
        return "-"
    seconds = _seconds(duration)
    if seconds >= 2 * _DAY:
        return fill_numbers(_("%d d"), round(seconds / _DAY))
    if seconds >= 2 * _HOUR:
        return _("%d h") % round(seconds / _HOUR)
    if seconds >= 2 * _MINUTE:
        return _("%d min") % round(seconds / _MINUTE)
    return _short(seconds)


def format_about(duration: ElapsedTime) -> str:
    """Return a duration from a histogram, which is right to within 20 %, as :func:`format_brief`; a dash for None.

    >>> format_about(3.46)
    '≈ 3.4 s'
    """
    return "-" if duration is None else f"≈ {format_brief(duration)}"


def format_relative(seconds: float) -> str:
    """Return how long ago something was, or, if ``seconds`` is negative, in how long it will be.

    >>> format_relative(75), format_relative(-150), format_relative(0.2)
    ('75 s ago', 'in 2 min', 'now')
    """
    if abs(seconds) < 1:
        return _("now")
    return (_("%s ago") if seconds > 0 else _("in %s")) % format_brief(abs(seconds))


def duration_texts() -> dict[str, str]:
    """Return the texts of the formats above in the current language, for scripts that format in the same way."""
    return {
        "ms": _("%d ms"),
        "exact": _("%s s"),
        "s": _("%d s"),
        "min": _("%d min"),
        "h": _("%d h"),
        "d": _("%d d"),
        "min_s": _("%(minutes)d min %(seconds)d s"),
        "h_min": _("%(hours)d h %(minutes)d min"),
        "d_h": _("%(days)d d %(hours)d h"),
        "ago": _("%s ago"),
        "in": _("in %s"),
        "now": _("now"),
    }


def _short(seconds: float) -> str:
    if seconds < 1:
        return _("%d ms") % round(seconds * 1_000)
    if seconds < 10:
        return _("%s s") % number_format(seconds, 1)
    return _("%d s") % seconds


def _seconds(duration: timedelta | float) -> float:
    return max(0.0, duration.total_seconds() if isinstance(duration, timedelta) else duration)
