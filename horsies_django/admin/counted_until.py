"""Up to when the attempts on a page are counted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from ..ops.metrics.rollup_lag import max_lag, rollup_clock
from .ages import age_at
from .base import first_backend

#: Seconds after which a time without its day is ambiguous.
HALF_DAY: Final = 43_200


def describe_lag(lag: float, now: float) -> SafeString | str:
    """Return up to when attempts are counted, as a sentence; empty if the roll-ups are not behind.

    ``lag`` is in seconds; ``now`` is the database's clock in seconds since 1970.
    """
    backend = first_backend()
    if backend is None or lag <= max_lag(backend.parsed.options.recovery.check_interval):
        return ""
    moment = localtime(datetime.fromtimestamp(int(now - lag), UTC))
    return format_html(
        _("Attempts are counted up to {time}: the reaper is {lag} behind."),
        time=date_format(moment, "H:i" if lag < HALF_DAY else "D j M, H:i"),
        lag=age_at(lag, now, "brief"),
    )


def counted_until(database: str | None) -> dict[str, SafeString | str]:
    """Return the context of ``counted_until.html``, in one statement."""
    clock = rollup_clock(database)
    return {"counted_until": describe_lag(clock.lag, clock.second)}
