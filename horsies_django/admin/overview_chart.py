"""The overview's chart of attempts: its period, its grouping and its filters, all of which are in the URL."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from django.http import HttpRequest
from django.utils.http import urlencode
from django.utils.timezone import localtime
from django.utils.translation import gettext_lazy

from ..ops.metrics.history import attempt_history
from ..ops.metrics.periods import HOUR, Period
from .charts import Chart, attempt_urls, grouped_chart, outcome_chart
from .lists.name_filters import task_names
from .periods import CHART_PERIODS, PARAMETER, TEXTS, chosen_period

#: What a bar can be divided by: the label, and the column of the roll-ups and of the task list.
GROUPINGS: Final[dict[str, tuple[Any, str | None]]] = {
    "state": (gettext_lazy("State"), None),
    "queue": (gettext_lazy("Queue"), "queue_name"),
    "task": (gettext_lazy("Task"), "task_name"),
}

#: Maximum number of tasks in the menu; the legend links to the largest.
MAX_CHOICES: Final = 200


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of the chart's controls, and the URL of the page with it."""

    label: Any
    url: str
    is_selected: bool


@dataclass(frozen=True, slots=True)
class ChartControls:
    """The parameters of the overview's chart. A user who may not view queues can neither see nor name them."""

    period: Period
    by: str
    queue: str
    task: str
    key: str  # of the period; that of the failures may be one that the chart does not have
    sees_queues: bool

    @classmethod
    def from_request(cls, request: HttpRequest, *, sees_queues: bool) -> ChartControls:
        """Read the parameters; an unknown period or grouping is the default."""
        asked = {name: str(value).replace("\0", "") for name, value in request.GET.items()}
        by = asked.get("by", "")
        is_known = by in GROUPINGS and (sees_queues or by != "queue")
        return cls(
            chosen_period(request, CHART_PERIODS),
            by if is_known else "state",
            asked.get("queue", "") if sees_queues else "",
            asked.get("task", ""),
            asked.get(PARAMETER, ""),
            sees_queues,
        )

    def url(self, **changed: str) -> str:
        """Return the URL of the page with changed parameters; those with their default are left out."""
        return f"?{urlencode(self.query(**changed))}"

    def query(self, **changed: str) -> dict[str, str]:
        """Return the parameters with some changed, without those that have their default."""
        query = {PARAMETER: self.key, "by": self.by, "queue": self.queue, "task": self.task}
        defaults = {PARAMETER: HOUR.key, "by": "state"}
        return {name: value for name, value in (query | changed).items() if value and value != defaults.get(name)}

    @property
    def periods(self) -> list[Choice]:
        """The periods."""
        return [Choice(TEXTS[key].label, self.url(**{PARAMETER: key}), key == self.period.key) for key in CHART_PERIODS]

    @property
    def groupings(self) -> list[Choice]:
        """What the bars can be divided by."""
        names = [name for name in GROUPINGS if self.sees_queues or name != "queue"]
        return [Choice(GROUPINGS[name][0], self.url(by=name), name == self.by) for name in names]

    @property
    def tasks(self) -> list[str]:
        """The tasks of the menu."""
        return _with_selected(sorted(task_names())[:MAX_CHOICES], self.task)

    def queues(self, names: Iterable[str]) -> list[str]:
        """The queues of the menu."""
        return _with_selected(names, self.queue)

    @property
    def clear_url(self) -> str | None:
        """The URL of the chart of all queues and tasks; None if that is the one shown."""
        return self.url(queue="", task="") if self.queue or self.task else None

    @property
    def title(self) -> str:
        """The chart's heading, with the queue and the task it shows."""
        names = [str(TEXTS[self.period.key].title), *filter(None, [self.queue, self.task])]
        return " · ".join(names)

    def chart(self, database: str, minute: int, list_url: Callable[..., str | None]) -> Chart:
        """Return the chart, with links to the task list, in one statement. ``list_url`` is None for no links."""
        where = {"queue_name": self.queue, "task_name": self.task}
        where = {column: value for column, value in where.items() if value}
        column = GROUPINGS[self.by][1]
        history = attempt_history(database, minute, self.period, by=column, offset=_minutes_ahead(), **where)
        urls = attempt_urls(list_url(), history, **where)
        if column is None:
            return outcome_chart("attempts", self.title, history, urls)

        def url_of(name: str) -> str:
            return self.url(by="state", **{self.by: name})

        return grouped_chart("attempts", self.title, history, column, urls, url_of)


def _with_selected(names: Iterable[str], selected: str) -> list[str]:
    return list(dict.fromkeys([*names, *([selected] if selected else [])]))


def _minutes_ahead() -> int:
    """Return by how many minutes the reader's clock is ahead of UTC."""
    offset = localtime().utcoffset()
    return round(offset.total_seconds() / 60) if offset else 0
