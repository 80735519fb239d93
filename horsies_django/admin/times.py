"""Moments as seen from now."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Final

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext_lazy as _

from ..core.durations import format_relative
from .base import queue_database
from .formatting import format_time

#: The years that a form takes.
FIRST_YEAR: Final = 1900
LAST_YEAR: Final = 9997


def relative_time(moment: datetime, now: datetime) -> SafeString:
    """Return a moment as seen from now, with the exact time to be pointed at."""
    words, exact = format_relative((now - moment).total_seconds()), format_time(moment, exactly=False)
    return format_html('<time datetime="{}" title="{}">{}</time>', moment.isoformat(), exact, words)


def validate_date(moment: datetime) -> None:
    """Raise ValidationError for a date that, in some time zone, lies outside the calendar or close to its ends."""
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        told = _("The year is %(year)d; allowed: from %(first)d to %(last)d.")
        years = {"year": moment.year, "first": FIRST_YEAR, "last": LAST_YEAR}
        raise ValidationError(told, params=years, code="out_of_range")


def display_zone() -> tzinfo:
    """Return the zone that times are shown and typed in: the reader's own; without ``USE_TZ`` the database's.

    SQLite's clock has but UTC. The others have the zone that Django tells them, which is the project's.
    """
    if not settings.USE_TZ and connections[queue_database() or DEFAULT_DB_ALIAS].vendor == "sqlite":
        return UTC
    return get_current_timezone()
