"""Decides when the concurrency limiter checks which limit keys.

A task with a limit key is blocked until its limit has room; a blocked task is in no index of the claim. A transaction
that locks the key's :class:`~.limit.Limit` releases as many blocked tasks as there is room for (see
:mod:`.concurrency_limiter`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from django.db import models, transaction
from django.db.models import Case, Count, Q, Value, When

from ..core.status import TaskStatus
from ..db.errors import concerns_all_rows, row_by_row
from ..db.notifications import ANY_QUEUE, wake_after_commit
from ..db.now import Now
from ..db.on_commit import on_commit_robust
from ..db.skip_scan import distinct
from .claims import TaskRoute
from .concurrency_limiter import (
    KEYS_PER_TRANSACTION,
    UNOCCUPIED,
    Released,
    lock_limits,
    occupancy_of,
    release,
    room_of,
    with_first_task,
)
from .filters import IS_RELEASED
from .limit import Limit

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


def _tasks(database: str) -> TaskQuerySet:
    from .task import Task

    return Task.objects.using(database)
