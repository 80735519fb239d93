"""Format numbers for people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from django.utils.formats import number_format


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
