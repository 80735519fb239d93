"""The periods that pages offer: the parameter that chooses one, their labels, and links to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..ops.metrics.periods import DAY, HOUR, PERIODS, WEEK, Period

#: The parameter that chooses a period.
PARAMETER: Final = "period"

#: The periods of charts of all attempts. The pages of errors offer each of ``PERIODS``.
CHART_PERIODS: Final[Mapping[str, Period]] = {period.key: period for period in (HOUR, DAY, WEEK)}


class PeriodTexts(NamedTuple):
    """A period's short label, its label in words, the bars of a chart of it, and the title of one of all attempts."""

    label: Any
    words: Any
    bars: Any
    title: Any = ""


#: The texts of each period by its key.
TEXTS: Final[Mapping[str, PeriodTexts]] = {
    "5m": PeriodTexts(_("5 minutes"), _("last 5 minutes"), _("by minute")),
    "1h": PeriodTexts(_("1 hour"), _("last hour"), _("by minute"), _("Last hour, by minute")),
    "24h": PeriodTexts(_("24 hours"), _("last 24 hours"), _("by hour"), _("Last 24 hours, by hour")),
    "7d": PeriodTexts(_("7 days"), _("last 7 days"), _("by 6 hours"), _("Last 7 days, by 6 hours")),
}


@dataclass(frozen=True, slots=True)
class PeriodTab:
    """A link to a period of a page of errors. ``count`` is its number of failed attempts; None: not shown."""

    label: Any
    words: Any
    url: str
    is_current: bool
    count: int | None = None


def chosen_period(request: HttpRequest, offered: Mapping[str, Period] = PERIODS, default: Period = HOUR) -> Period:
    """Return the period that the address asks for; the default one if the page does not offer it."""
    return offered.get(request.GET.get(PARAMETER, ""), default)


def period_tabs(chosen: Period, query: Mapping[str, str], counts: Mapping[str, int] = {}) -> list[PeriodTab]:
    """Return a link for each of ``PERIODS``, with the other parameters of the page."""
    urls = {key: f"?{urlencode({**query, PARAMETER: key})}" for key in PERIODS}
    return [
        PeriodTab(TEXTS[key].label, TEXTS[key].words, url, key == chosen.key, counts.get(key))
        for key, url in urls.items()
    ]
