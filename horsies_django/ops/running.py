"""The tasks that workers hold now, with the run times that their tasks usually take.

The tasks are read by the index of held rows, which has no more rows than the workers have slots.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.db.models import Count, QuerySet

from ..core.histogram import merge, percentile
from ..core.status import AttemptOutcome, TaskStatus
from ..db.expressions import NowPlus, SecondsUntil
from ..models import Rollup, Task
from ..models.rollup import RollupSpan
from .payload_view.contents import PARTS
from .payload_view.excerpt import with_short_arguments

#: Maximum number of tasks that are read.
MAX_SHOWN: Final = 200

#: The hours whose completed runs give the usual run time of a task.
HOURS: Final = 24

#: A task that runs for longer than this share of its time limit is near it.
NEAR_LIMIT: Final = 0.8

#: A task that runs for less than this many seconds is never marked as slow.
MIN_SLOW_SECONDS: Final = 1.0

#: The columns that may be filtered, by the names of the parameters of the task list.
FILTERS: Final = {"queue_name": "queue_name", "task_name": "task_name", "worker": "claimed_by_worker_id"}


@dataclass(frozen=True, slots=True)
class UsualRunTime:
    """The 95th percentile in seconds of the completed runs of a task in the last day, and their number."""

    p95: float
    count: int


@dataclass(slots=True)
class HeldCounts:
    """The number of held tasks by status, of those that match the filters, and by the values of each filter."""

    statuses: Counter[str] = field(default_factory=Counter)
    choices: Mapping[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in FILTERS})


def count_held(database: str | None, chosen: Mapping[str, str]) -> HeldCounts:
    """Count all held tasks by the values of each filter, and those that match ``chosen`` by status. One statement."""
    found = HeldCounts()
    columns = ("status", *FILTERS.values())
    rows = Task.objects.using(database).active().order_by().values_list(*columns).annotate(Count("pk"))
    for status, *values, count in rows:
        known = dict(zip(FILTERS, (value or "" for value in values), strict=True))
        for name, value in known.items():
            found.choices[name][value] += count
        if all(known[name] == value for name, value in chosen.items()):
            found.statuses[status] += count
    return found


def held_tasks(database: str | None, chosen: Mapping[str, str]) -> list[Any]:
    """Return the first ``MAX_SHOWN`` held tasks that match ``chosen``: started ones first, the longest running first.

    Each has ``runs_in`` and ``claimed_in``, the seconds until its start and claim, which are negative, and the
    beginning of its arguments. Takes one statement.
    """
    rows: QuerySet[Any] = Task.objects.using(database).active()
    rows = rows.filter(**{FILTERS[name]: value for name, value in chosen.items()}).defer(*PARTS, "retry_policy")
    rows = rows.annotate(runs_in=SecondsUntil("started_at"), claimed_in=SecondsUntil("claimed_at"))
    return list(with_short_arguments(rows).order_by("-status", "started_at", "claimed_at", "pk")[:MAX_SHOWN])


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
    known = {name: (percentile(histogram, 0.95), sum(histogram.values())) for name, histogram in merged.items()}
    return {name: UsualRunTime(p95, count) for name, (p95, count) in known.items() if p95 is not None}


def is_slow(seconds: float, usual: UsualRunTime | None) -> bool:
    """Return whether a task has run for longer than it usually does."""
    return usual is not None and seconds >= MIN_SLOW_SECONDS and seconds > usual.p95


def is_near_limit(seconds: float, timeout: float | None) -> bool:
    """Return whether a task has used most of its time limit, in seconds."""
    return bool(timeout) and timeout is not None and seconds >= NEAR_LIMIT * timeout


def is_started(task: Any) -> bool:
    """Return whether the body of a held task has started."""
    return bool(task.status == TaskStatus.RUNNING and task.started_at is not None)
