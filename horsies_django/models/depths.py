"""The number of due and of blocked tasks in each queue, and how long the oldest of them have waited.

A skip scan of the index of claims finds names and priorities, and counts stop at a bound, so the cost does not grow
with the depth of the queues. The number of queues has a bound too, because projects may generate names. No index has
the blocked tasks of one queue: they are counted for all queues together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from django.db import connections
from django.db.models import Case, CharField, QuerySet, SmallIntegerField, When

from ..db.expressions import BoundParam, OuterColumn, Param, SecondsUntil
from ..db.statements import Statement
from .claim.query import DUE_AT, ORDER, not_past_deadline
from .queue_scan import NAME, scan_names, skip_scan

if TYPE_CHECKING:
    from .transitions import TaskQuerySet

#: Maximum rows that are counted of a queue, of each kind, and of all queues together if these are many. Each row is
#: read from the table.
MAX_COUNTED: Final = 1_000
MAX_COUNTED_OF_ALL: Final = 20_000

#: Maximum tasks counted of those that have become due and that no worker has moved into the index of claims yet.
MAX_LATE: Final = 1_000

#: Maximum queues with waiting tasks that are counted. If there are more, as many of the known queues are counted too.
MAX_QUEUES: Final = 100

#: Maximum blocked tasks that are counted of all queues together.
MAX_BLOCKED: Final = 10_000

#: Maximum queues, of each kind of task, and maximum limit keys, that a search for the oldest task visits.
MAX_SEARCHED: Final = 1_000

#: Maximum tasks of one priority that such a search compares: their limits may have released the first of them last.
MAX_COMPARED: Final = 50

#: Maximum released tasks of one priority, of a queue and of all queues together, behind which it finds the first task
#: that no limit has released.
MAX_RELEASED: Final = 10_000
MAX_RELEASED_OF_ALL: Final = 100_000

_QUEUE: Final = Param("queue")
_LIMIT: Final = Param("limit")

_UNTIL_DUE: Final = SecondsUntil(DUE_AT)


@dataclass(frozen=True, slots=True)
class Depth:
    """The due and the blocked tasks of a queue: their numbers, and the seconds that the oldest of each has waited.

    ``is_more`` and ``is_more_blocked`` are whether the numbers are lower bounds. ``is_searched`` is whether the search
    for the oldest due task was complete; otherwise ``waits`` is a lower bound. ``blocked_waits`` is of tasks that wait
    for a limit; those that a paused workflow holds back are only counted.
    """

    due: int = 0
    is_more: bool = False
    waits: float | None = None
    blocked: int = 0
    is_more_blocked: bool = False
    blocked_waits: float | None = None
    is_searched: bool = True

    def __add__(self, other: Depth) -> Depth:
        """Add the depths of other tasks of the queue."""
        return Depth(
            self.due + other.due,
            self.is_more or other.is_more,
            longest(self.waits, other.waits),
            self.blocked + other.blocked,
            self.is_more_blocked or other.is_more_blocked,
            longest(self.blocked_waits, other.blocked_waits),
            self.is_searched and other.is_searched,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the dict that ``horsies_status --json`` prints of a queue. Times are in seconds."""
        return {
            "due": self.due,
            "due_is_at_least": self.is_more,
            "oldest_waits": self.waits,
            "oldest_waits_is_at_least": not self.is_searched,
            "blocked": self.blocked,
            "blocked_is_at_least": self.is_more_blocked,
            "oldest_blocked_waits": self.blocked_waits,
        }


class Depths(dict[str, Depth]):
    """Depths by name of queue. ``is_more`` is whether due tasks wait in queues that were not counted.

    ``waits`` and ``blocked_waits`` are of the oldest due and the oldest blocked task of all queues, in seconds.
    ``is_searched`` and ``is_searched_blocked`` are whether the searches for these two were complete; otherwise they are
    lower bounds.
    """

    is_more: bool = False
    waits: float | None = None
    is_searched: bool = True
    is_more_blocked: bool = False
    blocked_waits: float | None = None
    is_searched_blocked: bool = True

    def of(self, name: str) -> Depth:
        """Return the depth of a queue; of one that was not counted, a lower bound of 0."""
        unknown = Depth(is_more=self.is_more, is_more_blocked=self.is_more_blocked, is_searched=not self.is_more)
        return self.get(name, unknown)


