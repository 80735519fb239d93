"""What the roll-ups know of names: their attempts, and which tasks ran longest."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final

from django.db.models import F, FloatField, Q, Subquery, Sum
from django.db.models.functions import Cast, Coalesce

from ...core.histogram import merge, percentile
from ...core.status import AttemptOutcome
from ...db.expressions import NowPlus
from ...models import Rollup
from ...models.operator_actions import ENGINE_TASK_PREFIX
from ...models.rollup import RollupSpan
from .history import rollups_in

#: How far back names are read, in days, and at most how many of the newest roll-ups.
MAX_DAYS: Final = 35
MAX_ROLLUPS: Final = 20_000

#: Maximum number of the busiest names, and of roll-ups whose run times are read for them, the newest first.
MAX_NAMES: Final = 200
MAX_HISTOGRAMS: Final = 20_000

#: The numbers by which the busiest names can be ordered; the default is the last.
NAME_ORDERS: Final = ("attempts", "failed", "p95", "seconds")

_DAY: Final = 86_400
_IS_FAILURE: Final = ~Q(outcome=AttemptOutcome.COMPLETED)


@dataclass(frozen=True, slots=True)
class KnownNames:
    """Names, each with the attempts that ended in the last 24 hours; of an error code, those that failed with it."""

    queues: Counter[str] = field(default_factory=Counter)
    tasks: Counter[str] = field(default_factory=Counter)
    error_codes: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class NameCount:
    """The attempts of one task name in the last 24 hours, the 95th percentile of their run times, and the sum of these.

    Times are in seconds.
    """

    name: str
    attempts: int
    failed: int
    run_p95: float | None
    run_seconds: float


def known_names(database: str) -> KnownNames:
    """Return the names, in one statement that reads a bounded number of roll-ups.

    The names of the newest hours, and those that the totals of all time have. Leaves out the workflow engine's tasks.
    """
    rollups = Rollup.objects.using(database).order_by()
    starts = rollups.filter(span=RollupSpan.HOUR).order_by("-start").values("start")
    # The hour in which the bound is reached is left out, so that its names are not a part of them by chance.
    since = Coalesce(Subquery(starts[MAX_ROLLUPS : MAX_ROLLUPS + 1]), NowPlus(-MAX_DAYS * _DAY))
    recent = Q(span=RollupSpan.HOUR, start__gt=since, pk__isnull=False) & Q(start__gt=NowPlus(-MAX_DAYS * _DAY))
    last_day = Sum("count", filter=Q(span=RollupSpan.HOUR, start__gt=NowPlus(-_DAY)), default=0)
    groups = rollups.filter(recent | Q(span=RollupSpan.TOTAL)).values_list("queue_name", "task_name", "error_code")
    name_counts = KnownNames()
    for queue, task, code, count in groups.annotate(attempts=last_day):
        name_counts.queues[queue] += count
        if not task.startswith(ENGINE_TASK_PREFIX):
            name_counts.tasks[task] += count
        name_counts.error_codes[code] += count
    for names in (name_counts.queues, name_counts.tasks, name_counts.error_codes):
        names.pop("", None)
    return name_counts


def busiest_names(database: str, order: str = NAME_ORDERS[-1]) -> list[NameCount]:
    """Return the first ``MAX_NAMES`` task names of the last 24 hours in one of ``NAME_ORDERS``, the largest first.

    If there are more, those with the longest mean run time are ordered by ``p95``. Takes two statements; the second
    reads the newest ``MAX_HISTOGRAMS`` histograms of these names.
    """
    rows = rollups_in(database, RollupSpan.HOUR, 24).exclude(
        Q(task_name="") | Q(task_name__startswith=ENGINE_TASK_PREFIX)
    )
    sums = (
        rows.values("task_name")
        .annotate(
            attempts=Sum("count"),
            failed=Sum("count", filter=_IS_FAILURE, default=0),
            seconds=Cast(Sum("run_seconds"), FloatField()),
            mean=F("seconds") / F("attempts"),
        )
        .order_by("-mean" if order == "p95" else f"-{order}", "task_name")
    )
    top_rows = list(sums.values_list("task_name", "attempts", "failed", "seconds")[:MAX_NAMES])
    histograms = defaultdict[str, Counter[int]](Counter)
    runs = rows.filter(task_name__in=[name for name, *_ in top_rows]).order_by("-start")
    for name, histogram in runs.values_list("task_name", "runs")[:MAX_HISTOGRAMS]:
        histograms[name].update(merge([histogram]))
    names = [
        NameCount(name, attempts, failed, percentile(histograms[name], 0.95), seconds)
        for name, attempts, failed, seconds in top_rows
    ]
    return sorted(names, key=lambda count: -(count.run_p95 or 0.0)) if order == "p95" else names
