"""The run times that tasks usually take, against which running ones are compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from ..core.histogram import merge, percentile
from ..core.status import AttemptOutcome
from ..db.expressions import NowPlus
from ..models import Rollup
from ..models.rollup import RollupSpan

#: The hours whose completed runs give the usual run time of a task.
HOURS: Final = 24
#: A task that runs for longer than this share of its time limit is near it.
NEAR_LIMIT: Final = 0.8
#: A task that runs for less than this many seconds is never marked as slow.
MIN_SLOW_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class UsualRunTime:
    """The 95th percentile in seconds of the completed runs of a task in the last day, and their number."""

    p95: float
    count: int

    def is_exceeded_by(self, seconds: float) -> bool:
        """Return whether a task that has run for so long takes longer than it usually does."""
        return seconds >= MIN_SLOW_SECONDS and seconds > self.p95


def usual_run_times(database: str | None, task_names: Collection[str]) -> dict[str, UsualRunTime]:
    """Return the usual run times of these tasks, as far as a reaper has counted their runs. Takes one statement."""
    if not task_names:
        return {}
    rows = Rollup.objects.using(database).filter(
        span=RollupSpan.HOUR,
        start__gt=NowPlus(-HOURS * 3_600),
        outcome=AttemptOutcome.COMPLETED,
        task_name__in=sorted(task_names),
    )
    runs: dict[str, list[Any]] = defaultdict(list)
    for name, histogram in rows.order_by().values_list("task_name", "runs"):
        runs[name].append(histogram)
    merged = {name: merge(histograms) for name, histograms in runs.items()}
    times = {name: (percentile(histogram, 0.95), sum(histogram.values())) for name, histogram in merged.items()}
    return {name: UsualRunTime(p95, count) for name, (p95, count) in times.items() if p95 is not None}
