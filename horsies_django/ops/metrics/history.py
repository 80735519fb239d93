"""The history of attempts, from the reaper's roll-ups."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Case, CharField, F, Sum, TextField, Value, When
from django.db.models.functions import Cast

from ...core.histogram import merge, percentile
from ...core.status import AttemptOutcome
from ...db.expressions import NowPlus
from ...db.statements import Statement, decode_rows, rows_query
from ...models import Rollup
from ...models.rollup import MINUTES, RollupSpan
from .latency import histogram_in
from .periods import Period

#: The outcome of an attempt: it completed, it is retried, or it failed for good.
COMPLETED, RETRIED, FAILED = "completed", "retried", "failed"
OUTCOMES: Final = (COMPLETED, RETRIED, FAILED)

#: Maximum number of groups with a name; the attempts of all others are one more group, ``OTHERS``.
MAX_GROUPS: Final = 8
OTHERS: Final = ""


@dataclass(slots=True)
class AttemptHistory:
    """The attempts that ended in each bucket of a period, by outcome and by group; without groups all are ``OTHERS``.

    The groups with names come first, the largest first.
    """

    starts: list[datetime]
    length: timedelta
    groups: dict[str, list[Counter[str]]]

    @property
    def names(self) -> list[str]:
        """The names of the groups; ``OTHERS`` is the last."""
        return list(self.groups)

    def values(self, *outcomes: str, group: str | None = None) -> list[int]:
        """Return the number of attempts with one of these outcomes in each bucket, of one group or of all."""
        groups = self.groups.values() if group is None else [self.groups[group]]
        return [sum(one[at][outcome] for one in groups for outcome in outcomes) for at in range(len(self.starts))]


@dataclass(slots=True)
class DurationHistory:
    """Histograms of the wait and run times of the attempts that ended in each bucket: ``waits``, ``runs`` or both."""

    starts: list[datetime]
    length: timedelta
    histograms: dict[str, list[Counter[int]]]

    def percentiles(self, which: str, share: float) -> list[float | None]:
        """Return a quantile in seconds for each bucket; None for one without attempts."""
        return [percentile(histogram, share) for histogram in self.histograms[which]]


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


def attempt_history(
    database: str | None, minute: int, period: Period, *, by: str | None = None, offset: int = 0, **where: Any
) -> AttemptHistory:
    """Return the attempts that ended in each bucket of ``period``, in one statement.

    Args:
        database: The database of the roll-ups.
        minute: The minutes since 1970 by the database's clock.
        period: The period.
        by: The column of roll-ups to group by: ``queue_name`` or ``task_name``.
        offset: The minutes by which the reader's clock is ahead of UTC, so that six hours begin at its midnight.
        where: Conditions on the columns of roll-ups, for example ``task_name="shop.ship"``.
    """
    starts = period.bucket_starts(minute, offset)
    rows = Rollup.objects.using(database).filter(span=period.span, start__gte=starts[0], **where).order_by()
    group: Any = Value(OTHERS, output_field=CharField())
    if by is not None:
        sums = rows.exclude(**{by: OTHERS}).values(by).annotate(total=Sum("count"))
        largest = sums.order_by("-total", by).values(by)[:MAX_GROUPS]
        group = Case(When(**{f"{by}__in": largest}, then=F(by)), default=group)
    columns = ("start", "group", "outcome", "will_retry")
    counted = defaultdict[str, list[Counter[str]]](lambda: [Counter() for _ in starts])
    for start, name, outcome, will_retry, count in (
        rows.annotate(group=group).values_list(*columns).annotate(Sum("count"))
    ):
        at = (start - starts[0]) // period.bucket_length
        if at < len(starts):
            counted[name][at][outcome_of(outcome, will_retry)] += count
    if by is None and OTHERS not in counted:
        counted[OTHERS] = [Counter() for _ in starts]
    totals = {name: sum(bucket.total() for bucket in buckets) for name, buckets in counted.items()}
    names = sorted(counted, key=lambda name: (name == OTHERS, -totals[name], name))
    return AttemptHistory(starts, period.bucket_length, {name: counted[name] for name in names})


def duration_history(
    database: str | None,
    minute: int,
    period: Period,
    which: Sequence[str] = ("waits", "runs"),
    *,
    offset: int = 0,
    **where: Any,
) -> DurationHistory:
    """Return the histograms of each bucket of ``period``, in one statement. Arguments: see :func:`attempt_history`.

    Each roll-up is read, so ``where`` should name one queue, one task or the like.
    """
    starts = period.bucket_starts(minute, offset)
    rows = Rollup.objects.using(database).filter(span=period.span, start__gte=starts[0], **where).order_by()
    found = {name: [Counter[int]() for _ in starts] for name in which}
    for start, *histograms in rows.values_list("start", *which):
        at = (start - starts[0]) // period.bucket_length
        if at < len(starts):
            for name, histogram in zip(which, histograms, strict=True):
                found[name][at].update(merge([histogram]))
    return DurationHistory(starts, period.bucket_length, found)


def ended_in_last(database: str, minutes: int) -> Counter[str]:
    """Return the attempts that ended in the last minutes, by outcome, as far as a reaper has counted them."""
    rows = _rollups_since(database, RollupSpan.MINUTE, minutes).order_by()
    ended: Counter[str] = Counter()
    for outcome, will_retry, count in rows.values_list("outcome", "will_retry").annotate(Sum("count")):
        ended[outcome_of(outcome, will_retry)] += count
    return ended


def queries(database: str) -> dict[str, Statement]:
    """Return the queries for the throughput of each queue, by name."""
    minutes = _rollups_since(database, RollupSpan.MINUTE, 60).order_by()
    counted = minutes.values("queue_name", "outcome", "will_retry").annotate(total=Sum("count"))
    hours = _rollups_since(database, RollupSpan.HOUR, 2).order_by()
    keys = {name: F(name) for name in ("queue_name", "outcome", "will_retry", "total")}
    return {
        "last hour": rows_query(counted, keys, database),
        "times": rows_query(
            hours, {"queue": F("queue_name"), **{name: Cast(name, TextField()) for name in ("waits", "runs")}}, database
        ),
    }


def throughput_by_queue(answers: Mapping[str, Any]) -> dict[str, Throughput]:
    """Return the throughput of each queue from the answers."""
    counts = defaultdict[str, Counter[str]](Counter)
    for queue, outcome, will_retry, count in decode_rows(answers["last hour"]):
        counts[queue][outcome_of(outcome, bool(will_retry))] += count
    waits, runs = defaultdict[str, list[Any]](list), defaultdict[str, list[Any]](list)
    for queue, wait, run in decode_rows(answers["times"]):
        waits[queue].append(histogram_in(wait))
        runs[queue].append(histogram_in(run))
    return {
        queue: Throughput(counts.get(queue, Counter()), *_median_and_p95(waits[queue]), *_median_and_p95(runs[queue]))
        for queue in {*counts, *waits}
    }


def _median_and_p95(histograms: list[Any]) -> tuple[float | None, float | None]:
    histogram = merge(histograms)
    return percentile(histogram, 0.5), percentile(histogram, 0.95)


def _rollups_since(database: str, span: RollupSpan, number: int) -> Any:
    """Return the roll-ups of the last ``number`` minutes or hours, including the one that began before."""
    seconds = number * MINUTES[span] * 60
    return Rollup.objects.using(database).filter(span=span, start__gt=NowPlus(-seconds))
