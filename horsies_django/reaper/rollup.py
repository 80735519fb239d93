"""Roll up attempts into counts by minute, by hour and for all time, so that charts and metrics never read attempts."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.db import connections, transaction
from django.db.models import CharField, Count, F, Max, Min, OuterRef, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Coalesce

from ..core.bounds import out_of_range
from ..core.histogram import bucket_expression, seconds_expression
from ..core.options import Options
from ..db.expressions import MinuteOf, NowPlus, SecondsBetween
from ..db.now import Now
from ..models import ErrorGroup, Rollup, Task, TaskAttempt, Watermark
from ..models.rollup import (
    MAX_COUNTED_PAIRS,
    MAX_HISTOGRAM_PAIRS,
    MINUTES,
    RollupSpan,
    largest_pairs,
    start_of,
)
from ..models.transitions import BATCH
from .batches import BatchResult, SkippedRows

#: Name of the watermark, which stores the primary key up to which attempts are counted.
WATERMARK: Final = "rolled up attempts"

#: The position before the first attempt, whose primary key is 1.
START: Final = 0

#: Maximum attempts counted in one transaction. Smaller on SQLite, where a long transaction blocks every writer.
SIZE: Final = 20_000
SIZE_OF_SQLITE: Final = 2_000

#: Seconds before an attempt is counted. Primary keys are assigned before commit, so a higher key may become visible
#: first; an attempt whose transaction commits later than this after it was written is not counted.
SETTLE_DELAY: Final = 5.0

#: Seconds that ``finished_at`` may lie in the future, because the database's clock may have been set back.
FUTURE: Final = 86_400.0

#: Existing attempts that the first roll-up counts.
BACKLOG: Final = 100_000

#: Maximum error groups.
MAX_ERROR_GROUPS: Final = 5_000

#: How long the roll-ups of each span are kept; totals are never pruned.
ROLLUP_RETENTION: Final = {RollupSpan.MINUTE: timedelta(hours=3), RollupSpan.HOUR: timedelta(days=35)}


def roll_up(options: Options, _: SkippedRows) -> BatchResult:
    """Count attempts written since the last pass: in all, and by the minute and the hour in which they ended."""
    settled = uncounted(options.database).filter(finished_at__lt=NowPlus(-SETTLE_DELAY))
    if not settled.order_by("pk").values_list("pk").first():
        return BatchResult(0, 0)
    if not Watermark.objects.using(options.database).filter(name=WATERMARK).exists():
        _create_watermark(options.database)
    with transaction.atomic(using=options.database):
        return _roll_up_window(options.database)


def prune_rollups(options: Options, _: SkippedRows) -> BatchResult:
    """Delete minutes older than three hours and hours older than 35 days."""
    rollups = Rollup.objects.using(options.database)
    old = rollups.none()
    for span, kept in ROLLUP_RETENTION.items():
        old |= rollups.filter(span=span, start__lt=NowPlus(-kept.total_seconds()))
    keys = list(old.values_list("pk", flat=True)[:BATCH])
    return BatchResult(len(keys), rollups.filter(pk__in=keys).delete()[0] if keys else 0)


def prune_error_groups(options: Options, _: SkippedRows) -> BatchResult:
    """Delete error groups that were last seen before the oldest roll-up that counts them."""
    too_old = NowPlus(-ROLLUP_RETENTION[RollupSpan.HOUR].total_seconds())
    groups = ErrorGroup.objects.using(options.database)
    keys = list(groups.filter(last_seen_at__lt=too_old).values_list("pk", flat=True)[:BATCH])
    return BatchResult(len(keys), groups.filter(pk__in=keys).delete()[0] if keys else 0)


def uncounted(database: str) -> QuerySet[TaskAttempt]:
    """Select attempts that no roll-up counts yet."""
    position = Subquery(Watermark.objects.using(database).filter(name=WATERMARK).values("position"))
    return _attempts(database).filter(pk__gt=Coalesce(position, Value(START)))


def _attempts(database: str) -> QuerySet[TaskAttempt]:
    """Select attempts with a plausible ``finished_at``: one in the far future would hold up all attempts after it."""
    readable = TaskAttempt.objects.using(database).exclude(out_of_range(["finished_at"]))
    return readable.filter(finished_at__lt=NowPlus(FUTURE))


def _create_watermark(database: str) -> None:
    """Start at the newest ``BACKLOG`` attempts, because there may be millions."""
    newest = TaskAttempt.objects.using(database).order_by("-pk").values_list("pk", flat=True).first() or START
    watermark = Watermark(name=WATERMARK, position=max(START, newest - BACKLOG))
    Watermark.objects.using(database).bulk_create([watermark], ignore_conflicts=True)


def _roll_up_window(database: str) -> BatchResult:
    """Count the next attempts, unless another process holds the watermark."""
    features = connections[database].features
    watermarks = Watermark.objects.using(database).filter(name=WATERMARK)
    free = watermarks.select_for_update(skip_locked=True)
    watermark = free.values_list("position", Now()).first()
    if watermark is None:
        return BatchResult(0, 0)
    position, now = watermark
    size = SIZE if features.has_select_for_update else SIZE_OF_SQLITE
    window = _window(_attempts(database), position, size)
    if window is None or not watermarks.filter(position=position).update(position=window.last):
        return BatchResult(0, 0)
    builder = _RollupBuilder()
    groups = list(_groups(window.attempts))
    stored = _store_error_groups(window.attempts) if any(group.fingerprint for group in groups) else set()
    for group in groups:
        builder.add(group if group.fingerprint in stored else group._replace(fingerprint=""))
    builder.store(database, now)
    return BatchResult(size if window.is_cut else builder.count, builder.count, size=size)


class _Window(NamedTuple):
    """The attempts of one batch, the primary key of the last one, and whether more may follow."""

    attempts: QuerySet[TaskAttempt]
    last: int
    is_cut: bool


def _window(attempts: QuerySet[TaskAttempt], position: int, size: int) -> _Window | None:
    """Return the attempts after ``position``, up to the first that is not yet ``SETTLE_DELAY`` old."""
    ordered = attempts.order_by("pk").values_list("pk", flat=True)
    first = ordered.filter(pk__gt=position).first()
    if first is None:
        return None
    found = attempts.filter(pk__gte=first, pk__lt=first + size)
    first_unsettled = (
        found.filter(finished_at__gte=NowPlus(-SETTLE_DELAY)).order_by("pk").values_list("pk", flat=True).first()
    )
    if first_unsettled is not None:
        found = found.filter(pk__lt=first_unsettled)
    last = found.order_by("-pk").values_list("pk", flat=True).first()
    return None if last is None else _Window(found, last, is_cut=first_unsettled is None)


def _store_error_groups(attempts: QuerySet[TaskAttempt]) -> set[str]:
    """Create the error groups of these attempts, or update the existing ones, and return their fingerprints.

    There are at most ``MAX_ERROR_GROUPS``, because classes may be generated; attempts of others are not grouped.
    """
    of_group = attempts.exclude(fingerprint="").order_by().values("fingerprint")
    found = {
        fingerprint: (first, last, newest)
        for fingerprint, first, last, newest in of_group.values_list("fingerprint").annotate(
            Min("finished_at"), Max("finished_at"), Max("pk")
        )
    }
    stored = ErrorGroup.objects.using(attempts.db)
    known = set(stored.filter(pk__in=found).values_list("pk", flat=True))
    free = MAX_ERROR_GROUPS - stored.count() if len(known) < len(found) else 0
    kept = known | set(sorted(found.keys() - known)[: max(0, free)])
    # A task without retention is deleted with its attempts, maybe since the statement above.
    newest = TaskAttempt.objects.using(attempts.db).in_bulk([found[fingerprint][2] for fingerprint in kept])
    columns = ("exception_class", "error_code", "location")
    rows = [
        ErrorGroup(
            fingerprint=fingerprint,
            first_seen_at=first,
            last_seen_at=last,
            last_attempt_id=pk,
            **{name: getattr(newest[pk], name) for name in columns},
        )
        for fingerprint, (first, last, pk) in found.items()
        if fingerprint in kept and pk in newest
    ]
    stored.bulk_create(
        rows,
        batch_size=BATCH,
        update_conflicts=True,
        unique_fields=["fingerprint"],
        update_fields=["last_seen_at", "last_attempt_id"],
    )
    return known | {row.fingerprint for row in rows}


class _AttemptGroup(NamedTuple):
    """One row of the GROUP BY query: how many attempts share these values. Durations are histogram buckets."""

    minute: int
    queue_name: str
    task_name: str
    outcome: str
    will_retry: bool
    error_code: str
    fingerprint: str
    wait: int | None
    run: int | None
    number: int
    wait_seconds: float | None
    run_seconds: float | None


def _groups(attempts: QuerySet[TaskAttempt]) -> Iterable[_AttemptGroup]:
    """Group and count attempts in SQL.

    Subqueries look up each task by primary key; with a join, the planner might read the whole table.
    """
    task = Task.objects.using(attempts.db).filter(pk=OuterRef("task_id"))
    names = {
        name: Coalesce(Subquery(task.values(name)), Value(""), output_field=CharField())
        for name in ("queue_name", "task_name")
    }
    waited, ran = SecondsBetween(F("due_at"), F("started_at")), SecondsBetween(F("started_at"), F("finished_at"))
    wait, run = bucket_expression(waited), bucket_expression(ran)
    sums = {"wait_sum": Sum(seconds_expression(waited)), "run_sum": Sum(seconds_expression(ran))}
    columns = {"minute": MinuteOf("finished_at"), "queue": names["queue_name"], "name": names["task_name"]}
    keys = ("minute", "queue", "name", "outcome", "will_retry", "error_code", "fingerprint", "wait", "run")
    grouped = attempts.order_by().annotate(**columns, wait=wait, run=run).values(*keys)
    counted = grouped.annotate(n=Count("pk"), **sums).values_list(*keys, "n", *sums)
    return itertools.starmap(_AttemptGroup, counted.iterator())


#: Maximum roll-ups of one span and start that keep their queue, task name and error group. Beyond it, attempts are
#: counted without error group and queue name, and beyond twice as many without task name too. Names may be generated,
#: and each chart reads all rows.
MAX_NAMES: Final = {RollupSpan.MINUTE.value: 500, RollupSpan.HOUR.value: 2_000, RollupSpan.TOTAL.value: 2_000}

#: Columns that a roll-up groups by, in addition to span and start.
KIND: Final = ("queue_name", "task_name", "outcome", "will_retry", "error_code", "fingerprint")

_RollupKey = tuple[str, datetime, str, str, str, bool, str, str]

#: The pairs of queue and task of the totals without names.
_NO_NAMES: Final = ("", "")


@dataclass(slots=True)
class _Histograms:
    count: int = 0
    waits: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    wait_seconds: float = 0.0
    run_seconds: float = 0.0

    def add(self, other: _Histograms) -> None:
        """Add the counts of ``other``."""
        self.count += other.count
        self.add_times(other)

    def add_times(self, other: _Histograms) -> None:
        """Add the histograms of ``other`` and their sums, but not its count."""
        self.waits.update(other.waits)
        self.runs.update(other.runs)
        self.wait_seconds += other.wait_seconds
        self.run_seconds += other.run_seconds


class _RollupBuilder:
    """Collects counts by minute, by hour and for all time, and merges them into the stored roll-ups."""

    def __init__(self) -> None:
        self.count = 0
        self._by: dict[_RollupKey, _Histograms] = {}

    def add(self, group: _AttemptGroup) -> None:
        """Add the attempts of one group."""
        self.count += group.number
        new = _Histograms(group.number)
        for histogram, bucket in ((new.waits, group.wait), (new.runs, group.run)):
            if bucket is not None:
                histogram[str(bucket)] += group.number
        new.wait_seconds, new.run_seconds = group.wait_seconds or 0.0, group.run_seconds or 0.0
        kind = [getattr(group, column) for column in KIND]
        for span, minutes in MINUTES.items():
            start = start_of(group.minute // minutes * minutes)
            self._by.setdefault((span.value, start, *kind), _Histograms()).add(new)
        *kind, _, _ = kind
        self._by.setdefault((RollupSpan.TOTAL.value, start_of(0), *kind, "", ""), _Histograms()).add(new)

    def store(self, database: str, now: datetime) -> None:
        """Merge the counts into the table by replacing existing rows. Counts past their retention are dropped."""
        rollups = Rollup.objects.using(database)
        kept = {key: new for key, new in self._by.items() if _is_kept(key, now)}
        starts = {(key[0], key[1]) for key in kept}
        stored = rollups.none()
        for span in RollupSpan:
            stored |= rollups.filter(span=span, start__in=[start for of, start in starts if of == span])
        known = {
            tuple(key): (pk, count) for pk, count, *key in stored.values_list("pk", "count", "span", "start", *KIND)
        }
        kept = _bounded(kept, known)
        _add_to_others(kept, {key: count for key, (_, count) in known.items()})
        replaced = [known[key][0] for key in kept if key in known]
        columns = ("count", "waits", "runs", "wait_seconds", "run_seconds")
        for at in range(0, len(replaced), BATCH):
            rows = rollups.filter(pk__in=replaced[at : at + BATCH])
            for *key, count, waits, runs, wait_seconds, run_seconds in rows.values_list(
                "span", "start", *KIND, *columns
            ):
                old = _Histograms(count, Counter(waits), Counter(runs), wait_seconds, run_seconds)
                kept[tuple(key)].add(old)
            rows.delete()
        rollups.bulk_create([_row(key, new) for key, new in kept.items()], batch_size=BATCH)


def _is_kept(key: _RollupKey, now: datetime) -> bool:
    retention = ROLLUP_RETENTION.get(RollupSpan(key[0]))
    return retention is None or now - key[1] < retention


def _add_to_others(new: dict[_RollupKey, _Histograms], known: Mapping[_RollupKey, int]) -> None:
    """Add the attempts of all pairs that are not among the largest to the totals without names."""
    totals = [(key, histograms) for key, histograms in new.items() if key[0] == RollupSpan.TOTAL]
    counts: Counter[tuple[str, str]] = Counter()
    for (span, _, queue, task, *_), count in itertools.chain(known.items(), ((key, new.count) for key, new in totals)):
        if span == RollupSpan.TOTAL:
            counts[queue, task] += count
    counted, measured = largest_pairs(counts, MAX_COUNTED_PAIRS), largest_pairs(counts, MAX_HISTOGRAM_PAIRS)
    for (span, start, queue, task, outcome, will_retry, code, fingerprint), histograms in totals:
        pair = (queue, task)
        if pair == _NO_NAMES or pair in measured:
            continue
        of_others = (span, start, *_NO_NAMES, outcome, will_retry, code, fingerprint)
        other = new.setdefault(of_others, _Histograms())
        other.add_times(histograms)
        if pair not in counted:
            other.count += histograms.count


def _bounded(new: Mapping[_RollupKey, _Histograms], known: Iterable[_RollupKey]) -> dict[_RollupKey, _Histograms]:
    """Merge roll-ups beyond ``MAX_NAMES`` under empty names; the largest keep their names."""
    taken = set(known)
    sizes = Counter(key[:2] for key in taken)
    bounded: dict[_RollupKey, _Histograms] = {}
    for whole, histograms in sorted(new.items(), key=lambda item: -item[1].count):
        span, start, _, task_name, outcome, will_retry, code, _ = whole
        without_group: _RollupKey = (*whole[:-1], "")
        without_queue: _RollupKey = (span, start, "", task_name, outcome, will_retry, code, "")
        key: _RollupKey = (span, start, "", "", outcome, will_retry, "", "")
        limits = ((whole, MAX_NAMES[span]), (without_group, MAX_NAMES[span]), (without_queue, 2 * MAX_NAMES[span]))
        for candidate, limit in limits:
            if candidate in taken or sizes[span, start] < limit:
                key = candidate
                break
        if key not in taken:
            taken.add(key)
            sizes[span, start] += 1
        bounded.setdefault(key, _Histograms()).add(histograms)
    return bounded


def _row(key: _RollupKey, new: _Histograms) -> Rollup:
    span, start, *kind = key
    named = dict(zip(KIND, kind, strict=True))
    return Rollup(
        span=span,
        start=start,
        **named,
        count=new.count,
        waits=dict(new.waits),
        runs=dict(new.runs),
        wait_seconds=new.wait_seconds,
        run_seconds=new.run_seconds,
    )
