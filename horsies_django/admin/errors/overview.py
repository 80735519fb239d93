"""*What fails most* on the overview: the first rows of the list of errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.contrib.admin import AdminSite
from django.http import HttpRequest

from ...ops.metrics.errors import failure_report
from .links import ErrorUrls
from .rows import error_rows
from .windows import LABELS, chosen_window, window_tabs

#: Rows on the overview.
MAX_ROWS: Final = 5


def failing_context(site: AdminSite, request: HttpRequest, database: str, others: Mapping[str, str]) -> dict[str, Any]:
    """Return the context of the section, in one statement. ``others`` are parameters that its links keep."""
    window, urls = chosen_window(request), ErrorUrls(site)
    report = failure_report(database, window, limit=MAX_ROWS)
    return {
        "report": report,
        "rows": error_rows(report, window, urls),
        "tabs": window_tabs(window, others),
        "window_words": LABELS[window.key][1],
        "url": urls.errors(window.key),
    }
