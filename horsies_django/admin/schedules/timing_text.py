"""Describe a schedule's timing in the active language."""

from __future__ import annotations

import calendar
import re
from typing import Final

from django.utils import dates
from django.utils.translation import get_language, gettext
from django.utils.translation import gettext_lazy as _
from django.utils.version import get_version_tuple

from ...core.cron import expanded
from ...core.numbers import format_number

#: (seconds, singular, plural), the longest unit first.
_UNITS: Final = (
    (86_400, _("every day"), _("every %d days")),
    (3_600, _("every hour"), _("every %d hours")),
    (60, _("every minute"), _("every %d minutes")),
    (1, _("every second"), _("every %d seconds")),
)

#: Phrases that cron-descriptor does not translate.
_NAMES: Final = {
    **{name: dates.WEEKDAYS[number] for number, name in enumerate(calendar.day_name)},
    **{name: dates.MONTHS[number] for number, name in enumerate(calendar.month_name) if name},
}
_ANY_NAME: Final = re.compile(rf"\b({'|'.join(_NAMES)})\b")

#: cron-descriptor's locales by language.
_REGIONS: Final = {"en": "en_US", "cs": "cs_CZ", "da": "da_DK", "sv": "sv_SE", "uk": "uk_UA"}

#: The tests use cron-descriptor from 1.4.5 on, the last version that django-celery-beat allows, and below 3.
_TESTED_VERSIONS: Final = ((1, 4, 5), (3,))


def describe_timing(timing: str, timezone: str = "") -> str:
    """Return a timing in words, with its zone if that matters; the timing itself if it can't be described.

    >>> describe_timing("every:300", "Europe/Berlin")
    'every 5 minutes'
    """
    kind, _colon, text = timing.partition(":")
    if kind == "every":
        return _describe_every(text) or timing
    description = _describe_cron(text) if kind == "cron" else ""
    words = description or text or timing
    return f"{words} ({timezone})" if timezone else words


def _describe_every(text: str) -> str:
    try:
        seconds = float(text)
    except ValueError:
        return ""
    for unit, singular, more in _UNITS:
        number = seconds / unit
        if number >= 1 and number.is_integer():
            return str(singular) if number == 1 else str(more) % int(number)
    return gettext("every %s seconds") % format_number(seconds)


def _describe_cron(text: str) -> str:
    """Return a cron expression in words; empty if cron-descriptor is missing, has no tested version, or fails."""
    fields = expanded(text).replace("?", "*")  # otherwise it takes the last field for a year
    try:
        import cron_descriptor

        lowest, beyond = _TESTED_VERSIONS
        if not lowest <= get_version_tuple(cron_descriptor.__version__) < beyond:
            return ""
        options = cron_descriptor.Options()  # takes no arguments before version 2
        options.use_24hour_time_format, options.locale_code = True, _locale()
        description = cron_descriptor.get_description(fields, options)
    except Exception:  # noqa: BLE001  # a page shows the expression, whatever the library raises
        return ""
    return _ANY_NAME.sub(_in_own_language, description)


def _in_own_language(name: re.Match[str]) -> str:
    return str(_NAMES[name.group()])


def _locale() -> str:
    """Return cron-descriptor's locale for the active language; it falls back to English for unknown ones."""
    language = (get_language() or "en").partition("-")[0]
    return _REGIONS.get(language, f"{language}_{language.upper()}")
