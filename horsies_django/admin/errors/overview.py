"""*What fails most* on the overview: the first rows of the list of errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.contrib.admin import AdminSite
from django.http import HttpRequest

from ...ops.metrics.errors import failure_report
from ..periods import TEXTS, chosen_period, period_tabs
from .links import ErrorUrls
from .rows import error_rows

#: Rows on the overview.
MAX_ROWS: Final = 5


def failing_context(site: AdminSite, request: HttpRequest, database: str, others: Mapping[str, str]) -> dict[str, Any]:
    """Return the context of the section, in one statement. ``others`` are parameters that its links keep."""
    period, urls = chosen_period(request), ErrorUrls(site)
    report = failure_report(database, period, limit=MAX_ROWS)
    return {
        "report": report,
        "rows": error_rows(report, period, urls),
        "tabs": period_tabs(period, others),
        "period_words": TEXTS[period.key].words,
        "url": urls.errors(period.key),
    }
