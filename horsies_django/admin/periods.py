"""The periods that pages offer, and up to when the attempts in them are counted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..ops.metrics.history import HOUR, PERIODS, Period, max_lag, rollup_clock
from .ages import age_at
from .base import first_backend

#: The parameter that chooses a period.
PARAMETER: Final = "period"

#: Seconds after which a time without its day is ambiguous.
HALF_DAY: Final = 43_200


class PeriodTexts(NamedTuple):
    """A period's short label, its label in words, and the bars of a chart of it."""

    label: Any
    words: Any
    bars: Any


#: The texts of each period by its key.
TEXTS: Final[Mapping[str, PeriodTexts]] = {
    "5m": PeriodTexts(_("5 minutes"), _("last 5 minutes"), _("by minute")),
    "1h": PeriodTexts(_("1 hour"), _("last hour"), _("by minute")),
    "24h": PeriodTexts(_("24 hours"), _("last 24 hours"), _("by hour")),
    "7d": PeriodTexts(_("7 days"), _("last 7 days"), _("by 6 hours")),
}


def chosen_period(request: HttpRequest, default: Period = HOUR) -> Period:
    """Return the period that the address asks for; the default for an unknown one."""
    return PERIODS.get(request.GET.get(PARAMETER, ""), default)


def chart_title(name: Any, period: Period) -> str:
    """Return the title of a chart of a period."""
    texts = TEXTS[period.key]
    return f"{name}, {texts.words}, {texts.bars}"


def period_tabs(chosen: Period, query: Mapping[str, str] = {}) -> list[dict[str, Any]]:
    """Return a link for each period, with the other parameters of the page."""
    urls = {key: f"?{urlencode({**query, PARAMETER: key})}" for key in PERIODS}
    return [{**TEXTS[key]._asdict(), "url": url, "is_current": key == chosen.key} for key, url in urls.items()]


def minutes_ahead() -> int:
    """Return by how many minutes the reader's clock is ahead of UTC."""
    offset = localtime().utcoffset()
    return round(offset.total_seconds() / 60) if offset else 0


def describe_lag(lag: float, now: float) -> SafeString | str:
    """Return up to when attempts are counted, as a sentence; empty if the roll-ups are not behind.

    ``lag`` is in seconds; ``now`` is the database's clock in seconds since 1970.
    """
    backend = first_backend()
    if backend is None or lag <= max_lag(backend.parsed.options.recovery.check_interval):
        return ""
    moment = localtime(datetime.fromtimestamp(int(now - lag), UTC))
    return format_html(
        gettext("Attempts are counted up to {time}: the reaper is {lag} behind."),
        time=date_format(moment, "H:i" if lag < HALF_DAY else "D j M, H:i"),
        lag=age_at(lag, now, "brief"),
    )


def counted_until(database: str | None) -> dict[str, SafeString | str]:
    """Return the context of ``counted_until.html``, in one statement."""
    clock = rollup_clock(database)
    return {"counted_until": describe_lag(clock.lag, clock.second)}
