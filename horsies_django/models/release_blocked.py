"""The concurrency limiter: releases blocked tasks as their limits have room.

A task with a limit key is blocked until its limit has room; a blocked task is in no index of the claim. A transaction
that locks the key's :class:`~.limit.Limit` releases as many blocked tasks as there is room for. Any number of keys
takes one transaction and as many statements as one key. The limiter counts the rows each time, so no place leaks when
a process dies.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from django.db import models, transaction
from django.db.models import Case, Count, Min, Q, Subquery, Value, When

from ..core.limits import LimitTerms
from ..core.status import TaskStatus
from ..db.errors import concerns_all_rows, row_by_row
from ..db.expressions import BoundParam, NowPlus, Param
from ..db.notifications import ANY_QUEUE, wake_after_commit
from ..db.now import Now
from ..db.on_commit import on_commit_robust
from ..db.skip_scan import distinct
from ..db.statements import Statement
from .claim.query import ORDER, not_past_deadline
from .claims import TaskRoute
from .filters import IS_RELEASED
from .limit import Limit, LimitQuerySet

if TYPE_CHECKING:
    from .transitions import TaskQuerySet

logger = logging.getLogger("horsies_django")

#: Whether a row has a limit key, so that a task that waits again is blocked again.
IS_LIMITED: Final = Case(
    When(limit_key__isnull=False, then=Value(True)), default=Value(False), output_field=models.BooleanField()
)

#: Seconds between two tries at a locked limit, and the number of tries.
PAUSE: Final = 0.02
TRIES: Final = 50

#: Tasks that must not start after their deadline.
HAS_DEADLINE: Final = Q(status=TaskStatus.PENDING, good_until__isnull=False)

#: Maximum keys that a change handles itself; of more, workers handle all.
MAX_INLINE_KEYS: Final = 20

#: Keys in one statement.
KEYS_PER_STATEMENT: Final = 500

#: Limit keys in one transaction, and tasks that are released of one key.
KEYS_PER_TRANSACTION: Final = 50
MAX_RELEASED: Final = 500

#: Seconds until the next check of locked rows, and the least until the next check of a bucket of tokens.
RECHECK_INTERVAL: Final = 1.0
MIN_RECHECK: Final = 0.01

_KEY: Final = Param("key")
_PLACES: Final = Param("places")


class Released(NamedTuple):
    """How many tasks were released, by route.

    ``busy`` are the keys whose limits another transaction has locked. ``recheck_in`` is the number of
    seconds until time alone makes room.
    """

    routes: Counter[TaskRoute]
    busy: frozenset[str] = frozenset()
    recheck_in: float | None = None


NONE_RELEASED: Final = Released(Counter())


class Occupancy(NamedTuple):
    """How many tasks have a place of a limit, and how many of these are due and have not begun.

    ``late`` are past their deadline, so they keep no other task out; ``expires_at`` is the next deadline.
    """

    held: int = 0
    waiting: int = 0
    late: int = 0
    expires_at: datetime | None = None

    def free_places(self, max_concurrency: int | None) -> int:
        """Return how many of ``max_concurrency`` places are free."""
        return MAX_RELEASED if max_concurrency is None else min(MAX_RELEASED, max_concurrency - self.held + self.late)


UNOCCUPIED: Final = Occupancy()


class Room(NamedTuple):
    """How many tasks there is room for, and the tokens if the limit has a rate."""

    places: int
    tokens: float


def release(database: str, keys: Collection[str]) -> Released:
    """Release the first blocked tasks of some keys, as many as there is room for. Never waits for a lock."""
    with transaction.atomic(using=database):
        limits, busy = lock_limits(database, keys)
        inside = _occupancy(database, [limit.pk for limit in limits])
        rooms = {limit.pk: room_of(limit, inside.get(limit.pk, UNOCCUPIED)) for limit in limits}
        counts, routes = _release_first(database, {key: room.places for key, room in rooms.items() if room.places > 0})
        rechecks = {
            limit.pk: _recheck_in(limit, rooms[limit.pk], inside.get(limit.pk, UNOCCUPIED), counts) for limit in limits
        }
        waits = _with_blocked(database, [key for key, after in rechecks.items() if after is not None])
        again = {key: after for key, after in rechecks.items() if after is not None and key in waits}
        _store(database, limits, rooms, counts, again)
    return Released(routes, busy, min(again.values(), default=None))


def lock_limits(database: str, keys: Collection[str]) -> tuple[list[Limit], frozenset[str]]:
    """Lock the limits of some keys; return them and the keys that another transaction has locked.

    Each takes the terms that this process's code declares for the first task that it blocks. A limit without a row gets
    one. Call it inside a transaction, which is the lock on databases without row locks.
    """
    # Ordered by key, so that two transactions that create the same limits do not deadlock.
    rows = with_first_task(database, keys).order_by("pk")
    locked = list(rows.lock())
    if missing := set(keys).difference(limit.pk for limit in locked):
        missing -= set(Limit.objects.using(database).filter(pk__in=missing).values_list("pk", flat=True))
    if missing:
        rows.bulk_create([Limit(key=key) for key in sorted(missing)], ignore_conflicts=True)
        locked += rows.filter(pk__in=missing).lock()
    changed: dict[LimitTerms, list[str]] = defaultdict(list)
    for limit in locked:
        if limit.adopt_declared():
            changed[LimitTerms(limit.max_concurrency, limit.rate)].append(limit.pk)
    for terms, pks in changed.items():
        Limit.objects.using(database).filter(pk__in=pks).update(**terms._asdict())
    return locked, frozenset(keys).difference(limit.pk for limit in locked)


def with_first_task(database: str | None, keys: Collection[str]) -> LimitQuerySet:
    """Return the limits of some keys, each with the name of the first task that it blocks."""
    return Limit.objects.using(database).filter(pk__in=keys).annotate(first_task=_first_of_each(database, "task_name"))


def release_waiting(database: str, keys: Collection[str]) -> Released:
    """Release as :func:`release`, at those limits that block a task or need a check. To find these locks nothing."""
    limits = Limit.objects.using(database).filter(pk__in=keys, next_at__isnull=True)
    idle = limits.annotate(first=_first_of_each(database)).filter(first__isnull=True).values_list("pk", flat=True)
    waiting = set(keys).difference(idle) if keys else set()
    return release(database, waiting) if waiting else NONE_RELEASED


def _with_blocked(database: str, keys: Collection[str]) -> set[str]:
    limits = Limit.objects.using(database).filter(pk__in=keys).annotate(first=_first_of_each(database))
    return set(limits.filter(first__isnull=False).values_list("pk", flat=True)) if keys else set()


def _first_of_each(database: str | None, column: str = "pk") -> Subquery:
    """A column of a limit's first blocked task: one lookup in the index of blocked tasks, however many there are."""
    blocked = _tasks(database).blocked().filter(not_past_deadline(), limit_key=models.OuterRef("pk"))
    return Subquery(blocked.order_by(*ORDER).values(column)[:1])


