"""What is known of task names from the reaper's roll-ups: their failures, and which of them ran longest."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import F, FloatField, Q, Sum
from django.db.models.functions import Cast

from ...core.histogram import merge, percentile
from ...core.status import AttemptOutcome
from ...models import ErrorGroup, Rollup
from ...models.operator_actions import ENGINE_TASK_PREFIX
from ...models.rollup import RollupSpan
from .periods import DAY, Period

#: Maximum number of names in the list.
MAX_NAMES: Final = 200

#: Maximum number of roll-ups whose run times are read for the list, the newest first. Error groups may be many.
MAX_HISTOGRAMS: Final = 20_000

#: Maximum number of errors of one name.
MAX_ERRORS: Final = 20

_IS_FAILURE: Final = ~Q(outcome=AttemptOutcome.COMPLETED)


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """The failed attempts with one error group; those without one are counted by error code, and ``group`` is None."""

    error_code: str
    count: int
    retried: int
    group: ErrorGroup | None


def errors_of(database: str, task_name: str, period: Period, since: datetime) -> list[ErrorCount]:
    """Return the most frequent errors of a task name since then, in two statements at most."""
    rows = Rollup.objects.using(database).filter(span=period.span, start__gte=since, task_name=task_name)
    sums = (
        rows.filter(_IS_FAILURE)
        .order_by()
        .values("fingerprint", "error_code")
        .annotate(total=Sum("count"), again=Sum("count", filter=Q(will_retry=True), default=0))
        .order_by("-total", "error_code", "fingerprint")
    )
    found = list(sums.values_list("fingerprint", "error_code", "total", "again")[:MAX_ERRORS])
    keys = [fingerprint for fingerprint, *_ in found if fingerprint]
    groups = ErrorGroup.objects.using(database).in_bulk(keys) if keys else {}
    return [ErrorCount(code, count, again, groups.get(fingerprint)) for fingerprint, code, count, again in found]


#: The numbers by which the names can be ordered; the default is the last.
NAME_ORDERS: Final = ("attempts", "failed", "p95", "seconds")


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


def busiest_names(database: str, minute: int, order: str = NAME_ORDERS[-1]) -> list[NameCount]:
    """Return the first ``MAX_NAMES`` task names of the last 24 hours in one of ``NAME_ORDERS``, the largest first.

    If there are more, those with the longest mean run time are ordered by ``p95``. ``minute`` is the current one. Takes
    two statements; the second reads the newest ``MAX_HISTOGRAMS`` histograms of these names.
    """
    since = DAY.starts(minute)[0]
    rows: Any = (
        Rollup.objects.using(database)
        .filter(span=RollupSpan.HOUR, start__gte=since)
        .exclude(Q(task_name="") | Q(task_name__startswith=ENGINE_TASK_PREFIX))
        .order_by()
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
    found = list(sums.values_list("task_name", "attempts", "failed", "seconds")[:MAX_NAMES])
    histograms = defaultdict[str, Counter[int]](Counter)
    runs = rows.filter(task_name__in=[name for name, *_ in found]).order_by("-start")
    for name, histogram in runs.values_list("task_name", "runs")[:MAX_HISTOGRAMS]:
        histograms[name].update(merge([histogram]))
    names = [
        NameCount(name, attempts, failed, percentile(histograms[name], 0.95), seconds)
        for name, attempts, failed, seconds in found
    ]
    return sorted(names, key=lambda count: -(count.run_p95 or 0.0)) if order == "p95" else names
