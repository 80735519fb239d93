"""A chart: panels of series over buckets of time, its summary, its legend and its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _

from ...core.durations import format_brief
from .axis import time_label
from .panel import Kind, Panel, Series, Unit


@dataclass(frozen=True, slots=True)
class Chart:
    """Panels over the same buckets of time.

    Attributes:
        key: The prefix of its elements' ids, unique on its page.
        title: Its heading; the summary begins with it.
        starts: The start of each bucket.
        length: The length of each bucket.
        panels: From the top.
        empty_text: What the summary says if there are no values; by default that no attempts are counted.
    """

    key: str
    title: Any
    starts: Sequence[datetime]
    length: timedelta
    panels: Sequence[Panel]
    empty_text: Any = None

    @property
    def is_empty(self) -> bool:
        """Whether no series has a value other than 0."""
        return not any(series.total for panel in self.panels for series in panel.series)

    @property
    def has_links(self) -> bool:
        """Whether any bucket is a link."""
        return any(panel.urls or any(series.urls for series in panel.series) for panel in self.panels)

    @property
    def summary(self) -> str:
        """The chart in one or two sentences."""
        if self.is_empty:
            return f"{self.title}: {self.nothing}"
        words = [self._counts(), *(_lines_in_words(self, panel) for panel in self._panels_of(Unit.SECONDS))]
        return f"{self.title}: {' '.join(filter(None, words))}"

    @property
    def nothing(self) -> str:
        """The sentence for a chart without values."""
        return str(self.empty_text or _("no attempts counted."))

    def _panels_of(self, unit: Unit) -> list[Panel]:
        return [panel for panel in self.panels if panel.unit is unit]

    def _counts(self) -> str:
        panels = self._panels_of(Unit.COUNT)
        series = [(panel, one) for panel in panels for one in panel.series if one.total]
        if not series:
            return ""
        sums = [sum(one.values[at] or 0 for _panel, one in series) for at in range(len(self.starts))]
        peak = max(range(len(sums)), key=sums.__getitem__)
        totals = (f"{panel.format(one.total)} {one.full_label or one.label}" for panel, one in series)
        return _("%(counts)s. Peak at %(time)s: %(most)s.") % {
            "counts": ", ".join(totals),
            "time": self.time_at(peak),
            "most": panels[0].format(sums[peak]),
        }

    def time_at(self, at: int) -> str:
        """Return the start of a bucket in the reader's time zone."""
        return time_label(self.starts[at], self.length)

    def id_at(self, at: int, panel: int) -> str:
        """Return the id of a bucket's link, which stays the same when the chart moves on."""
        return f"horsies-{self.key}-{self.starts[at]:%Y%m%d%H%M}-{panel}"

    # The table.

    @property
    def has_panel_headings(self) -> bool:
        """Whether the table needs the panels' titles above those of the series."""
        labels = [str(series.label) for panel in self.panels for series in panel.series]
        return len(labels) > len(set(labels))

    @property
    def rows(self) -> list[tuple[str, list[tuple[str, str | None]]]]:
        """The table's rows: times with any value, the latest first, with the text and the URL of each cell.

        The cells of groups have no links, to keep the page small: the legend leads to a chart of each group alone.
        """
        series = [(panel, one) for panel in self.panels for one in panel.series]
        rows, has_links = [], not self.has_panel_headings
        for at in reversed(range(len(self.starts))):
            if any(one.values[at] for _panel, one in series):
                cells = [
                    (panel.format(one.values[at]), one.url_at(at) if has_links and one.values[at] else None)
                    for panel, one in series
                ]
                rows.append((self.time_at(at), cells))
        return rows

    # What stands below the picture.

    @property
    def legend(self) -> list[tuple[Kind, Series, str]]:
        """How each colour is drawn, its first series, and its totals. A colour in several panels is one entry."""
        entries: dict[str, tuple[Kind, Series, str]] = {}
        for panel in self.panels:
            for series in panel.series:
                total = panel.format(series.total) if panel.unit is Unit.COUNT else ""
                if total and self.has_panel_headings:
                    total = f"{total} {panel.title}" if series.total else ""
                kind, first, before = entries.get(series.key, (panel.kind, series, ""))
                entries[series.key] = (kind, first, ", ".join(filter(None, [before, total])))
        return list(entries.values())

    @property
    def thresholds(self) -> list[str]:
        """The values of the dashed lines."""
        return [format_brief(panel.threshold) for panel in self.panels if panel.threshold]


def _lines_in_words(chart: Chart, panel: Panel) -> str:
    """Return the highest and the latest value of each line."""
    texts = []
    for series in panel.series:
        known = [(value, at) for at, value in enumerate(series.values) if value is not None]
        if known:
            (most, at), (latest, last) = max(known), known[-1]
            texts.append(
                _("%(name)s at most %(most)s at %(time)s, last %(latest)s at %(last)s.")
                % {
                    "name": series.full_label or series.label,
                    "most": panel.format(most),
                    "time": chart.time_at(at),
                    "latest": panel.format(latest),
                    "last": chart.time_at(last),
                }
            )
    return " ".join(texts)