def occupancy_of(inside: TaskQuerySet) -> dict[str, Occupancy]:
    """Count the tasks that have a place of each limit."""
    is_open = Q(status=TaskStatus.PENDING)
    counts: Iterable[tuple[Any, ...]] = (
        inside.order_by()
        .values_list("limit_key")
        .annotate(
            held=Count("pk"),
            waiting=Count("pk", filter=Q(enqueued_at__lte=Now()) & ~Q(status=TaskStatus.RUNNING)),
            late=Count("pk", filter=Q(is_open, good_until__lte=Now())),
            expires_at=Min("good_until", filter=Q(is_open, good_until__gt=Now())),
        )
    )
    return {key: Occupancy(*counted) for key, *counted in counts}


def _occupancy(database: str, keys: Collection[str]) -> dict[str, Occupancy]:
    """Count them. Late are only tasks that no worker is about to start; those would be locked."""
    inside = _tasks(database).released()
    occupancies = occupancy_of(inside.filter(limit_key__in=keys)) if keys else {}
    if not (late := [key for key, counted in occupancies.items() if counted.late]):
        return occupancies
    locked = Counter(inside.overdue().filter(limit_key__in=late).lock().values_list("limit_key", flat=True))
    return {key: counted._replace(late=locked[key]) for key, counted in occupancies.items()}


