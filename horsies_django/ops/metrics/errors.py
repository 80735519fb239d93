"""What fails most: failed attempts by error group within a period, and since when a group has been failing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import OuterRef, Q, QuerySet, Subquery, Sum

from ...core.registry import registry
from ...core.status import AttemptOutcome
from ...db.now import Now
from ...models import ErrorGroup, Rollup
from ...models.rollup import RollupSpan, minute_of
from .history import RETRIED, WEEK, Period, count_by_outcome, rollups_in

#: Maximum error groups in a report; the others are counted in one number.
MAX_GROUPS: Final = 50

#: Maximum pairs of task and queue that are read, for the groups of a report together.
MAX_PLACES: Final = 1_000

#: A run of failures ends before a pause of this many whole hours.
PAUSE_HOURS: Final = 2

#: The columns of a group that a report reads.
_GROUP_COLUMNS: Final = ("exception_class", "error_code", "location", "first_seen_at", "last_seen_at")

_FAILURES: Final = sorted(set(AttemptOutcome) - {AttemptOutcome.COMPLETED})


@dataclass(frozen=True, slots=True)
class FailureCounts:
    """Failed attempts: those that were retried, and those after which the task had failed."""

    retried: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        """All failed attempts."""
        return self.retried + self.failed

    def __add__(self, other: FailureCounts) -> FailureCounts:
        """Return the sum."""
        return FailureCounts(self.retried + other.retried, self.failed + other.failed)


@dataclass(slots=True)
class Places:
    """The tasks and the queues in which attempts failed, with their numbers, the largest first."""

    tasks: Counter[str] = field(default_factory=Counter)
    queues: Counter[str] = field(default_factory=Counter)

    def add(self, task: str, queue: str, count: int) -> None:
        """Add failed attempts. Roll-ups beyond their limits have no names."""
        if task:
            self.tasks[task] += count
        if queue:
            self.queues[queue] += count


@dataclass(slots=True)
class FailingGroup:
    """An error group with its failed attempts in the period.

    Attributes:
        group: Its row without the last attempt; None if it has been deleted.
        places: Its tasks and queues, if they were read.
        series: Its failed attempts in each bucket of the period, the oldest first, if they were read.
    """

    fingerprint: str
    counts: FailureCounts
    group: ErrorGroup | None = None
    places: Places = field(default_factory=Places)
    series: Sequence[int] = ()


@dataclass(slots=True)
class FailureReport:
    """Failed attempts within a period. The attempts of ``groups``, ``others`` and ``ungrouped`` are those of ``total``.

    Attributes:
        groups: The groups with the most failed attempts.
        other_groups: How many more groups there are, with the attempts ``others``.
        ungrouped: Attempts without a group: beyond the limits of the roll-ups, or of before there were groups.
        now: The database's time; None without failures.
    """

    groups: list[FailingGroup] = field(default_factory=list)
    other_groups: int = 0
    others: FailureCounts = field(default_factory=FailureCounts)
    ungrouped: FailureCounts = field(default_factory=FailureCounts)
    total: FailureCounts = field(default_factory=FailureCounts)
    now: datetime | None = None


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


def failures_in(database: str, period: Period, *, task: str = "", queue: str = "") -> QuerySet[Rollup, Any]:
    """Return the roll-ups of failed attempts in the period, of one task or queue if given. An index covers them."""
    rows = rollups_in(database, period.span, period.number, outcome__in=_FAILURES)
    if task:
        rows = rows.filter(task_name__in=registry.names_of(task))
    return rows.filter(queue_name=queue) if queue else rows


def failure_report(
    database: str,
    period: Period,
    *,
    task: str = "",
    queue: str = "",
    limit: int = MAX_GROUPS,
    with_details: bool = False,
) -> FailureReport:
    """Return the groups that fail most. Takes one statement; ``with_details``, that is places and series, three.

    There are at most as many groups as the reaper stores, so they are added up here.
    """
    rows = failures_in(database, period, task=task, queue=queue)
    report, grouped = FailureReport(), []
    for fingerprint, total, retried, now, *columns in _sums(rows):
        counts = FailureCounts(retried, total - retried)
        report.now, report.total = now, report.total + counts
        if not fingerprint:
            report.ungrouped = counts
            continue
        values = dict(zip(_GROUP_COLUMNS, columns, strict=True))
        group = None if values["error_code"] is None else ErrorGroup(fingerprint=fingerprint, **values)
        grouped.append(FailingGroup(fingerprint, counts, group))
    grouped.sort(key=lambda failing: (-failing.counts.total, failing.fingerprint))
    report.groups, others = grouped[:limit], grouped[limit:]
    report.other_groups = len(others)
    report.others = sum((failing.counts for failing in others), start=FailureCounts())
    if with_details and report.now is not None:
        of_groups = rows.filter(fingerprint__in=[failing.fingerprint for failing in report.groups])
        _add_details(report.groups, of_groups, period, period.starts(minute_of(report.now)))
    return report


def _sums(rows: QuerySet[Rollup, Any]) -> Iterable[Any]:
    """Return each fingerprint with its failed attempts, the retried ones, the time, and the columns of its group."""
    groups = ErrorGroup.objects.using(rows.db).filter(pk=OuterRef("fingerprint"))
    columns = {f"of_{name}": Subquery(groups.values(name)) for name in _GROUP_COLUMNS}
    again = Sum("count", filter=Q(will_retry=True), default=0)
    sums = rows.values("fingerprint").annotate(total=Sum("count"), again=again, read_at=Now(), **columns)
    counted: Iterable[Any] = sums.values_list("fingerprint", "total", "again", "read_at", *columns)
    return counted


def failing_places(database: str, period: Period) -> Places:
    """Return the tasks and queues of all failed attempts in the period, the largest ``MAX_PLACES`` pairs."""
    places = Places()
    pairs = failures_in(database, period).values_list("task_name", "queue_name").annotate(total=Sum("count"))
    for task, queue, count in pairs.order_by("-total")[:MAX_PLACES]:
        places.add(task, queue, count)
    return places


def failing_group(database: str, period: Period, fingerprint: str) -> FailingGroup:
    """Return one group's failed attempts in the period, as the report counts them, and their tasks and queues."""
    failing = FailingGroup(fingerprint, FailureCounts())
    rows = failures_in(database, period).filter(fingerprint=fingerprint).order_by("task_name", "queue_name")
    for task, queue, outcome, count in count_by_outcome(rows, "task_name", "queue_name"):
        failing.places.add(task, queue, count)
        failing.counts += FailureCounts(count, 0) if outcome == RETRIED else FailureCounts(0, count)
    return failing


