"""The trend of each queue's latency over the last hour, and since when a queue has been slower than its threshold."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import F, TextField
from django.db.models.functions import Cast

from ...core.histogram import merge, percentile
from ...db.expressions import MinuteOf
from ...db.statements import Statement, decode_rows, rows_query
from ...models.rollup import RollupSpan, start_of
from .history import rollups_in

#: Minutes in a trend.
MINUTES: Final = 60

#: Maximum roll-ups that are read for the trends of all queues, the latest first. Names may be generated,
#: and in an incident each minute has hundreds of error groups.
MAX_ROLLUPS: Final = 30_000

_NAME: Final = "latency trends"


@dataclass(frozen=True, slots=True)
class LatencyTrend:
    """The 95th percentile of the wait times in each of the last minutes, in seconds; None if no attempt ended in it."""

    second: float  # the end, in seconds since 1970 by the database's clock
    p95: Sequence[float | None] = (None,) * MINUTES

    @property
    def minute(self) -> int:
        """The last minute, in minutes since 1970."""
        return int(self.second // 60)

    @property
    def starts(self) -> list[datetime]:
        """The start of each minute."""
        return [start_of(self.minute - len(self.p95) + 1 + at) for at in range(len(self.p95))]

    def exceeded_since(self, waits: float, threshold: float) -> tuple[datetime, bool]:
        """Return since when the latency has exceeded ``threshold`` seconds, and whether it may be longer.

        The oldest due task has waited ``waits`` seconds.

        That is at least since that task had waited for ``threshold``. The minutes before it, the latest first, belong
        to the same run until one whose 95th percentile did not exceed it. Minutes without ended attempts are skipped.
        """
        first, last = self.minute - len(self.p95) + 1, self.minute
        # Rounded, because the clock was read a little earlier or later than the wait: times of schedules are whole
        # minutes, and would be now in this minute and now in the one before.
        since = min(last, round(self.second - (waits - threshold)) // 60)
        for minute in range(since, first - 1, -1):
            p95 = self.p95[minute - first]
            if p95 is None:
                continue
            if p95 <= threshold:
                return start_of(since), False
            since = minute
        return start_of(since), True


@dataclass(frozen=True, slots=True)
class LatencyWarning:
    """A queue whose oldest due task has waited longer than its ``latency_warning``. Times are in seconds.

    ``since``: since when, if its trend is known. ``is_at_least``: nothing shows that it did not before that.
    """

    queue: str
    waits: float
    threshold: float
    since: datetime | None = None
    is_at_least: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the dict that ``horsies_status --json`` prints."""
        return {
            "threshold": self.threshold,
            "since": self.since.isoformat() if self.since else None,
            "since_is_at_least": self.is_at_least if self.since else None,
        }


def latency_warning(
    queue: str, waits: float | None, threshold: timedelta | None, trend: LatencyTrend | None = None
) -> LatencyWarning | None:
    """Return a warning if the oldest due task has waited longer than the threshold; None if not, or without one."""
    if threshold is None or waits is None or waits <= (limit := threshold.total_seconds()):
        return None
    return LatencyWarning(queue, waits, limit, *(trend.exceeded_since(waits, limit) if trend else ()))


def queries(database: str) -> dict[str, Statement]:
    """Return the query for the wait times of the last minutes."""
    latest = rollups_in(database, RollupSpan.MINUTE, MINUTES).order_by("-start")[:MAX_ROLLUPS]
    columns = {"minute": MinuteOf("start"), "queue": F("queue_name"), "waits": Cast("waits", TextField())}
    return {_NAME: rows_query(latest, columns, database)}


def trends(answers: Mapping[str, Any], second: float) -> dict[str, LatencyTrend]:
    """Return the trend of each queue. Minutes beyond the roll-ups that are read are left out."""
    rows = decode_rows(answers[_NAME])
    cut = min((row[0] for row in rows), default=0) if len(rows) == MAX_ROLLUPS else 0
    minutes_by_queue = defaultdict[str, dict[int, dict[str, int]]](lambda: defaultdict(dict))
    for start, queue, waits in rows:
        if start > cut:
            histogram = minutes_by_queue[queue][start]
            for bucket, count in json.loads(waits).items():  # a Counter is too slow for so many small ones
                histogram[bucket] = histogram.get(bucket, 0) + count
    first = int(second // 60) - MINUTES + 1
    return {
        queue: LatencyTrend(second, [percentile(merge([minutes[first + at]]), 0.95) for at in range(MINUTES)])
        for queue, minutes in minutes_by_queue.items()
    }
