"""The windows of time that the pages of errors offer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...ops.metrics.errors import DEFAULT_WINDOW, WINDOWS, Window

#: The parameter that chooses a window, and the period of the charts.
PARAMETER: Final = "period"

#: The short label of each window, and its label in words.
LABELS: Final[Mapping[str, tuple[Any, Any]]] = {
    "5m": (_("5 minutes"), _("last 5 minutes")),
    "1h": (_("1 hour"), _("last hour")),
    "24h": (_("24 hours"), _("last 24 hours")),
    "7d": (_("7 days"), _("last 7 days")),
}


@dataclass(frozen=True, slots=True)
class WindowTab:
    """A link to a window. ``count`` is its number of failed attempts; None: not shown."""

    label: Any
    words: Any
    url: str
    is_current: bool
    count: int | None = None


def chosen_window(request: HttpRequest) -> Window:
    """Return the window that the address asks for; the default one for an unknown value."""
    return WINDOWS.get(request.GET.get(PARAMETER, ""), DEFAULT_WINDOW)


def window_tabs(chosen: Window, query: Mapping[str, str], counts: Mapping[str, int] | None = None) -> list[WindowTab]:
    """Return a link for each window, with the other parameters of the page."""
    return [
        WindowTab(
            *LABELS[key],
            f"?{urlencode({**query, PARAMETER: key})}",
            key == chosen.key,
            counts[key] if counts is not None else None,
        )
        for key in WINDOWS
    ]
