"""The concurrency limiter: releases blocked tasks as their limits have room.

Any number of limit keys takes one transaction and as many statements as one key. The limiter counts the rows each time,
so no place leaks when a process dies.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from django.db import models, transaction
from django.db.models import Count, Min, Q, Subquery

from ..core.limits import LimitTerms
from ..core.status import TaskStatus
from ..db.expressions import BoundParam, NowPlus, Param
from ..db.now import Now
from ..db.statements import Statement
from .claim.query import ORDER, not_past_deadline
from .claims import TaskRoute
from .limit import Limit, LimitQuerySet

if TYPE_CHECKING:
    from .transitions import TaskQuerySet

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
        """Return how many of ``most`` places are free."""
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


def _tasks(database: str | None) -> TaskQuerySet:
    from .task import Task

    return Task.objects.using(database)
