"""Ages and remaining times that live.js counts in the browser, so that they don't change what a page shows.

An age is a ``<time>`` element with the time that it counts from. The tag of a page's live parts leaves its text out:
see :mod:`.live`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..core.numbers import format_brief, format_duration, format_relative
from .formatting import format_time

#: The formats, by the name that live.js knows them by. Each takes seconds.
_FORMATS: Final[dict[str, Any]] = {"relative": format_relative, "brief": format_brief, "full": format_duration}

#: What the passing of time changes in an age, and in a bar of one.
COUNTED: Final = re.compile(r'(?: value="[^"]*")? data-horsies-age="[^"]*">[^<]*')


def age(seconds: float, since: datetime, form: str = "relative") -> SafeString:
    """Return the time that has passed since a moment as an element that the browser counts.

    ``seconds`` is that time by the database's clock; negative if the moment is still to come. ``form`` is *relative*
    (``14 s ago``), *brief* or *full* (two units).
    """
    return format_html(
        '<time datetime="{}" title="{}" data-horsies-form="{}" data-horsies-age="{}">{}</time>',
        since.isoformat(),
        format_time(since, exactly=False),
        form,
        f"{seconds:.1f}",
        _FORMATS[form](seconds),
    )


def relative_time(moment: datetime, now: datetime) -> SafeString:
    """Return a time relative to now, with the exact time as a tooltip. On live pages the browser counts it."""
    return age((now - moment).total_seconds(), moment)


def counted(duration: timedelta) -> SafeString:
    """Return a duration that still grows as an element that the browser counts."""
    seconds = duration.total_seconds()
    counter = '<span data-horsies-form="full" data-horsies-age="{}">{}</span>'
    return format_html(counter, f"{seconds:.1f}", format_duration(seconds))


def age_at(seconds: float | None, now: float, form: str = "relative") -> SafeString | str:
    """Return :func:`age` of a moment that is known by its age only; a dash for None.

    ``now`` is the database's clock in seconds since 1970.
    """
    if seconds is None:
        return "-"
    return age(seconds, datetime.fromtimestamp(round(now - seconds), UTC), form)
