"""What fails most: failed attempts by error group within a period, from the reaper's roll-ups."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db.models import OuterRef, Q, Subquery, Sum

from ...core.registry import registry
from ...core.status import AttemptOutcome
from ...db.expressions import NowPlus
from ...db.now import Now
from ...models import ErrorGroup, Rollup
from ...models.rollup import minute_of
from .periods import Period

#: Maximum error groups in a report; the others are counted in one number.
MAX_GROUPS: Final = 50

#: Maximum pairs of task and queue that are read, for the groups of a report together.
MAX_PLACES: Final = 1_000

#: The columns of a group that a report reads.
_GROUP_COLUMNS: Final = ("exception_class", "error_code", "location", "first_seen_at", "last_seen_at")

_FAILURES: Final = sorted(set(AttemptOutcome) - {AttemptOutcome.COMPLETED})


@dataclass(slots=True)
class FailureCounts:
    """Failed attempts: those that were retried, and those after which the task had failed."""

    retried: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        """All failed attempts."""
        return self.retried + self.failed

    def add(self, other: FailureCounts) -> None:
        """Add other attempts."""
        self.retried += other.retried
        self.failed += other.failed


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
        series: Its failed attempts by minute or hour of the period, the oldest first, if they were read.
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


def failures_in(database: str, period: Period, *, task: str = "", queue: str = "") -> Any:
    """Return the roll-ups of failed attempts in the period, of one task or queue if given. An index covers them."""
    rows = Rollup.objects.using(database).filter(
        span=period.span, start__gt=NowPlus(-period.seconds), start__lte=Now(), outcome__in=_FAILURES
    )
    if task:
        rows = rows.filter(task_name__in=registry.names_of(task))
    if queue:
        rows = rows.filter(queue_name=queue)
    return rows.order_by()


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
    report = FailureReport()
    found = [_failing(*row) for row in _sums(rows)]
    for failing, _ in found:
        report.total.add(failing.counts)
    grouped = sorted(
        (failing for failing, _ in found if failing.fingerprint),
        key=lambda failing: (-failing.counts.total, failing.fingerprint),
    )
    report.ungrouped = next((failing.counts for failing, _ in found if not failing.fingerprint), FailureCounts())
    report.groups, others = grouped[:limit], grouped[limit:]
    report.other_groups = len(others)
    for failing in others:
        report.others.add(failing.counts)
    report.now = next((now for _, now in found), None)
    if with_details and report.now is not None:
        keys = [failing.fingerprint for failing in report.groups]
        _add_details(report.groups, rows.filter(fingerprint__in=keys), period.starts(minute_of(report.now)))
    return report


def _sums(rows: Any) -> Iterable[Any]:
    """Return each fingerprint with its failed attempts, the retried ones, the time, and the columns of its group."""
    groups = ErrorGroup.objects.using(rows.db).filter(pk=OuterRef("fingerprint"))
    columns = {f"of_{name}": Subquery(groups.values(name)) for name in _GROUP_COLUMNS}
    sums = rows.values("fingerprint").annotate(total=Sum("count"), again=Sum("count", filter=Q(will_retry=True)))
    counted: Iterable[Any] = sums.annotate(read_at=Now(), **columns).values_list(
        "fingerprint", "total", "again", "read_at", *columns
    )
    return counted


def _failing(
    fingerprint: str, total: int, again: int | None, now: datetime, *columns: Any
) -> tuple[FailingGroup, datetime]:
    counts = FailureCounts(again or 0, total - (again or 0))
    values = dict(zip(_GROUP_COLUMNS, columns, strict=True))
    group = None if values["error_code"] is None else ErrorGroup(fingerprint=fingerprint, **values)
    return FailingGroup(fingerprint, counts, group), now


def failing_places(database: str, period: Period) -> Places:
    """Return the tasks and queues of all failed attempts in the period, the largest ``MAX_PLACES`` pairs."""
    places = Places()
    pairs = failures_in(database, period).values_list("task_name", "queue_name").annotate(total=Sum("count"))
    for task, queue, count in pairs.order_by("-total")[:MAX_PLACES]:
        places.add(task, queue, count)
    return places


def group_places(database: str, period: Period, fingerprint: str) -> Places:
    """Return the tasks and queues of one group's failed attempts in the period."""
    rows = failures_in(database, period).filter(fingerprint=fingerprint)
    return _places_by_group(rows).get(fingerprint, Places())


def _places_by_group(rows: Any) -> Mapping[str, Places]:
    places = defaultdict[str, Places](Places)
    pairs = rows.values_list("fingerprint", "task_name", "queue_name").annotate(total=Sum("count"))
    for fingerprint, task, queue, count in pairs.order_by("-total", "task_name", "queue_name")[:MAX_PLACES]:
        places[fingerprint].add(task, queue, count)
    return places


def _add_details(groups: Iterable[FailingGroup], rows: Any, starts: Sequence[datetime]) -> None:
    """Add the groups' tasks and queues, and their attempts by minute or hour."""
    places = _places_by_group(rows)
    series = defaultdict[str, Counter[datetime]](Counter)
    for fingerprint, start, count in rows.values_list("fingerprint", "start").annotate(Sum("count")):
        series[fingerprint][start] += count
    for failing in groups:
        failing.places = places.get(failing.fingerprint, Places())
        failing.series = [series[failing.fingerprint][start] for start in starts]
