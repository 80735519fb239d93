"""Describe a schedule's timing in the active language."""

from __future__ import annotations

import calendar
import re
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from django.utils import dates
from django.utils.formats import number_format
from django.utils.translation import get_language, gettext
from django.utils.translation import gettext_lazy as _

from ...core.cron import expanded

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

#: Errors that cron-descriptor and its parser raise for expressions that only croniter accepts.
_DESCRIPTOR_ERRORS: Final = (ValueError, LookupError, TypeError, AttributeError)


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
    for unit, one, more in _UNITS:
        number = seconds / unit
        if number >= 1 and number.is_integer():
            return str(one) if number == 1 else str(more) % int(number)
    return gettext("every %s seconds") % number_format(seconds)


def _describe_cron(text: str) -> str:
    """Return a cron expression in words; empty without cron-descriptor, or if it cannot describe it."""
    if find_spec("cron_descriptor") is None:
        return ""
    descriptor = import_module("cron_descriptor")
    fields = expanded(text).replace("?", "*")  # otherwise it takes the last field for a year
    options = descriptor.Options(use_24hour_time_format=True, locale_code=_locale())
    try:
        description = descriptor.get_description(fields, options)
    except (descriptor.FormatError, descriptor.MissingFieldError, descriptor.WrongArgumentError, *_DESCRIPTOR_ERRORS):
        return ""
    return _ANY_NAME.sub(_in_own_language, description)


def _in_own_language(name: re.Match[str]) -> str:
    return str(_NAMES[name.group()])


def _locale() -> str:
    """Return cron-descriptor's locale for the active language; it falls back to English for unknown ones."""
    language = (get_language() or "en").partition("-")[0]
    return _REGIONS.get(language, f"{language}_{language.upper()}")
