"""Roll up attempts into counts by minute, by hour and for all time, so that charts and metrics never read attempts."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.db import connections, transaction
from django.db.models import CharField, Count, F, Max, Min, OuterRef, Q, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Coalesce

from ..core.histogram import bucket_expression, seconds_expression
from ..core.options import Options
from ..db.expressions import MinuteOf, NowPlus, SecondsBetween
from ..db.now import Now
from ..models import ErrorGroup, Rollup, Task, TaskAttempt, Watermark
from ..models.rollup import MINUTES, RollupSpan, start_of
from ..models.transitions import BATCH
from .batches import delete_all

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


def roll_up(options: Options) -> Iterator[int]:
    """Count attempts written since the last pass: in all, and by the minute and the hour in which they ended.

    Yields the number of attempts of each transaction.
    """
    settled = uncounted(options.database).filter(finished_at__lt=NowPlus(-SETTLE_DELAY))
    while settled.order_by("pk").values_list("pk").first():
        if not Watermark.objects.using(options.database).filter(name=WATERMARK).exists():
            _create_watermark(options.database)
        with transaction.atomic(using=options.database):
            window = _next_window(options.database)
            if window is None:
                return
            count = _roll_up_window(window)
        yield count
        if not window.is_cut:
            return


def prune_rollups(options: Options) -> Iterator[int]:
    """Delete minutes older than three hours and hours older than 35 days."""
    old = Q()
    for span, kept in ROLLUP_RETENTION.items():
        old |= Q(span=span, start__lt=NowPlus(-kept.total_seconds()))
    return delete_all(Rollup.objects.using(options.database).filter(old))


def prune_error_groups(options: Options) -> Iterator[int]:
    """Delete error groups that were last seen before the oldest roll-up that counts them."""
    too_old = NowPlus(-ROLLUP_RETENTION[RollupSpan.HOUR].total_seconds())
    return delete_all(ErrorGroup.objects.using(options.database).filter(last_seen_at__lt=too_old))


def uncounted(database: str) -> QuerySet[TaskAttempt]:
    """Select attempts that no roll-up counts yet."""
    position = Subquery(Watermark.objects.using(database).filter(name=WATERMARK).values("position"))
    return _attempts(database).filter(pk__gt=Coalesce(position, Value(START)))


def _attempts(database: str) -> QuerySet[TaskAttempt]:
    """Select attempts with a plausible ``finished_at``: one in the far future would hold up all attempts after it."""
    return TaskAttempt.objects.using(database).filter(finished_at__lt=NowPlus(FUTURE))


def _create_watermark(database: str) -> None:
    """Start at the newest ``BACKLOG`` attempts, because there may be millions."""
    newest = TaskAttempt.objects.using(database).order_by("-pk").values_list("pk", flat=True).first() or START
    watermark = Watermark(name=WATERMARK, position=max(START, newest - BACKLOG))
    Watermark.objects.using(database).bulk_create([watermark], ignore_conflicts=True)


class _Window(NamedTuple):
    """The attempts of one transaction, whether more may follow, and the database's time."""

    attempts: QuerySet[TaskAttempt]
    is_cut: bool
    now: datetime


def _next_window(database: str) -> _Window | None:
    """Move the watermark over the next attempts, up to the first that is not yet ``SETTLE_DELAY`` old; return them.

    Returns None if there are none, or if another process holds the watermark.
    """
    watermarks = Watermark.objects.using(database).filter(name=WATERMARK)
    watermark = watermarks.select_for_update(skip_locked=True).values_list("position", Now()).first()
    if watermark is None:
        return None
    position, now = watermark
    attempts = _attempts(database).order_by("pk")
    first = attempts.filter(pk__gt=position).values_list("pk", flat=True).first()
    if first is None:
        return None
    size = SIZE_OF_SQLITE if connections[database].vendor == "sqlite" else SIZE
    window = attempts.filter(pk__gte=first, pk__lt=first + size)
    unsettled = window.filter(finished_at__gte=NowPlus(-SETTLE_DELAY)).values_list("pk", flat=True).first()
    if unsettled is not None:
        window = window.filter(pk__lt=unsettled)
    last = window.values_list("pk", flat=True).last()
    if last is None or not watermarks.filter(position=position).update(position=last):
        return None
    return _Window(window, unsettled is None, now)


def _roll_up_window(window: _Window) -> int:
    """Add the counts of these attempts to the roll-ups; return how many attempts there are."""
    groups = list(_groups(window.attempts))
    grouped = _store_error_groups(window.attempts) if any(group.fingerprint for group in groups) else set()
    groups = [group if group.fingerprint in grouped else group._replace(fingerprint="") for group in groups]
    _store(window.attempts.db, _count_by_span(groups, window.now))
    return sum(group.number for group in groups)


