"""The periods up to now that reports and charts of roll-ups cover."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from ...models.rollup import MINUTES, RollupSpan, start_of


@dataclass(frozen=True, slots=True)
class Period:
    """The last ``number`` roll-ups of one span, including the current one. Each bucket of a chart has ``merged``."""

    key: str
    span: RollupSpan
    number: int
    merged: int = 1

    @property
    def seconds(self) -> int:
        """Its length in seconds."""
        return self.number * MINUTES[self.span] * 60

    @property
    def bucket_length(self) -> timedelta:
        """The length of a bucket of a chart."""
        return timedelta(minutes=MINUTES[self.span] * self.merged)

    def starts(self, minute: int) -> list[datetime]:
        """Return the start of each roll-up. ``minute`` is the database's time in minutes since 1970."""
        return self._starts(minute, 1, 0)

    def bucket_starts(self, minute: int, offset: int = 0) -> list[datetime]:
        """Return the start of each bucket of a chart.

        Buckets begin at multiples of their length, counted from ``offset`` minutes before 1970. So the last one may end
        later than now, and the first one may begin later than the period.
        """
        return self._starts(minute, self.merged, offset)

    def _starts(self, minute: int, merged: int, offset: int) -> list[datetime]:
        span = MINUTES[self.span]
        length, ahead = span * merged, offset // span * span
        last = (minute + ahead) // length * length - ahead
        return [start_of(last - length * ago) for ago in reversed(range(self.number // merged))]


HOUR: Final = Period("1h", RollupSpan.MINUTE, 60)
DAY: Final = Period("24h", RollupSpan.HOUR, 24)
WEEK: Final = Period("7d", RollupSpan.HOUR, 168, 6)

#: The periods by their key.
PERIODS: Final[Mapping[str, Period]] = {
    period.key: period for period in (Period("5m", RollupSpan.MINUTE, 5), HOUR, DAY, WEEK)
}
