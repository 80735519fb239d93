"""Admission: which tasks of a limit have a place, and so may be claimed.

A task with a limit key waits at the gate of its key: deferred and gated, so that it is in no index of the claim. Who
locks the key's :class:`~.limit.Limit` lets in the first of them, as many as there is room for. How many are in is
counted each time, of the rows themselves: no place can leak, whoever dies when.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.db import connections, models, transaction
from django.db.models import Case, Count, Min, Value, When
from django.db.models.functions import Now

from .. import limits
from ..expressions import FromNow
from ..limits import Terms
from ..states import TaskStatus
from ..waking import ANY_QUEUE, wake_after_commit
from .limit import Limit, LimitQuerySet
from .statements import Statement
from .survey import Here
from .views import IS_ADMITTED, not_past_deadline

if TYPE_CHECKING:
    from .transitions import TaskQuerySet

logger = logging.getLogger("horsies_django")

#: Whether a row has a limit key: what was let out of line goes back to the gate then.
IS_LIMITED: Final = Case(
    When(limit_key__isnull=False, then=Value(True)), default=Value(False), output_field=models.BooleanField()
)

#: Tasks that are let in at once.
AT_ONCE: Final = 500

#: Seconds after which one looks again at rows that somebody has locked, and at a bucket that is all but full, at least.
AGAIN: Final = 1.0
SOONEST: Final = 0.01

#: Seconds between two tries at a limit that somebody holds, and how many there are.
PAUSE: Final = 0.02
TRIES: Final = 50

#: Keys of one change that are looked at on the spot; the gates of others are left to workers.
ON_THE_SPOT: Final = 20

#: Keys that are looked at in one statement.
KEYS: Final = 500

#: The queue of a task, and whether it is a coroutine's.
Lane = tuple[str, bool]


class Admitted(NamedTuple):
    """How many were let in of which lane.

    ``is_busy`` if somebody else was letting in at the time; ``again_in`` are the seconds until time alone makes room.
    """

    lanes: Counter[Lane]
    is_busy: bool = False
    again_in: float | None = None


class _Room(NamedTuple):
    """For how many there is room, with how many are in, and what tokens there are if there is a rate."""

    places: int
    held: int
    tokens: float


def admit(database: str, key: str, terms: Terms | None = None) -> Admitted:
    """Let in the first of those that wait at a gate, as many as there is room for. Waits for nobody."""
    tasks = _tasks(database)
    with transaction.atomic(using=database):
        if (limit := Limit.objects.using(database).taken(key, terms, lambda: _declared(database, [key])[key])) is None:
            return Admitted(Counter(), is_busy=True)
        room = _room(limit, tasks.admitted().filter(limit_key=key))
        gate = tasks.gated().filter(not_past_deadline(), limit_key=key).order_by("-priority", "enqueued_at", "pk")
        # With those that somebody has locked left out.
        columns = ("pk", "queue_name", "is_async")
        found = list(gate.lock().values_list(*columns)[: room.places]) if room.places > 0 else []
        if found:
            mine = tasks.gated().filter(pk__in=[pk for pk, *_ in found])
            mine.update(gated=False, deferred=False)
        has_place = limit.max_concurrency is None or room.held + len(found) < limit.max_concurrency
        again_in = _again_in(limit, room, len(found)) if has_place and gate.exists() else None
        _note(limit, len(found), room, again_in)
    return Admitted(Counter((queue, is_async) for _, queue, is_async in found), again_in=again_in)


def _declared(database: str, keys: Collection[str]) -> dict[str, Terms]:
    """What the tasks say that wait there, whose limits nobody has written or somebody has forgotten."""
    waiting = _tasks(database).gated().filter(limit_key__in=keys).order_by().values_list("limit_key")
    paths = dict(waiting.annotate(path=Min("task_name"))) if keys else {}
    return {key: limits.declared(paths[key]) if key in paths else Terms(None, None) for key in keys}


def _room(limit: Limit, inside: TaskQuerySet) -> _Room:
    places, held, tokens, rate = AT_ONCE, 0, 0.0, limit.bucket
    if limit.max_concurrency is not None:
        held = inside.count()
        places = min(places, limit.max_concurrency - held)
    if rate is not None:
        tokens = limit.tokens_now(rate)
        # What is let in and has not begun must not pile up while no worker is there, to begin all at once.
        waiting = inside.filter(status__in=[TaskStatus.CLAIMED, TaskStatus.PENDING]).count()
        places = min(places, int(min(tokens, rate.burst - waiting)))
    return _Room(places, held, tokens)


def _again_in(limit: Limit, room: _Room, count: int) -> float:
    """In how many seconds to look again at a gate where some wait though there are places."""
    if (rate := limit.bucket) is None:
        return SOONEST if count == AT_ONCE else AGAIN
    wait = rate.wait(room.tokens - count) or min(AGAIN, 1 / rate.per_second)
    return max(SOONEST, wait)


def _note(limit: Limit, count: int, room: _Room, again_in: float | None) -> None:
    """Write what was let in, and when to look again if no end of a task will say so."""
    changes: dict[str, Any] = {}
    if count:
        # Whatever the isolation: who has an older snapshot can't take this row any more, and let in by that.
        changes["admitted_at"] = Now()
        if limit.rate is not None:
            changes |= limit.spent(room.tokens - count)
    if again_in is not None or limit.next_at is not None:
        changes["next_at"] = None if again_in is None else FromNow(again_in)
    if changes:
        Limit.objects.using(limit._state.db).filter(pk=limit.pk).update(**changes)


def admit_all(database: str, keys: Iterable[str], terms: Terms | None = None) -> int:
    """Let in at each of these gates, wake workers for that, and return how many were let in.

    A gate at which somebody else stays too long is left to the reaper.
    """
    found = [_insisting(database, key, terms) for key in sorted(keys)]
    lanes = sum((admitted.lanes for admitted in found), Counter[Lane]())
    for queue, is_async in lanes:
        wake_after_commit(database, queue, is_async=is_async)
    if any(admitted.again_in is not None for admitted in found):
        wake_after_commit(database, ANY_QUEUE, later=True)
    return lanes.total()


def _insisting(database: str, key: str, terms: Terms | None) -> Admitted:
    for _ in range(TRIES):
        if not (admitted := admit(database, key, terms)).is_busy:
            return admitted
        time.sleep(PAUSE)
    logger.warning("limit %r is held by somebody: its gate is left to the reaper", key)
    return admitted


def admit_after_commit(database: str, keys: Iterable[str | None], terms: Terms | None = None) -> None:
    """Let in at the gates of these keys once the current transaction has committed.

    A sender's transaction so locks no limit, however long it is.
    """
    if some := {key for key in keys if key is not None}:
        transaction.on_commit(partial(_admit_some, database, some, terms), using=database, robust=True)


def _admit_some(database: str, keys: Collection[str], terms: Terms | None) -> None:
    if len(keys) > ON_THE_SPOT:
        mark(database, keys, terms)
        return
    admit_all(database, [key for key in keys if not _needs_no_look(database, key, terms)], terms)


def _needs_no_look(database: str, key: str, terms: Terms | None) -> bool:
    """Whether a gate is sure to be looked at: a task that has its place will end, or the time for it is set.

    What was committed before is seen then, for who looks does so after that end. Locks nothing.
    """
    if terms is None:
        return False
    inside = _tasks(database).admitted().filter(limit_key=key).order_by()
    held = inside.values("limit_key").annotate(count=Count("pk")).values("count")
    rows = Limit.objects.using(database).filter(pk=key, max_concurrency=terms.max_concurrency, rate=terms.rate)
    is_set = Case(When(next_at__gt=Now(), then=True), default=False)
    found = rows.values_list(is_set, models.Subquery(held)).first()
    most = terms.max_concurrency
    return found is not None and (found[0] or (most is not None and (found[1] or 0) >= most))


def mark(database: str, keys: Collection[str], terms: Terms | None) -> None:
    """Have workers look at the gates of these keys, of which there are many.

    Without ``terms`` a limit that is known keeps those that it has, and one that is not gets those of the task that
    waits there. One that somebody holds at the moment is left to the reaper.
    """
    rows = Limit.objects.using(database)
    changes: dict[str, Any] = {"next_at": Now()} | ({} if terms is None else terms._asdict())
    ordered = sorted(keys)
    for start in range(0, len(ordered), KEYS):
        some = ordered[start : start + KEYS]
        with transaction.atomic(using=database):
            said = dict.fromkeys(some, terms) if terms is not None else _declared(database, _unknown(rows, some))
            rows.bulk_create(
                [Limit(key=key, next_at=Now(), **known._asdict()) for key, known in said.items()], ignore_conflicts=True
            )
            rows.filter(pk__in=[limit.pk for limit in rows.filter(pk__in=some).lock()]).update(**changes)
    wake_after_commit(database, ANY_QUEUE)


def _unknown(rows: LimitQuerySet, keys: Collection[str]) -> list[str]:
    known = set(rows.filter(pk__in=keys).values_list("pk", flat=True))
    return [key for key in keys if key not in known]


def sweep(database: str) -> int:
    """Let in at every gate where there is room and nobody has looked: who should have may have died."""
    total, last = 0, ""
    while keys := _waiting(database, last):
        last = keys[-1]
        total += admit_all(database, _with_room(database, keys))
    return total


def _waiting(database: str, after: str) -> list[str]:
    """Return the first keys after one at whose gates tasks wait, by jumping from one to the next in their index."""
    keys = _tasks(database).gated().order_by("limit_key").values_list("limit_key")
    first = Statement.select(keys.filter(limit_key__gt=after)[:1])
    following = Statement.select(keys.filter(limit_key__gt=Here("keys.key", models.CharField()))[:1])
    sql = (
        f"WITH RECURSIVE keys (key) AS (SELECT ({first.sql}) UNION ALL"  # noqa: S608  # the ORM's
        f" SELECT ({following.sql}) FROM keys WHERE keys.key IS NOT NULL)"
        f" SELECT keys.key FROM keys WHERE keys.key IS NOT NULL LIMIT {KEYS}"
    )
    with connections[database].cursor() as cursor:
        cursor.execute(sql, (*first.params, *following.params))
        return [key for (key,) in cursor.fetchall()]


def _with_room(database: str, keys: Collection[str]) -> list[str]:
    inside = _tasks(database).filter(IS_ADMITTED, limit_key__in=keys).order_by()
    held = dict(inside.values_list("limit_key").annotate(count=Count("pk")))
    limit_rows = Limit.objects.using(database).annotate(clock=Now()).in_bulk(list(keys))
    return [key for key in keys if (one := limit_rows.get(key)) is None or _may_have_room(one, held.get(key, 0))]


def _may_have_room(limit: Limit, held: int) -> bool:
    is_time = limit.next_at is None or limit.next_at <= limit.now
    return is_time and (limit.max_concurrency is None or held < limit.max_concurrency)


def _tasks(database: str) -> TaskQuerySet:
    from .task import Task

    return Task.objects.using(database)