def _store_error_groups(attempts: QuerySet[TaskAttempt]) -> set[str]:
    """Create the error groups of these attempts, or update the existing ones, and return their fingerprints.

    There are at most ``MAX_ERROR_GROUPS``, because classes may be generated; attempts of others are not grouped.
    """
    of_group = attempts.exclude(fingerprint="").order_by().values("fingerprint")
    groups = {
        fingerprint: (first, last, newest)
        for fingerprint, first, last, newest in of_group.values_list("fingerprint").annotate(
            Min("finished_at"), Max("finished_at"), Max("pk")
        )
    }
    stored = ErrorGroup.objects.using(attempts.db)
    stored_keys = set(stored.filter(pk__in=groups).values_list("pk", flat=True))
    free = MAX_ERROR_GROUPS - stored.count() if len(stored_keys) < len(groups) else 0
    kept = stored_keys | set(sorted(groups.keys() - stored_keys)[: max(0, free)])
    # A task without retention is deleted with its attempts, maybe since the statement above.
    newest = TaskAttempt.objects.using(attempts.db).in_bulk([groups[fingerprint][2] for fingerprint in kept])
    columns = ("exception_class", "error_code", "location")
    rows = [
        ErrorGroup(
            fingerprint=fingerprint,
            first_seen_at=first,
            last_seen_at=last,
            last_attempt_id=pk,
            **{name: getattr(newest[pk], name) for name in columns},
        )
        for fingerprint, (first, last, pk) in groups.items()
        if fingerprint in kept and pk in newest
    ]
    stored.bulk_create(
        rows,
        batch_size=BATCH,
        update_conflicts=True,
        unique_fields=["fingerprint"],
        update_fields=["last_seen_at", "last_attempt_id"],
    )
    return stored_keys | {row.fingerprint for row in rows}


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


#: Maximum pairs of queue and task of one span and start that keep their names, and maximum roll-ups with an error code
#: or group. Names may be generated, and each chart reads all rows.
MAX_PAIRS: Final = 1_000
MAX_ROLLUPS: Final = 2_000

#: Columns that a roll-up groups by.
KEYS: Final = ("span", "start", "queue_name", "task_name", "outcome", "will_retry", "error_code", "fingerprint")

_Key = tuple[Any, ...]


@dataclass(slots=True)
class _Counts:
    """The columns of a roll-up that grow."""

    count: int = 0
    waits: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    wait_seconds: float = 0.0
    run_seconds: float = 0.0

    def add(self, other: _Counts) -> None:
        """Add the counts of ``other``."""
        self.count += other.count
        self.waits.update(other.waits)
        self.runs.update(other.runs)
        self.wait_seconds += other.wait_seconds
        self.run_seconds += other.run_seconds


def _count_by_span(groups: Iterable[_AttemptGroup], now: datetime) -> dict[_Key, _Counts]:
    """Add up the attempts by minute, by hour and for all time, apart from spans whose retention has passed."""
    totals = defaultdict[_Key, _Counts](_Counts)
    for group in groups:
        counts = _Counts(group.number, Counter(), Counter(), group.wait_seconds or 0.0, group.run_seconds or 0.0)
        for histogram, bucket in ((counts.waits, group.wait), (counts.runs, group.run)):
            if bucket is not None:
                histogram[str(bucket)] = group.number
        kind = (group.queue_name, group.task_name, group.outcome, group.will_retry)
        for span, minutes in MINUTES.items():
            start = start_of(group.minute // minutes * minutes)
            if now - start < ROLLUP_RETENTION[span]:
                totals[span.value, start, *kind, group.error_code, group.fingerprint].add(counts)
        totals[RollupSpan.TOTAL.value, start_of(0), *kind, "", ""].add(counts)
    return totals


def _store(database: str, new: Mapping[_Key, _Counts]) -> None:
    """Add the counts to the table. A roll-up keeps its primary key, so pairs stay in the order in which they came."""
    rollups = Rollup.objects.using(database)
    stored = rollups.none()
    for span in RollupSpan:
        stored |= rollups.filter(span=span, start__in={start for of, start, *_ in new if of == span})
    pk_by_key = {tuple(key): pk for pk, *key in stored.values_list("pk", *KEYS)}
    counted = _within_limits(new, pk_by_key)
    columns = [column.name for column in fields(_Counts)]
    replaced = [pk_by_key[key] for key in counted if key in pk_by_key]
    for at in range(0, len(replaced), BATCH):
        for *key, count, waits, runs, wait_seconds, run_seconds in rollups.filter(
            pk__in=replaced[at : at + BATCH]
        ).values_list(*KEYS, *columns):
            counted[tuple(key)].add(_Counts(count, Counter(waits), Counter(runs), wait_seconds, run_seconds))
    rows = [
        Rollup(**dict(zip(KEYS, key, strict=True)), **{column: getattr(counts, column) for column in columns})
        for key, counts in counted.items()
    ]
    rollups.bulk_create(rows, batch_size=BATCH, update_conflicts=True, unique_fields=KEYS, update_fields=columns)


def _within_limits(new: Mapping[_Key, _Counts], stored_keys: Iterable[_Key]) -> dict[_Key, _Counts]:
    """Leave out the names of pairs beyond ``MAX_PAIRS``, and the errors beyond ``MAX_ROLLUPS``, the smallest first."""
    pairs, rollups = defaultdict[_Key, set[_Key]](set), defaultdict[_Key, set[_Key]](set)
    for key in stored_keys:
        pairs[key[:2]].add(key[2:4])
        rollups[key[:2]].add(key)
    counted = defaultdict[_Key, _Counts](_Counts)
    for key, counts in sorted(new.items(), key=lambda item: -item[1].count):
        of_span, pair, outcome, errors = key[:2], key[2:4], key[4:6], key[6:]
        if pair not in pairs[of_span] and len(pairs[of_span]) >= MAX_PAIRS:
            pair = ("", "")
        if key not in rollups[of_span] and len(rollups[of_span]) >= MAX_ROLLUPS:
            errors = ("", "")
        pairs[of_span].add(pair)
        rollups[of_span].add(key := (*of_span, *pair, *outcome, *errors))
        counted[key].add(counts)
    return counted
