"""Charts of attempts and of durations over time, from the reaper's roll-ups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC
from typing import Any, Final

from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...ops.metrics.history import COMPLETED, FAILED, OTHERS, RETRIED, AttemptHistory, DurationHistory
from .chart import Chart
from .panel import Kind, Panel, Series, Unit

LABELS: Final = {
    COMPLETED: gettext_lazy("completed"),
    RETRIED: gettext_lazy("retried"),
    FAILED: gettext_lazy("failed"),
}

#: The outcomes of the lower panel. Their scale is their own, so few failures among many successes have a height.
UNSUCCESSFUL: Final = (FAILED, RETRIED)

#: Intervals of the scale of a panel below the first.
_LOWER_INTERVALS: Final = 2

#: Returns the URL of each bucket for an outcome (None: any) and further parameters of the task list.
UrlsOf = Callable[..., Sequence[str | None]]


def attempt_urls(list_url: str | None, history: AttemptHistory | DurationHistory, **query: str) -> UrlsOf:
    """Return a function that returns the URLs of lists: tasks of which an attempt ended in a bucket, with an outcome.

    ``list_url`` is the task list's URL; None if this user may not open it. ``query`` has its other parameters.
    """
    times = [
        urlencode({"ended_from": _text(start), "ended_to": _text(start + history.length)}) for start in history.starts
    ]

    def urls(outcome: str = "", **more: str) -> Sequence[str | None]:
        if list_url is None:
            return ()
        rest = urlencode({"kind": "all"} | query | more | {"ended": outcome or "any"})
        return [f"{list_url}?{rest}&{time}" for time in times]

    return urls


def _text(moment: Any) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%MZ}"


def outcome_chart(key: str, title: Any, history: AttemptHistory, urls: UrlsOf | None = None) -> Chart:
    """Return a chart of attempts: completed ones above, failed and retried ones below on a scale of their own."""

    def series(outcome: str) -> Series:
        return Series(outcome, LABELS[outcome], history.values(outcome), urls(outcome) if urls else ())

    lower = Panel(
        _("failed and retried"),
        [series(outcome) for outcome in UNSUCCESSFUL],
        intervals=_LOWER_INTERVALS,
        urls=urls("unsuccessful") if urls else (),
    )
    return Chart(key, title, history.starts, history.length, [Panel(_("completed"), [series(COMPLETED)]), lower])


def grouped_chart(
    key: str,
    title: Any,
    history: AttemptHistory,
    column: str,
    urls: UrlsOf | None = None,
    url_of: Callable[[str], str | None] | None = None,
) -> Chart:
    """Return a chart of attempts stacked by the groups of ``history``, the largest at the bottom.

    ``column`` is the parameter of the task list by which the groups differ. ``url_of`` returns the URL behind a group's
    name in the legend.
    """

    def series(outcomes: Sequence[str], link: str, words: Any) -> list[Series]:
        return [
            Series(
                "other" if name == OTHERS else str(at),
                name or _("other"),
                history.values(*outcomes, group=name),
                urls(link, **{column: name}) if urls and name else (),
                url_of(name) if url_of and name else None,
                full_label=_("%(outcome)s (%(name)s)") % {"outcome": words, "name": name or _("other")},
            )
            for at, name in enumerate(history.names)
        ]

    upper = Panel(
        _("completed"), series([COMPLETED], COMPLETED, LABELS[COMPLETED]), urls=urls(COMPLETED) if urls else ()
    )
    lower = Panel(
        _("failed and retried"),
        series(UNSUCCESSFUL, "unsuccessful", _("failed or retried")),
        intervals=_LOWER_INTERVALS,
        urls=urls("unsuccessful") if urls else (),
    )
    return Chart(key, title, history.starts, history.length, [upper, lower])


def duration_chart(key: str, title: Any, history: DurationHistory, urls: Sequence[str | None] = ()) -> Chart:
    """Return a chart of wait and run times: the median and the 95th percentile of each bucket, as lines.

    The histograms that ``history`` has not read get no panel.
    """
    titles = {"waits": _("wait time"), "runs": _("run time")}
    panels = [
        Panel(
            titles[which],
            [
                Series(
                    f"p{round(share * 100)}",
                    f"p{round(share * 100)}",
                    history.percentiles(which, share),
                    full_label=_("%(time)s p%(percent)d") % {"time": titles[which], "percent": round(share * 100)},
                )
                for share in (0.95, 0.5)
            ],
            Kind.LINES,
            Unit.SECONDS,
            intervals=4,
            urls=urls,
        )
        for which in history.histograms
    ]
    return Chart(key, title, history.starts, history.length, panels)


def latency_chart(key: str, title: Any, history: DurationHistory, threshold: float | None = None) -> Chart:
    """Return a chart of the 95th percentile of the wait time, with a dashed line at the threshold in seconds."""
    values = history.percentiles("waits", 0.95)
    series = Series("p95", _("wait time (p95)"), values)
    panel = Panel("", [series], Kind.LINES, Unit.SECONDS, intervals=4, threshold=threshold)
    return Chart(key, title, history.starts, history.length, [panel])
