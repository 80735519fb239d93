"""Moments as seen from now."""

from __future__ import annotations

from datetime import datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..durations import from_now
from .readable import at


def when(moment: datetime, now: datetime) -> SafeString:
    """Return a moment as seen from now, with the exact time to be pointed at."""
    words, exact = from_now((now - moment).total_seconds()), at(moment, exactly=False)
    return format_html('<time datetime="{}" title="{}">{}</time>', moment.isoformat(), exact, words)
