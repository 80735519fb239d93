"""The history of attempts, from the reaper's roll-ups, and up to when these count them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import F, QuerySet, Sum, TextField
from django.db.models.functions import Cast

from ...core.histogram import merge, percentile
from ...core.status import AttemptOutcome
from ...db.expressions import NowPlus, SecondOf, SecondsUntil
from ...db.now import Now
from ...db.statements import Statement, decode_rows, rows_query, run_queries, scalar
from ...models import Rollup
from ...models.rollup import MINUTES, RollupSpan, start_of
from ...reaper.rollup import SETTLE_DELAY, uncounted

#: The outcome of an attempt: it completed, it is retried, or it failed for good.
COMPLETED, RETRIED, FAILED = "completed", "retried", "failed"
OUTCOMES: Final = (COMPLETED, RETRIED, FAILED)


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
        """The length of a bucket."""
        return timedelta(minutes=MINUTES[self.span] * self.merged)

    def starts(self, minute: int, offset: int = 0) -> list[datetime]:
        """Return the start of each bucket. ``minute`` is the database's time in minutes since 1970.

        Buckets begin at multiples of their length, counted from ``offset`` minutes before 1970. So the last one may end
        later than now, and the first one may begin later than the period.
        """
        span = MINUTES[self.span]
        length, ahead = span * self.merged, offset // span * span
        last = (minute + ahead) // length * length - ahead
        return [start_of(last - length * ago) for ago in reversed(range(self.number // self.merged))]


HOUR: Final = Period("1h", RollupSpan.MINUTE, 60)
DAY: Final = Period("24h", RollupSpan.HOUR, 24)
WEEK: Final = Period("7d", RollupSpan.HOUR, 168, 6)

#: The periods by their key.
PERIODS: Final[Mapping[str, Period]] = {
    period.key: period for period in (Period("5m", RollupSpan.MINUTE, 5), HOUR, DAY, WEEK)
}


@dataclass(slots=True)
class History:
    """The attempts that ended in each bucket of a period, by outcome.

    ``waits`` and ``runs`` are the histograms of their wait and run times, if they were read.
    """

    starts: list[datetime]
    length: timedelta
    attempts: list[Counter[str]]
    times: dict[str, list[Counter[int]]]

    def values(self, outcome: str) -> list[int]:
        """Return the number of attempts with this outcome in each bucket."""
        return [bucket[outcome] for bucket in self.attempts]

    @property
    def totals(self) -> Counter[str]:
        """The number of attempts by outcome."""
        return sum(self.attempts, Counter())

    def percentiles(self, which: str, share: float) -> list[float | None]:
        """Return a quantile of ``waits`` or ``runs`` in seconds for each bucket; None for one without attempts."""
        return [percentile(histogram, share) for histogram in self.times[which]]

    def percentile(self, which: str, share: float) -> float | None:
        """Return a quantile of all ``waits`` or ``runs`` in seconds; None without attempts."""
        return percentile(sum(self.times[which], Counter()), share)


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


def outcome_of(outcome: str, will_retry: bool) -> str:
    """Return the outcome of an attempt."""
    if outcome == AttemptOutcome.COMPLETED:
        return COMPLETED
    return RETRIED if will_retry else FAILED


def rollups_in(database: str | None, span: RollupSpan, number: int, **where: Any) -> QuerySet[Rollup, Any]:
    """Return the roll-ups of the last ``number`` minutes or hours, the current one included, none that begins later.

    ``where`` are conditions on their columns, for example ``task_name="shop.ship"``.
    """
    rows: QuerySet[Rollup, Any] = Rollup.objects.using(database).filter(
        span=span, start__gt=NowPlus(-60 * MINUTES[span] * number), start__lte=Now(), **where
    )
    return rows.order_by()


def count_by_outcome(rows: QuerySet[Rollup, Any], *columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield the values of these columns, an outcome, and the number of attempts. Takes one statement."""
    counted = rows.values_list(*columns, "outcome", "will_retry").annotate(Sum("count"))
    for *values, outcome, will_retry, count in counted:
        yield (*values, outcome_of(outcome, will_retry), count)