def _places_by_group(rows: QuerySet[Rollup, Any]) -> Mapping[str, Places]:
    places = defaultdict[str, Places](Places)
    pairs = rows.values_list("fingerprint", "task_name", "queue_name").annotate(total=Sum("count"))
    for fingerprint, task, queue, count in pairs.order_by("-total", "task_name", "queue_name")[:MAX_PLACES]:
        places[fingerprint].add(task, queue, count)
    return places


def _add_details(
    groups: Iterable[FailingGroup], rows: QuerySet[Rollup, Any], period: Period, starts: Sequence[datetime]
) -> None:
    """Add the groups' tasks and queues, and their attempts in each bucket."""
    places = _places_by_group(rows)
    series = defaultdict[str, Counter[int]](Counter)
    for fingerprint, start, count in rows.values_list("fingerprint", "start").annotate(Sum("count")):
        series[fingerprint][(start - starts[0]) // period.bucket_length] += count
    for failing in groups:
        failing.places = places.get(failing.fingerprint, Places())
        failing.series = [series[failing.fingerprint][at] for at in range(len(starts))]


def latest_run(database: str, group: ErrorGroup, now: datetime) -> FailureRun | None:
    """Return the latest run of failures of a group; None if the last week has none. Takes one statement."""
    rows = Rollup.objects.using(database).filter(fingerprint=group.pk, start__gt=now - timedelta(seconds=WEEK.seconds))
    starts = list(rows.order_by("start").values_list("span", "start").distinct())
    hours = [start for span, start in starts if span == RollupSpan.HOUR]
    if not hours:
        return None
    since = hours[-1]
    for hour in reversed(hours):
        if since - hour > timedelta(hours=PAUSE_HOURS):
            break
        since = hour
    if group.first_seen_at is not None and since <= group.first_seen_at < since + timedelta(hours=1):
        return FailureRun(group.first_seen_at)
    if since <= now - timedelta(seconds=WEEK.seconds) + timedelta(hours=PAUSE_HOURS):
        return FailureRun(since, is_to_the_hour=True, is_longer=True)
    if since < now - timedelta(hours=3):  # roll-ups by minute are kept for so long
        return FailureRun(since, is_to_the_hour=True)
    return FailureRun(next((start for span, start in starts if span == RollupSpan.MINUTE and start >= since), since))
