"""Spans of time as an operator reads them: short, in words, the exact moment behind them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext as _


def span(seconds: float) -> str:
    """Return a length of time in its one or two largest units."""
    if seconds < 1:
        return _("%d ms") % round(max(seconds, 0) * 1_000)
    if seconds < 10:
        return _("%.1f s") % seconds
    whole = round(seconds)
    if whole < 60:
        return _("%d s") % whole
    if whole < 3_600:
        return _("%(min)d min %(s)d s") % {"min": whole // 60, "s": whole % 60}
    if whole < 86_400:
        return _("%(h)d h %(min)d min") % {"h": whole // 3_600, "min": whole % 3_600 // 60}
    return _("%(d)d d %(h)d h") % {"d": whole // 86_400, "h": whole % 86_400 // 3_600}


def from_now(seconds: float) -> str:
    """Return how long ago that was, or in how long it will be, if negative."""
    size = abs(seconds)
    if size < 1:
        return _("now")
    if size < 60:
        length = _("%d s") % size
    elif size < 3_600:
        length = _("%d min") % (size // 60)
    elif size < 86_400:
        length = _("%d h") % (size // 3_600)
    else:
        length = _("%d d") % (size // 86_400)
    return _("%s ago") % length if seconds > 0 else _("in %s") % length


def exact(moment: datetime) -> str:
    """Return a moment to the second in the reader's own zone."""
    return date_format(localtime(moment) if is_aware(moment) else moment, "Y-m-d H:i:s")


def between(start: Any, end: Any) -> float | None:
    """Return the seconds from one moment to another; None if there is not both."""
    return max(0.0, (end - start).total_seconds()) if start and end else None


def when(moment: datetime, now: datetime) -> SafeString:
    """Return a moment as seen from now, with the exact time to be pointed at."""
    words = from_now((now - moment).total_seconds())
    return format_html('<time datetime="{}" title="{}">{}</time>', moment.isoformat(), exact(moment), words)
