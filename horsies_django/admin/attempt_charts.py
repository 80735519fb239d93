"""Charts of a history of attempts: their outcomes, and their times.

A page uses one like this::

    history = attempt_history(database, minute, DAY, task_name="shop.ship")
    context["chart"] = outcome_chart("attempts", _("Attempts"), history, url_of_the_task_list, task_name="shop.ship")
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from typing import Any, Final

from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..ops.metrics.history import COMPLETED, FAILED, RETRIED, History
from .charts import Chart, Panel, Series

LABELS: Final = {
    COMPLETED: gettext_lazy("completed"),
    RETRIED: gettext_lazy("retried"),
    FAILED: gettext_lazy("failed"),
}


def outcome_chart(key: str, title: Any, history: History, list_url: str | None, **query: str) -> Chart:
    """Return a chart of attempts: completed ones above, failed and retried ones below on a scale of their own.

    So few failures among many successes have a height. Each bucket links to the tasks of which an attempt ended in it:
    ``list_url`` is the task list's URL, None if this user may not open it; ``query`` has its other parameters.
    """

    def urls(outcome: str) -> Sequence[str]:
        rest = {"kind": "all", **query, "ended": outcome}
        times = ({"ended_from": start, "ended_to": start + history.length} for start in history.starts)
        texts = ({name: f"{at.astimezone(UTC):%Y-%m-%dT%H:%MZ}" for name, at in time.items()} for time in times)
        return [f"{list_url}?{urlencode(rest | text)}" for text in texts] if list_url else []

    def series(outcome: str) -> Series:
        return Series(outcome, LABELS[outcome], history.values(outcome), urls(outcome))

    upper = Panel(_("completed"), [series(COMPLETED)], urls=urls(COMPLETED))
    lower = Panel(_("failed and retried"), [series(FAILED), series(RETRIED)], intervals=2, urls=urls("unsuccessful"))
    return Chart(key, title, history.starts, history.length, [upper, lower])


def time_chart(key: str, title: Any, history: History) -> Chart:
    """Return a chart of the median and the 95th percentile of wait and run times."""
    titles = {"waits": _("wait time"), "runs": _("run time")}
    panels = [
        Panel(
            name,
            [
                Series(f"p{percent}", f"{name} p{percent}", history.percentiles(which, percent / 100))
                for percent in (95, 50)
            ],
            intervals=4,
            is_time=True,
        )
        for which, name in titles.items()
    ]
    return Chart(key, title, history.starts, history.length, panels)
