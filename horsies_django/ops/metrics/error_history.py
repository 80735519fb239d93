"""The failures of one error group over time, and since when it has been failing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from django.db.models import Sum

from ...models import ErrorGroup
from ...models.rollup import RollupSpan, minute_of
from .errors import FailureCounts, failures_in
from .history import FAILED, RETRIED, outcome_of
from .periods import WEEK, Period

#: A run of failures ends before a pause of this many whole hours.
PAUSE_HOURS: Final = 2

#: Every minute that roll-ups are kept for.
_MINUTES: Final = Period("3h", RollupSpan.MINUTE, 180)


@dataclass(slots=True)
class FailureBucket:
    """The failed attempts of some minutes or hours by outcome: retried or failed."""

    start: datetime
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class FailureRun:
    """The latest run of failures: failures without a pause of ``PAUSE_HOURS`` whole hours.

    Attributes:
        since: When it began: the minute or, longer than three hours ago, the hour.
        is_to_the_hour: Whether only the hour is known.
        is_longer: Whether it began before the longest period.
    """

    since: datetime
    is_to_the_hour: bool = False
    is_longer: bool = False


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """Failed attempts of one group by minute and by hour, the oldest first."""

    minutes: Sequence[FailureBucket]
    hours: Sequence[FailureBucket]

    def buckets(self, period: Period) -> Sequence[FailureBucket]:
        """Return the minutes or hours of a period."""
        return (self.minutes if period.span == RollupSpan.MINUTE else self.hours)[-period.number :]

    def merged(self, period: Period) -> list[FailureBucket]:
        """Return the minutes or hours of a period, merged into buckets, the last of which ends with the current one."""
        buckets, size = self.buckets(period), period.merged
        parts = [buckets[at : at + size] for at in range(0, len(buckets), size)]
        return [FailureBucket(part[0].start, sum((one.counts for one in part), Counter())) for part in parts]

    def counts(self, period: Period) -> FailureCounts:
        """Return the failed attempts in a period."""
        total: Counter[str] = sum((bucket.counts for bucket in self.buckets(period)), Counter())
        return FailureCounts(total[RETRIED], total[FAILED])

    def latest_run(self, group: ErrorGroup) -> FailureRun | None:
        """Return the latest run of failures; None if the longest period has none."""
        failing = [at for at, hour in enumerate(self.hours) if hour.counts]
        if not failing:
            return None
        first = failing[-1]
        for at in reversed(failing):
            if first - at > PAUSE_HOURS:
                break
            first = at
        since = self.hours[first].start
        if group.first_seen_at is not None and since <= group.first_seen_at < since + timedelta(hours=1):
            return FailureRun(group.first_seen_at)
        if first < PAUSE_HOURS:
            return FailureRun(since, is_to_the_hour=True, is_longer=True)
        if since >= self.minutes[0].start:
            minutes = (minute.start for minute in self.minutes if minute.counts and minute.start >= since)
            return FailureRun(next(minutes, since))
        return FailureRun(since, is_to_the_hour=True)


def group_history(database: str, fingerprint: str, now: datetime) -> GroupHistory:
    """Read the history of one group, in two statements. ``now`` is the database's time."""
    return GroupHistory(*(_buckets(database, fingerprint, period, now) for period in (_MINUTES, WEEK)))


def _buckets(database: str, fingerprint: str, period: Period, now: datetime) -> list[FailureBucket]:
    buckets = {start: FailureBucket(start) for start in period.starts(minute_of(now))}
    rows = failures_in(database, period).filter(fingerprint=fingerprint)
    for start, outcome, will_retry, count in rows.values_list("start", "outcome", "will_retry").annotate(Sum("count")):
        if start in buckets:
            buckets[start].counts[outcome_of(outcome, will_retry)] += count
    return list(buckets.values())
