"""Spans of time, as people read them."""

from __future__ import annotations

from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

_UNITS: Final = (
    (86_400, gettext_noop("%(number)s d")),
    (3_600, gettext_noop("%(number)s h")),
    (60, gettext_noop("%(number)s min")),
)


def brief(seconds: float | None) -> str:
    """Return a span in the one unit that fits, from milliseconds to days; a dash for None."""
    if seconds is None:
        return "-"
    for size, text in _UNITS:
        if seconds >= 2 * size:
            return _(text) % {"number": f"{seconds / size:.0f}"}
    if seconds < 1:
        return _("%(number)s ms") % {"number": f"{seconds * 1_000:.0f}"}
    return _("%(number)s s") % {"number": f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}"}
