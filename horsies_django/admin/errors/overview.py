"""*What fails most* on the overview: the first rows of the list of errors."""

from __future__ import annotations

from typing import Any, Final

from django.contrib.admin import AdminSite
from django.http import HttpRequest

from ...ops.metrics.errors import failure_report
from .links import ErrorUrls
from .rows import error_rows
from .windows import LABELS, PARAMETER, chosen_window, window_tabs

#: Rows on the overview.
MAX_ROWS: Final = 5


def failing_context(site: AdminSite, request: HttpRequest, database: str) -> dict[str, Any]:
    """Return the context of the section. Takes one statement."""
    window, urls = chosen_window(request), ErrorUrls(site)
    others = {name: str(value) for name, value in request.GET.items() if name != PARAMETER}
    report = failure_report(database, window, limit=MAX_ROWS)
    return {
        "report": report,
        "rows": error_rows(report, window, urls),
        "tabs": window_tabs(window, others),
        "window_words": LABELS[window.key][1],
        "url": urls.errors(window.key),
    }