def room_of(limit: Limit, inside: Occupancy) -> Room:
    """Return the room that a limit has now, whenever its next check is. Its clock was read with it."""
    free = inside.free_places(limit.terms.max_concurrency)
    if (rate := limit.bucket) is None:
        return Room(free, 0.0)
    tokens = limit.tokens_now(rate)
    # Released tasks that have not begun must not pile up while there is no worker, to begin all at once.
    return Room(min(free, int(min(tokens, rate.burst - inside.waiting + inside.late))), tokens)


def _release_first(database: str, places: dict[str, int]) -> tuple[Counter[str], Counter[TaskRoute]]:
    """Release the first blocked tasks of each key; return their number by key and by route."""
    rows = _lock_first(database, places) if places else []
    if rows:
        _tasks(database).blocked().filter(pk__in=[pk for pk, *_ in rows]).update(
            blocked=False, deferred=False, released_at=Now()
        )
    return Counter(key for _, key, *_ in rows), Counter((queue, is_async) for *_, queue, is_async in rows)


def _lock_first(database: str, places: dict[str, int]) -> Sequence[tuple[UUID, str, str, bool]]:
    """Lock and return the first blocked tasks of each key, without locked ones.

    One arm of the statement reads each key in the order of the index; the ORM compiles one arm for all keys.
    """
    blocked = (
        _tasks(database)
        .blocked()
        .filter(not_past_deadline(), limit_key=BoundParam(_KEY, models.CharField(max_length=255)))
    )
    ordered = blocked.order_by(*ORDER).lock()
    first = Statement.select(ordered, "pk", "limit_key", "queue_name", "is_async", limit=_PLACES)
    return first.union_all(database, [{_KEY.name: key, _PLACES.name: count} for key, count in places.items()])


def _recheck_in(limit: Limit, room: Room, inside: Occupancy, counts: Counter[str]) -> float | None:
    """Return the seconds until the next check if more tasks wait; None if the end of a task triggers it."""
    count = counts[limit.pk]
    max_concurrency = limit.terms.max_concurrency
    if max_concurrency is not None and inside.free_places(max_concurrency) <= count:
        # No worker ends a task that is past its deadline.
        return None if inside.expires_at is None else max(MIN_RECHECK, (inside.expires_at - limit.now).total_seconds())
    if (rate := limit.bucket) is None:
        return MIN_RECHECK if count == MAX_RELEASED else RECHECK_INTERVAL
    wait = rate.wait(room.tokens - count) or min(RECHECK_INTERVAL, 1 / rate.per_second)
    return max(MIN_RECHECK, wait)


def _store(
    database: str, limits: Iterable[Limit], rooms: dict[str, Room], counts: Counter[str], again: dict[str, float]
) -> None:
    """Store the releases, and the time of the next check if no end of a task triggers it."""
    rows, timed, seen, released = Limit.objects.using(database), list[Limit](), list[str](), list[str]()
    for limit in limits:
        count, after = counts[limit.pk], again.get(limit.pk)
        is_spent = bool(count and limit.terms.rate is not None)
        if is_spent or after is not None:
            if is_spent:
                limit.spend(rooms[limit.pk].tokens - count)
            changes = {"next_at": None if after is None else NowPlus(after)} | ({"released_at": Now()} if count else {})
            for name, value in changes.items():
                setattr(limit, name, value)
            timed.append(limit)
        elif count:
            released.append(limit.pk)
        elif limit.next_at is not None:
            seen.append(limit.pk)
    # Update the row even if nothing else changed: a transaction with an older snapshot then fails to lock it, so it
    # can't release by outdated counts.
    if released:
        rows.filter(pk__in=released).update(released_at=Now(), next_at=None)
    if seen:
        rows.filter(pk__in=seen).update(next_at=None)
    if timed:
        rows.bulk_update(timed, ["tokens", "refilled_at", "released_at", "next_at"])


