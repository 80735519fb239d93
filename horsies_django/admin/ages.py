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

from ..core.durations import format_brief, format_duration, format_relative
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


def counted(duration: timedelta, form: str = "full", tag: str = "span") -> SafeString:
    """Return a duration that still grows as an element that the browser counts. In a drawing ``tag`` is *tspan*."""
    seconds = duration.total_seconds()
    return format_html(
        '<{} data-horsies-form="{}" data-horsies-age="{}">{}</{}>',
        tag,
        form,
        f"{seconds:.1f}",
        _FORMATS[form](seconds),
        tag,
    )


def age_at(seconds: float | None, now: float, form: str = "relative") -> SafeString | str:
    """Return :func:`age` of a moment that is known by its age only; a dash for None.

    ``now`` is the database's clock in seconds since 1970.
    """
    if seconds is None:
        return "-"
    return age(seconds, datetime.fromtimestamp(round(now - seconds), UTC), form)
