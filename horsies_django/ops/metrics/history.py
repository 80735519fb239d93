"""The history of attempts, from the reaper's roll-ups."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db.models import Q, Sum

from ...core.histogram import merge, percentile
from ...core.status import AttemptOutcome
from ...db.expressions import NowPlus
from ...models import Rollup
from ...models.rollup import MINUTES, RollupSpan, start_of

#: The outcome of an attempt: it completed, it is retried, or it failed for good.
COMPLETED, RETRIED, FAILED = "completed", "retried", "failed"
OUTCOMES: Final = (COMPLETED, RETRIED, FAILED)

_FAILURES: Final = sorted(set(AttemptOutcome) - {AttemptOutcome.COMPLETED})


@dataclass(slots=True)
class TimeBucket:
    """The attempts that ended in one minute or hour, by outcome."""

    start: datetime
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Throughput:
    """The throughput of a queue: attempts that ended in the last hour by outcome, and percentiles of times.

    Percentiles cover this hour and the one before, in seconds.
    """

    counts: Counter[str] = field(default_factory=Counter)
    wait_p50: float | None = None
    wait_p95: float | None = None
    run_p50: float | None = None
    run_p95: float | None = None


@dataclass(frozen=True, slots=True)
class FailingTask:
    """A task and an error code, with the number of failed attempts."""

    task_name: str
    error_code: str
    count: int
    retried: int


def outcome_of(outcome: str, will_retry: bool) -> str:
    """Return the outcome of an attempt."""
    if outcome == AttemptOutcome.COMPLETED:
        return COMPLETED
    return RETRIED if will_retry else FAILED


def last_hour(database: str, minute: int) -> tuple[list[TimeBucket], dict[str, Counter[str]]]:
    """Return the attempts of the last 60 minutes up to ``minute`` of the database's clock, per minute and per queue."""
    rows = _rollups_since(database, RollupSpan.MINUTE, 60).order_by()
    bars, queues = _empty_buckets(RollupSpan.MINUTE, 60, minute), defaultdict[str, Counter[str]](Counter)
    columns = ("start", "queue_name", "outcome", "will_retry")
    for start, queue, outcome, will_retry, count in rows.values_list(*columns).annotate(Sum("count")):
        result = outcome_of(outcome, will_retry)
        if start in bars:
            bars[start].counts[result] += count
            queues[queue][result] += count
    return list(bars.values()), queues


def ended_in_last(database: str, minutes: int) -> Counter[str]:
    """Return the attempts that ended in the last minutes, by outcome, as far as a reaper has counted them."""
    rows = _rollups_since(database, RollupSpan.MINUTE, minutes).order_by()
    ended: Counter[str] = Counter()
    for outcome, will_retry, count in rows.values_list("outcome", "will_retry").annotate(Sum("count")):
        ended[outcome_of(outcome, will_retry)] += count
    return ended


def last_week(database: str, minute: int) -> list[TimeBucket]:
    """Return the attempts of each of the last 168 hours."""
    rows, bars = _rollups_since(database, RollupSpan.HOUR, 168).order_by(), _empty_buckets(RollupSpan.HOUR, 168, minute)
    for start, outcome, will_retry, count in rows.values_list("start", "outcome", "will_retry").annotate(Sum("count")):
        if start in bars:
            bars[start].counts[outcome_of(outcome, will_retry)] += count
    return list(bars.values())


def merge_buckets(bars: Sequence[TimeBucket], number: int) -> list[TimeBucket]:
    """Merge each ``number`` consecutive buckets into one."""
    parts = [bars[at : at + number] for at in range(0, len(bars), number)]
    return [TimeBucket(part[0].start, sum((bar.counts for bar in part), Counter())) for part in parts]


def throughput_by_queue(database: str, hour: dict[str, Counter[str]]) -> dict[str, Throughput]:
    """Return the throughput of each queue, given its attempts of the last hour."""
    waits, runs = defaultdict[str, list[Any]](list), defaultdict[str, list[Any]](list)
    for queue, wait, run in _rollups_since(database, RollupSpan.HOUR, 2).values_list("queue_name", "waits", "runs"):
        waits[queue].append(wait)
        runs[queue].append(run)
    return {
        queue: Throughput(hour.get(queue, Counter()), *_median_and_p95(waits[queue]), *_median_and_p95(runs[queue]))
        for queue in {*hour, *waits}
    }


def most_failing(database: str, limit: int = 10) -> list[FailingTask]:
    """Return the tasks and error codes with the most failed attempts of the last day, retried ones included."""
    rows = _rollups_since(database, RollupSpan.HOUR, 24).filter(outcome__in=_FAILURES).order_by()
    sums = rows.values_list("task_name", "error_code").annotate(
        total=Sum("count"), again=Sum("count", filter=Q(will_retry=True))
    )
    return [
        FailingTask(name, code, n, again or 0) for name, code, n, again in sums.order_by("-total", "task_name")[:limit]
    ]


def _median_and_p95(histograms: list[Any]) -> tuple[float | None, float | None]:
    histogram = merge(histograms)
    return percentile(histogram, 0.5), percentile(histogram, 0.95)


def _rollups_since(database: str, span: RollupSpan, number: int) -> Any:
    """Return the roll-ups of the last ``number`` minutes or hours, including the one that began before."""
    seconds = number * MINUTES[span] * 60
    return Rollup.objects.using(database).filter(span=span, start__gt=NowPlus(-seconds))


def _empty_buckets(span: RollupSpan, number: int, minute: int) -> dict[datetime, TimeBucket]:
    """Return empty buckets up to ``minute`` of the database's clock, by their start."""
    length = MINUTES[span]
    last = minute // length
    starts = [start_of(at * length) for at in range(last - number + 1, last + 1)]
    return {start: TimeBucket(start) for start in starts}