def release_all(database: str, keys: Iterable[str]) -> int:
    """Release blocked tasks of each of these keys, wake workers for them, and return how many there were.

    A key whose limit stays locked too long is left to the reaper.
    """
    routes, is_timed, ordered = Counter[TaskRoute](), False, sorted(keys)
    for start in range(0, len(ordered), KEYS_PER_TRANSACTION):
        for released in _retrying_locked(database, ordered[start : start + KEYS_PER_TRANSACTION]):
            routes += released.routes
            is_timed = is_timed or released.recheck_in is not None
    for queue, is_async in routes:
        wake_after_commit(database, queue, is_async=is_async)
    if is_timed:
        wake_after_commit(database, ANY_QUEUE, later=True)
    return routes.total()


def _retrying_locked(database: str, keys: Collection[str]) -> Iterator[Released]:
    for _ in range(TRIES):
        yield (released := release(database, keys))
        if not (keys := released.busy):
            return
        time.sleep(PAUSE)
    logger.warning("limit stays locked key=%r: left to the reaper", min(keys))


def release_after_commit(database: str, keys: Iterable[str | None], *, frees_places: bool = True) -> None:
    """Release blocked tasks of these keys once the current transaction has committed.

    So the transaction of a sender, however long, locks no limit. If the transaction frees no places, a key that is
    full costs one SELECT.
    """
    if some := {key for key in keys if key is not None}:
        on_commit_robust(database, _release_some, database, some, frees_places)


def _release_some(database: str, keys: Collection[str], frees_places: bool) -> None:
    if len(keys) > MAX_INLINE_KEYS:
        mark_due(database, keys)
        return
    release_all(database, [key for key in keys if frees_places or not _needs_no_release(database, key)])


def _needs_no_release(database: str, key: str) -> bool:
    """Return whether a later release is certain: all places are taken by tasks that will end, or a check is scheduled.

    That release sees everything committed before it. Locks nothing.
    """
    # A task with a deadline may expire without a release.
    inside = _tasks(database).released().exclude(HAS_DEADLINE).filter(limit_key=key).order_by()
    held = models.Subquery(inside.values("limit_key").annotate(count=Count("pk")).values("count"))
    limit: Any = with_first_task(database, [key]).annotate(clock=Now(), held=held).first()
    if limit is None or limit.adopt_declared():
        return False
    max_concurrency = limit.terms.max_concurrency
    is_scheduled = limit.next_at is not None and limit.next_at > limit.now
    return is_scheduled or (max_concurrency is not None and (limit.held or 0) >= max_concurrency)


def mark_due(database: str, keys: Collection[str]) -> None:
    """Make the limits of many keys due, so that workers check them. A limit that is locked is left to the reaper."""
    ordered = sorted(keys)
    for start in range(0, len(ordered), KEYS_PER_STATEMENT):
        with transaction.atomic(using=database):
            limits, _ = lock_limits(database, ordered[start : start + KEYS_PER_STATEMENT])
            Limit.objects.using(database).filter(pk__in=[limit.pk for limit in limits]).update(next_at=Now())
    wake_after_commit(database, ANY_QUEUE)


def sweep(database: str) -> int:
    """Release blocked tasks of every limit with room: the process that should have done so may have died."""
    total, last = 0, ""
    while keys := _waiting(database, last):
        last = keys[-1]
        total += sum(row_by_row(_with_room(database, keys), partial(release_all, database), _leave, concerns_all_rows))
    return total


def _leave(key: str, error: Exception) -> int:
    logger.error("limit can't be checked key=%r", key, exc_info=error)
    return 0


def _waiting(database: str, after: str) -> list[str]:
    """Return the next keys with blocked tasks after ``after``, by a skip scan of their index."""
    keys = distinct(_tasks(database).blocked(), "limit_key", KEYS_PER_STATEMENT, after)
    return [key for (key,) in keys.rows(database)]


def _with_room(database: str, keys: Collection[str]) -> list[str]:
    inside = occupancy_of(_tasks(database).filter(IS_RELEASED, limit_key__in=keys))
    limit_rows = with_first_task(database, keys).annotate(clock=Now()).in_bulk()
    for limit in limit_rows.values():
        limit.adopt_declared()
    return [
        key
        for key in keys
        if (limit_row := limit_rows.get(key)) is None or room_of(limit_row, inside.get(key, UNOCCUPIED)).places > 0
    ]


def _tasks(database: str | None) -> TaskQuerySet:
    from .task import Task

    return Task.objects.using(database)