def longest(*waits: float | None) -> float | None:
    """Return the longest of some waits; None if there is none."""
    return max((seconds for seconds in waits if seconds is not None), default=None)


def depths(tasks: TaskQuerySet, only: str | None = None, also: Iterable[str] = ()) -> Depths:
    """Return the depth of each queue with due or blocked tasks, or of ``only`` one, in at most six statements.

    If more than ``MAX_QUEUES`` have due tasks, the first by name are counted, and the first of ``also`` that are not
    among them.
    """
    found = _counted(tasks, only, also)
    _add_unclaimable(found, tasks, only)
    found.waits = longest(found.waits, *(depth.waits for depth in found.values()))
    found.blocked_waits = longest(found.blocked_waits, *(depth.blocked_waits for depth in found.values()))
    return found


def depths_of_limits(tasks: TaskQuerySet, keys: Sequence[str]) -> dict[str, Depth]:
    """Return the blocked tasks of each of these limits, by its key, in one statement."""
    if not keys:
        return {}
    bound = min(MAX_COUNTED, MAX_COUNTED_OF_ALL // len(keys))
    rows = tasks.blocked().filter(limit_key=BoundParam(_LIMIT, CharField()))
    counted = Statement.part(rows.filter(not_past_deadline()).order_by(*ORDER).values_list("pk")[: bound + 1])
    first = _oldest_of(_one_name(_LIMIT), tasks.blocked().filter(limit_key=NAME), len(keys))
    sql = f"SELECT %s, (SELECT COUNT(*) FROM ({counted.sql}) AS counted), oldest.until FROM ({first.sql}) AS oldest"  # noqa: S608  # compiled by the ORM
    one = Statement(sql, (_LIMIT, *counted.params, *first.params))
    with connections[tasks.db].cursor() as cursor:
        params = [param for key in keys for param in one.bind({_LIMIT.name: key})]
        cursor.execute(" UNION ALL ".join([one.sql] * len(keys)), params)
        return {
            key: Depth(blocked=min(blocked, bound), is_more_blocked=blocked > bound, blocked_waits=_ago(until))
            for key, blocked, until in cursor.fetchall()
        }


def _counted(tasks: TaskQuerySet, only: str | None, also: Iterable[str]) -> Depths:
    """Return the depths of the tasks in the index of claims."""
    found = Depths()
    waiting = {is_async: _names(tasks, is_async) if only is None else [only] for is_async in (False, True)}
    names = sorted({*waiting[False], *waiting[True]})
    if len(names) > MAX_QUEUES:
        found.is_more = True
        found.waits, found.is_searched = _oldest_due(tasks)
        first = names[:MAX_QUEUES]
        names = [*first, *[name for name in dict.fromkeys(also) if name not in first][:MAX_QUEUES]]
        found.update(dict.fromkeys(names, Depth()))
    parts = [
        (is_async, name)
        for is_async, known in waiting.items()
        for name in names
        if name in known or len(known) > MAX_QUEUES  # it may have tasks beyond the names that were read
    ]
    if not parts:
        return found
    bound = min(MAX_COUNTED, MAX_COUNTED_OF_ALL // len(parts))
    depth_of = {is_async: _depth(tasks, is_async, bound, len(parts)) for is_async, known in waiting.items() if known}
    sql = " UNION ALL ".join(depth_of[is_async].sql for is_async, _ in parts)
    with connections[tasks.db].cursor() as cursor:
        cursor.execute(
            sql, [param for is_async, name in parts for param in depth_of[is_async].bind({_QUEUE.name: name})]
        )
        for name, due, first, oldest, is_searched in cursor.fetchall():
            waits = longest(_ago(first), _ago(oldest))
            depth = Depth(min(due, bound), due > bound, waits, is_searched=due <= bound or bool(is_searched))
            found[name] = found.get(name, Depth()) + depth
    if not found.is_more:
        found.is_searched = all(depth.is_searched for depth in found.values())
    return found


def _add_unclaimable(found: Depths, tasks: TaskQuerySet, only: str | None) -> None:
    """Add the tasks outside the index of claims: those that no worker has moved into it yet, and the blocked ones.

    If the blocked ones are too many to count, search their limits for the oldest.
    """
    until = Case(When(limit_key__isnull=False, then=_UNTIL_DUE))
    deferred = tasks.deferred() if only is None else tasks.deferred().filter(queue_name=only)
    late: QuerySet[Any] = deferred.due().order_by("enqueued_at").annotate(until=_UNTIL_DUE)
    blocked: QuerySet[Any] = tasks.blocked().filter(not_past_deadline()).order_by("limit_key", *ORDER)
    bounded = (late[: MAX_LATE + 1], blocked.annotate(until=until)[: MAX_BLOCKED + 1])
    parts = [Statement.part(rows.values_list("queue_name", "until")) for rows in bounded]
    sql = " UNION ALL ".join(
        f"SELECT {number}, queue_name, COUNT(*), MIN(until) FROM ({part.sql}) AS counted GROUP BY queue_name"  # noqa: S608  # compiled by the ORM
        for number, part in enumerate(parts)
    )
    with connections[tasks.db].cursor() as cursor:
        cursor.execute(sql, [param for part in parts for param in part.params])
        rows = cursor.fetchall()
    totals = [sum(count for number, _, count, _ in rows if number == is_blocked) for is_blocked in (0, 1)]
    for is_blocked, name, count, first in rows:
        if only in (None, name):
            waits = _ago(first)
            found[name] = found.of(name) + (
                Depth(blocked=min(count, MAX_BLOCKED), blocked_waits=waits)
                if is_blocked
                else Depth(min(count, MAX_LATE), waits=waits)
            )
    if totals[0] > MAX_LATE:
        found.is_more = True  # the oldest of all is among those that were read, but not the oldest of each queue
        is_searched = only is not None
        found.update({name: replace(depth, is_more=True, is_searched=is_searched) for name, depth in found.items()})
    if totals[1] > MAX_BLOCKED:
        found.is_more_blocked = True
        found.update({name: replace(depth, is_more_blocked=True) for name, depth in found.items()})
        if only is None:
            found.blocked_waits, found.is_searched_blocked = _oldest_blocked(tasks)
        else:
            found.is_searched_blocked = False


def _names(tasks: TaskQuerySet, is_async: bool) -> list[str]:
    """Return the names of queues with waiting tasks; one more than ``MAX_QUEUES`` if there are more."""
    names = skip_scan(tasks, is_async)
    sql = f"WITH RECURSIVE {names.sql} SELECT name FROM names WHERE name IS NOT NULL LIMIT {MAX_QUEUES + 1}"  # noqa: S608  # compiled by the ORM
    with connections[tasks.db].cursor() as cursor:
        cursor.execute(sql, names.params)
        return [name for (name,) in cursor.fetchall()]


def _oldest_due(tasks: TaskQuerySet) -> tuple[float | None, bool]:
    """Return how long the oldest due task has waited, and whether the search was complete."""
    kinds = (False, True)
    return _oldest(
        tasks, [(skip_scan(tasks, kind), tasks.waiting(is_async=kind).filter(queue_name=NAME)) for kind in kinds]
    )


def _oldest_blocked(tasks: TaskQuerySet) -> tuple[float | None, bool]:
    """Return how long the oldest task that waits for a limit has waited, and whether the search was complete."""
    limited = tasks.blocked().filter(limit_key__isnull=False)
    return _oldest(tasks, [(scan_names(limited, "limit_key"), limited.filter(limit_key=NAME))])


def _oldest(tasks: TaskQuerySet, parts: Iterable[tuple[Statement, TaskQuerySet]]) -> tuple[float | None, bool]:
    """Search the rows of each name of some scans; return the longest wait, and whether the search was complete."""
    searches = [_oldest_of(names, rows, MAX_SEARCHED) for names, rows in parts]
    sql = " UNION ALL ".join(f"SELECT * FROM ({search.sql}) AS kind" for search in searches)  # noqa: S608  # compiled by the ORM
    with connections[tasks.db].cursor() as cursor:
        cursor.execute(sql, [param for search in searches for param in search.params])
        rows = cursor.fetchall()
    return longest(*(_ago(until) for until, _ in rows)), all(is_searched for _, is_searched in rows)


def _ago(until: float | None) -> float | None:
    return None if until is None else max(0.0, -until)


def _depth(tasks: TaskQuerySet, is_async: bool, bound: int, parts: int) -> Statement:
    """Return the name of a queue, the number of its due tasks, and twice the seconds until the first was due.

    These are negative, once of the counted tasks and once of the oldest ones of each priority. The last column is
    whether the search for these was complete.
    """
    name = BoundParam(_QUEUE, CharField())  # compiled once: the ORM takes longer than the database
    due: QuerySet[Any] = tasks.next_up(is_async=is_async).filter(
        queue_name=name
    )  # in index order, so that the read stops at the bound
    counted = Statement.part(due.annotate(until=_UNTIL_DUE).values_list("until")[: bound + 1])
    oldest = _oldest_of(_one_name(_QUEUE), tasks.waiting(is_async=is_async).filter(queue_name=NAME), parts)
    sql = (
        "SELECT %s, counted.number, counted.until, oldest.until, oldest.is_searched FROM"  # noqa: S608  # compiled by the ORM
        f" (SELECT COUNT(*) AS number, MIN(until) AS until FROM ({counted.sql}) AS first) AS counted,"
        f" ({oldest.sql}) AS oldest"
    )
    return Statement(sql, (_QUEUE, *counted.params, *oldest.params))


def _one_name(param: Param) -> Statement:
    """Return ``names (name) AS …`` with the one name that each run gives."""
    return Statement("names (name) AS (SELECT %s)", (param,))


def _oldest_of(names: Statement, rows: TaskQuerySet, parts: int) -> Statement:
    """Return the seconds until the oldest of the rows of each name was due, and whether the search was complete.

    An index has the rows of each priority by ``enqueued_at``. The first of those that no limit released is the oldest
    of these. If more released ones than are compared are in front of it, one of them may be older.
    """
    bound = min(MAX_RELEASED, MAX_RELEASED_OF_ALL // parts)
    here = OuterColumn("names.priority", SmallIntegerField())
    ranked = rows.order_by("-priority").values_list("priority")
    highest, lower = Statement.part(ranked[:1]), Statement.part(ranked.filter(priority__lt=here)[:1])
    due: QuerySet[Any] = rows.filter(not_past_deadline(), priority=here).order_by("enqueued_at")
    columns = due.annotate(until=_UNTIL_DUE).values_list("until", "released_at")
    compared, searched = Statement.part(columns[:MAX_COMPARED]), Statement.part(columns[:bound])
    sql = (
        f"WITH RECURSIVE {names.sql}, ranks (name, priority, is_highest) AS ("  # noqa: S608  # compiled by the ORM
        f"SELECT names.name, ({highest.sql}), 1 FROM ("
        f"SELECT name FROM names WHERE name IS NOT NULL LIMIT {MAX_SEARCHED + 1}) AS names"
        f" UNION ALL SELECT names.name, ({lower.sql}), 0 FROM ranks AS names WHERE names.priority IS NOT NULL)"
        " SELECT MIN(until) AS until,"
        f" COALESCE(SUM(is_highest) <= {MAX_SEARCHED} AND MAX(released) < {MAX_COMPARED}, TRUE) AS is_searched FROM ("
        f"SELECT names.is_highest, (SELECT MIN(until) FROM ({compared.sql}) AS compared) AS until,"
        f" (SELECT COUNT(released_at) FROM ({compared.sql}) AS compared) AS released"
        " FROM ranks AS names WHERE names.priority IS NOT NULL"
        # A subquery with a limit gives its rows in order, so the read stops at the first that no limit released.
        f" UNION ALL SELECT 0, (SELECT until FROM ({searched.sql}) AS searched WHERE released_at IS NULL LIMIT 1), 0"
        " FROM ranks AS names WHERE names.priority IS NOT NULL) AS oldest"
    )
    params = (names, highest, lower, compared, compared, searched)
    return Statement(sql, tuple(param for part in params for param in part.params))
