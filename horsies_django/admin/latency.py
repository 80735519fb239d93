"""The latency of a queue on pages: its warning in words, and the charts of its wait times."""

from __future__ import annotations

from typing import Any

from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from ..core.numbers import format_brief
from ..ops.metrics.history import DAY, HOUR, attempt_history
from ..ops.metrics.latency import LatencyWarning
from .ages import age_at
from .charts import Chart, Panel, Series
from .periods import HALF_DAY, chart_title


def _describe_since(warning: LatencyWarning) -> str:
    """Return since when a latency has exceeded its threshold, in words; empty if that is not known."""
    if warning.since is None:
        return ""
    time = date_format(localtime(warning.since), "H:i" if warning.waits < HALF_DAY else "D j M, H:i")
    return (_("since %s or earlier") if warning.is_at_least else _("since %s")) % time


def describe_warning(warning: LatencyWarning, now: float) -> SafeString:
    """Return the warning at the top of the overview, without the queue's name.

    ``now`` is the database's clock in seconds since 1970.
    """
    since = f", {text}" if (text := _describe_since(warning)) else ""
    return format_html(
        _("latency {latency}, threshold {threshold}{since}"),
        latency=age_at(warning.waits, now, "brief"),
        threshold=format_brief(warning.threshold),
        since=since,
    )


def latency_cell(shown: SafeString | str, warning: LatencyWarning | None) -> SafeString | str:
    """Return the latency, marked if it exceeds the queue's threshold."""
    if warning is None:
        return shown
    words = _("over %s") % format_brief(warning.threshold)
    words = f"{words} {_describe_since(warning)}".rstrip()
    return format_html('<span class="horsies-late">{} ({})</span>', shown, words)


def latency_charts(database: str, queue: str, minute: int, threshold: float | None) -> list[Chart]:
    """Return charts of the 95th percentile of a queue's wait times, in two statements.

    A dashed line is at the threshold in seconds. ``minute`` is the database's time in minutes since 1970.
    """
    charts = []
    for period in (HOUR, DAY):
        history = attempt_history(database, minute, period, ["waits"], queue_name=queue)
        series = Series("p95", _("wait time (p95)"), history.percentiles("waits", 0.95))
        panel = Panel("", [series], intervals=4, is_time=True, threshold=threshold)
        title: Any = chart_title(_("Wait time"), period)
        charts.append(Chart(f"latency-{period.key}", title, history.starts, history.length, [panel]))
    return charts
