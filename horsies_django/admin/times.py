"""Times relative to now, and dates that forms accept."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from django.core.exceptions import ValidationError
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from .ages import age

#: The years that a form accepts.
FIRST_YEAR: Final = 1900
LAST_YEAR: Final = 9997


def relative_time(moment: datetime, now: datetime) -> SafeString:
    """Return a time relative to now, with the exact time as a tooltip. On live pages the browser counts it."""
    return age((now - moment).total_seconds(), moment)


def validate_date(moment: datetime) -> None:
    """Raise ValidationError for a year outside ``FIRST_YEAR``–``LAST_YEAR``, where time zones leave the calendar."""
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        message = _("The year is %(year)d; allowed: from %(first)d to %(last)d.")
        years = {"year": moment.year, "first": FIRST_YEAR, "last": LAST_YEAR}
        raise ValidationError(message, params=years, code="out_of_range")
