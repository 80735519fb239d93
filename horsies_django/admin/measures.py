"""Spans of time and counts, as people read them."""

from __future__ import annotations

from django.utils.translation import gettext as _

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def elapsed(seconds: float | None) -> str:
    """Return a span in its two largest units; a dash for None."""
    if seconds is None:
        return "-"
    whole = int(max(0.0, seconds))
    if whole < _MINUTE:
        return _("%d s") % whole
    if whole < _HOUR:
        return _("%(min)d min %(s)d s") % {"min": whole // _MINUTE, "s": whole % _MINUTE}
    if whole < _DAY:
        return _("%(h)d h %(min)d min") % {"h": whole // _HOUR, "min": whole % _HOUR // _MINUTE}
    return _("%(d)d d %(h)d h") % {"d": whole // _DAY, "h": whole % _DAY // _HOUR}
