"""A panel of a chart: series on one linear scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ...core.durations import format_about
from ...core.numbers import format_number
from .axis import Axis, count_axis, duration_axis

#: Pixels of height of each interval of an axis.
INTERVAL: Final = 30


class Kind(StrEnum):
    """How a panel draws its series."""

    BARS = "bars"
    LINES = "lines"


class Unit(StrEnum):
    """What the values of a panel are: counts, or seconds from histograms."""

    COUNT = "count"
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True)
class Series:
    """One colour of a panel: a value for each bucket; None is no value.

    Attributes:
        key: The suffix of its CSS classes, ``horsies-chart-bar-…`` and the like, which give its colour: an outcome,
            ``p50``, ``p95``, ``0`` to ``7`` or ``other``.
        label: Its name in the legend and the table.
        values: Counts or seconds.
        urls: The URL of what each bucket counts; empty for no links.
        url: The URL behind the name in the legend.
        full_label: Its name in the summary, if the label alone is ambiguous there.
    """

    key: str
    label: Any
    values: Sequence[float | None]
    urls: Sequence[str | None] = ()
    url: str | None = None
    full_label: Any = None

    @property
    def total(self) -> float:
        """The sum of its values."""
        return sum(value or 0 for value in self.values)

    def url_at(self, at: int) -> str | None:
        """Return the URL of a bucket."""
        return self.urls[at] if self.urls else None


@dataclass(frozen=True, slots=True)
class Panel:
    """Series on one scale, which begins at 0.

    Attributes:
        title: A short text above the panel; empty for none.
        series: The first is the lowest of a stack of bars.
        intervals: The maximum number of intervals between grid lines, which sets the height.
        threshold: A value that is marked by a dashed line.
        urls: The URL of all series of a bucket; empty if those of its series suffice.
    """

    title: Any
    series: Sequence[Series]
    kind: Kind = Kind.BARS
    unit: Unit = Unit.COUNT
    intervals: int = 5
    threshold: float | None = None
    urls: Sequence[str | None] = ()

    @property
    def height(self) -> int:
        """The height in pixels."""
        return self.intervals * INTERVAL

    @property
    def axis(self) -> Axis:
        """The scale."""
        highest = max([self.highest, self.threshold or 0.0])
        return (count_axis if self.unit is Unit.COUNT else duration_axis)(highest, self.intervals)

    @property
    def highest(self) -> float:
        """The largest value, or the highest stack of bars."""
        if self.kind is Kind.BARS:
            columns = zip(*(series.values for series in self.series), strict=True)
            return max((sum(value or 0 for value in column) for column in columns), default=0.0)
        return max((value for series in self.series for value in series.values if value is not None), default=0.0)

    def format(self, value: float | None) -> str:
        """Return a value with its unit."""
        if value is None:
            return "-"
        return format_number(value) if self.unit is Unit.COUNT else format_about(value)

    def text_at(self, at: int) -> str:
        """Return the values of one bucket in words; empty if there are none."""
        texts = []
        for series in self.series:
            value = series.values[at]
            if self.unit is Unit.COUNT and value:
                texts.append(f"{self.format(value)} {series.label}")
            elif self.unit is Unit.SECONDS and value is not None:
                texts.append(f"{series.label} {self.format(value)}")
        return ", ".join(texts)

    def url_at(self, at: int) -> str | None:
        """Return the URL of a bucket."""
        if self.urls:
            return self.urls[at]
        return self.series[0].url_at(at) if len(self.series) == 1 else None
