"""Charts as inline SVG, with a text summary and a table of the same numbers.

A chart has one or more panels above one time axis. Each panel has its own linear scale that begins at 0: bars stack
counts, lines show durations. The style sheet ``horsies_django/charts.css`` colours them by class, so a chart follows
the admin's light or dark theme and needs no inline style. A page uses one like this::

    from ..ops.metrics import history, periods, rollup_lag

    minute = rollup_lag.rollup_clock(database).minute
    found = history.attempt_history(database, minute, periods.DAY, task_name="shop.ship")
    times = history.duration_history(database, minute, periods.DAY, task_name="shop.ship")
    urls = attempt_urls(url_of_the_task_list, found, task_name="shop.ship")
    context["charts"] = [
        outcome_chart("attempts", _("Attempts, last 24 hours"), found, urls),
        duration_chart("times", _("Wait and run times, last 24 hours"), times),
    ]

    {% include "admin/horsies_django/chart.html" with chart=chart %}

and adds ``css = {"all": CHART_CSS}`` to its Media. ``key`` is unique on the page. For anything else, build a
:class:`Chart` from :class:`Panel` and :class:`Series`.
"""

from .chart import Chart
from .drawing import draw
from .history_charts import (
    LABELS,
    attempt_urls,
    duration_chart,
    grouped_chart,
    latency_chart,
    outcome_chart,
)
from .panel import Kind, Panel, Series, Unit
from .sparkline import sparkline

#: The style sheets of a page with charts.
CHART_CSS = ["horsies_django/charts.css"]

__all__ = [
    "CHART_CSS",
    "LABELS",
    "Chart",
    "Kind",
    "Panel",
    "Series",
    "Unit",
    "attempt_urls",
    "draw",
    "duration_chart",
    "grouped_chart",
    "latency_chart",
    "outcome_chart",
    "sparkline",
]
