"""Times relative to now, dates that forms accept, and the zone of times on pages."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Final

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext_lazy as _

from .ages import age
from .base import queue_database

#: The years that a form accepts.
FIRST_YEAR: Final = 1900
LAST_YEAR: Final = 9997


def relative_time(moment: datetime, now: datetime) -> SafeString:
    """Return a time relative to now, with the exact time as a tooltip. On live pages the browser counts it."""
    return age((now - moment).total_seconds(), moment, zone=display_zone())


def validate_date(moment: datetime) -> None:
    """Raise ValidationError for a year outside ``FIRST_YEAR``–``LAST_YEAR``, where time zones leave the calendar."""
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        message = _("The year is %(year)d; allowed: from %(first)d to %(last)d.")
        years = {"year": moment.year, "first": FIRST_YEAR, "last": LAST_YEAR}
        raise ValidationError(message, params=years, code="out_of_range")


def display_zone() -> tzinfo:
    """Return the zone in which pages show and read times: the active one; on SQLite without ``USE_TZ`` UTC.

    Without ``USE_TZ``, SQLite's clock is in UTC. Other databases use the project's zone, which Django sets.
    """
    if not settings.USE_TZ and connections[queue_database() or DEFAULT_DB_ALIAS].vendor == "sqlite":
        return UTC
    return get_current_timezone()