def attempt_history(
    database: str | None, minute: int, period: Period, times: Sequence[str] = (), *, offset: int = 0, **where: Any
) -> History:
    """Return the attempts that ended in each bucket of ``period``, in one statement.

    Args:
        database: The database of the roll-ups.
        minute: The minutes since 1970 by the database's clock.
        period: The period.
        times: ``waits``, ``runs`` or both. If any, each roll-up is read, so ``where`` should name one queue or task.
        offset: The minutes by which the reader's clock is ahead of UTC, so that six hours begin at its midnight.
        where: Conditions on the columns of roll-ups, for example ``task_name="shop.ship"``.
    """
    starts = period.starts(minute, offset)
    history = History(starts, period.bucket_length, [Counter() for _ in starts], {})
    history.times = {name: [Counter() for _ in starts] for name in times}
    rows = Rollup.objects.using(database).filter(span=period.span, start__gte=starts[0], **where).order_by()
    for start, outcome, count, *histograms in _with_times(rows, times) if times else count_by_outcome(rows, "start"):
        at = (start - starts[0]) // period.bucket_length
        if at < len(starts):
            history.attempts[at][outcome] += count
            for name, histogram in zip(times, histograms, strict=True):
                history.times[name][at].update(merge([histogram]))
    return history


def _with_times(rows: QuerySet[Rollup, Any], times: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for start, outcome, will_retry, *others in rows.values_list("start", "outcome", "will_retry", "count", *times):
        yield (start, outcome_of(outcome, will_retry), *others)


# Up to when attempts are counted.


def max_lag(reaper_interval: float) -> float:
    """Return the seconds that roll-ups may be behind before pages and commands say so: two intervals of the reaper."""
    return 2 * reaper_interval + SETTLE_DELAY


@dataclass(frozen=True, slots=True)
class RollupClock:
    """The time by the database's clock, in seconds since 1970, and how many seconds the roll-ups are behind it."""

    second: float
    lag: float

    @property
    def minute(self) -> int:
        """The minutes since 1970."""
        return int(self.second // 60)


def rollup_clock(database: str | None) -> RollupClock:
    """Read the database's clock and the lag, in one statement."""
    rows = Rollup.objects.using(database)
    answers = run_queries(rows.db, {"second": scalar(SecondOf(Now()), rows), "lag": lag_query(rows.db)})
    return RollupClock(float(answers["second"]), lag_of(answers["lag"]))


def lag_query(database: str) -> Statement:
    """Return the query for the end of the first attempt that is not counted."""
    return Statement.part(uncounted(database).order_by("pk").values_list(SecondsUntil("finished_at"))[:1])


def lag_of(answer: Any) -> float:
    """Return the seconds since that end; 0 if all attempts are counted."""
    return 0.0 if answer is None else max(0.0, -float(answer))


# The throughput of all queues, as a part of the snapshot.


def queries(database: str) -> dict[str, Statement]:
    """Return the queries for the throughput of each queue, by name."""
    counted = rollups_in(database, RollupSpan.MINUTE, 60).values("queue_name", "outcome", "will_retry")
    keys = {name: F(name) for name in ("queue_name", "outcome", "will_retry", "total")}
    times = {"queue": F("queue_name"), **{name: Cast(name, TextField()) for name in ("waits", "runs")}}
    return {
        "last hour": rows_query(counted.annotate(total=Sum("count")), keys, database),
        "times": rows_query(rollups_in(database, RollupSpan.HOUR, 2), times, database),
    }


def throughput_by_queue(answers: Mapping[str, Any]) -> dict[str, Throughput]:
    """Return the throughput of each queue from the answers."""
    throughput = defaultdict[str, Throughput](Throughput)
    for queue, outcome, will_retry, count in decode_rows(answers["last hour"]):
        throughput[queue].counts[outcome_of(outcome, bool(will_retry))] += count
    waits, runs = defaultdict[str, list[Any]](list), defaultdict[str, list[Any]](list)
    for queue, wait, run in decode_rows(answers["times"]):
        waits[queue].append(json.loads(wait))
        runs[queue].append(json.loads(run))
    for queue in waits:
        throughput[queue].wait_p50, throughput[queue].wait_p95 = _median_and_p95(waits[queue])
        throughput[queue].run_p50, throughput[queue].run_p95 = _median_and_p95(runs[queue])
    return dict(throughput)


def _median_and_p95(histograms: Collection[Mapping[str, int]]) -> tuple[float | None, float | None]:
    histogram = merge(histograms)
    return percentile(histogram, 0.5), percentile(histogram, 0.95)
