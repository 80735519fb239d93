"""The latency of a queue on pages: its warning in words, and its trend."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from ..core.durations import format_brief
from ..ops.metrics.history import duration_history
from ..ops.metrics.latency import ExceededSince, LatencyTrend, LatencyWarning, latency_warning
from ..ops.metrics.periods import DAY, HOUR
from ..ops.metrics.rollup_lag import rollup_clock
from .ages import age_at
from .charts import latency_chart
from .counted_until import HALF_DAY, describe_lag


def describe_since(since: ExceededSince, waits: float) -> str:
    """Return since when a latency has exceeded its threshold, in words."""
    time = date_format(localtime(since.moment), "H:i" if waits < HALF_DAY else "D j M, H:i")
    return (_("since %s or earlier") if since.is_at_least else _("since %s")) % time


def describe_warning(warning: LatencyWarning, now: float) -> SafeString:
    """Return the warning at the top of the overview, without the queue's name.

    ``now`` is the database's clock in seconds since 1970.
    """
    since = f", {describe_since(warning.since, warning.waits)}" if warning.since else ""
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
    if warning.since:
        words = f"{words} {describe_since(warning.since, warning.waits)}"
    return format_html('<span class="horsies-late">{} ({})</span>', shown, words)


def latency_of_queue(
    database: str | None, queue: str, waits: float | None, threshold: timedelta | None
) -> tuple[LatencyWarning | None, dict[str, Any]]:
    """Return the warning of a queue, and the context of the charts of its wait times, in three statements."""
    clock = rollup_clock(database)
    hour, day = (
        duration_history(database, clock.minute, period, ("waits",), queue_name=queue) for period in (HOUR, DAY)
    )
    limit = threshold.total_seconds() if threshold else None
    trend = LatencyTrend(clock.second, hour.percentiles("waits", 0.95))
    charts = [
        latency_chart("latency-hour", _("Wait time, last hour, by minute"), hour, limit),
        latency_chart("latency-day", _("Wait time, last 24 hours, by hour"), day, limit),
    ]
    context = {"charts": charts, "counted_until": describe_lag(clock.lag, clock.second)}
    return latency_warning(queue, waits, threshold, trend), context
