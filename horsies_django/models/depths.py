"""The number of due tasks in each queue, and how long the oldest has waited.

A skip scan of the index of claims finds names and priorities, and counts stop at a bound, so the cost does not grow
with the depth of the queues. The number of queues has a bound too, because projects may generate names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from django.db import connections
from django.db.models import CharField, Expression, SmallIntegerField

from ..db.expressions import BoundParam, OuterColumn, Param, SecondsUntil
from ..db.statements import Statement
from .queue_scan import NAME, skip_scan

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

#: Maximum queues, of each kind of task, that the search for the oldest task visits: one index lookup each.
MAX_SEARCHED: Final = 1_000

_QUEUE: Final = Param("queue")


@dataclass(frozen=True, slots=True)
class Depth:
    """The due tasks of a queue: their number, whether that is a lower bound, the seconds that the oldest has waited."""

    due: int = 0
    is_more: bool = False
    waits: float | None = None

    def __add__(self, other: Depth) -> Depth:
        """Add the depths of both kinds of task."""
        known = [waits for waits in (self.waits, other.waits) if waits is not None]
        return Depth(self.due + other.due, self.is_more or other.is_more, max(known, default=None))


class Depths(dict[str, Depth]):
    """Depths by name of queue. ``is_more`` is whether tasks wait in queues that were not counted.

    Then ``waits`` is the number of seconds that the oldest task of all queues has waited, and ``is_searched`` whether
    the search for it visited every queue.
    """

    is_more: bool = False
    waits: float | None = None
    is_searched: bool = True

    def of(self, name: str) -> Depth:
        """Return the depth of a queue; of one that was not counted, a lower bound of 0."""
        return self.get(name, Depth(is_more=self.is_more))


def depths(tasks: TaskQuerySet, only: str | None = None, also: Iterable[str] = ()) -> Depths:
    """Return the depth of each queue with due tasks, or of ``only`` one, in at most five statements.

    If there are more than ``MAX_QUEUES``, the first by name are counted, and the first of ``also`` that are not among
    them.
    """
    found = _counted(tasks, only, also)
    late = tasks.deferred().due().order_by("enqueued_at").values_list("queue_name", SecondsUntil("enqueued_at"))
    rows = list(late[: MAX_LATE + 1])
    for name, waits in rows[:MAX_LATE]:
        if only in (None, name):
            found[name] = found.of(name) + Depth(1, len(rows) > MAX_LATE, _ago(waits))
    return found


def _counted(tasks: TaskQuerySet, only: str | None, also: Iterable[str]) -> Depths:
    """Return the depths of the tasks in the index of claims."""
    found = Depths()
    waiting = {is_async: _names(tasks, is_async) if only is None else [only] for is_async in (False, True)}
    names = sorted({*waiting[False], *waiting[True]})
    if len(names) > MAX_QUEUES:
        found.is_more = True
        found.waits, found.is_searched = _oldest(tasks)
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
    depth_of = {is_async: _depth(tasks, is_async, bound) for is_async, known in waiting.items() if known}
    sql = " UNION ALL ".join(depth_of[is_async].sql for is_async, _ in parts)
    with connections[tasks.db].cursor() as cursor:
        cursor.execute(
            sql, [param for is_async, name in parts for param in depth_of[is_async].bind({_QUEUE.name: name})]
        )
        for name, due, waits in cursor.fetchall():
            found[name] = found.get(name, Depth()) + Depth(min(due, bound), due > bound, _ago(waits))
    return found


def _names(tasks: TaskQuerySet, is_async: bool) -> list[str]:
    """Return the names of queues with waiting tasks; one more than ``MAX_QUEUES`` if there are more."""
    names = skip_scan(tasks, is_async)
    sql = f"WITH RECURSIVE {names.sql} SELECT name FROM names WHERE name IS NOT NULL LIMIT {MAX_QUEUES + 1}"  # noqa: S608  # compiled by the ORM
    with connections[tasks.db].cursor() as cursor:
        cursor.execute(sql, names.params)
        return [name for (name,) in cursor.fetchall()]


def _oldest(tasks: TaskQuerySet) -> tuple[float | None, bool]:
    """Return how long the oldest task of all queues has waited, and whether the search visited all queues."""
    parts = [(skip_scan(tasks, is_async), _first_due(tasks, NAME, is_async)) for is_async in (False, True)]
    sql = " UNION ALL ".join(
        f"SELECT * FROM (WITH RECURSIVE {names.sql} SELECT MIN(({first.sql})), COUNT(*)"  # noqa: S608  # compiled by the ORM
        f" FROM (SELECT name FROM names WHERE name IS NOT NULL LIMIT {MAX_SEARCHED + 1}) AS names) AS kind"
        for names, first in parts
    )
    with connections[tasks.db].cursor() as cursor:
        cursor.execute(sql, [param for names, first in parts for param in (*names.params, *first.params)])
        rows = cursor.fetchall()
    known = [ago for waits, _ in rows if (ago := _ago(waits)) is not None]
    return max(known, default=None), all(count <= MAX_SEARCHED for _, count in rows)


def _ago(waits: float | None) -> float | None:
    return None if waits is None else max(0.0, -waits)


def _depth(tasks: TaskQuerySet, is_async: bool, bound: int) -> Statement:
    name = BoundParam(_QUEUE, CharField())  # compiled once: the ORM takes longer than the database
    due = tasks.next_up(is_async=is_async).filter(
        queue_name=name
    )  # in index order, so that the read stops at the bound
    counted = Statement.select(due.values_list("pk")[: bound + 1])
    first = _first_due(tasks, name, is_async)
    sql = f"SELECT %s AS name, (SELECT COUNT(*) FROM ({counted.sql}) AS counted) AS due, ({first.sql})"  # noqa: S608  # compiled by the ORM
    return Statement(sql, (_QUEUE, *counted.params, *first.params))


def _first_due(tasks: TaskQuerySet, name: Expression, is_async: bool) -> Statement:
    """Return the seconds until the first due task of a queue, of any priority; they are negative."""
    rows, here = (
        tasks.waiting(is_async=is_async).filter(queue_name=name),
        OuterColumn("ranks.priority", SmallIntegerField()),
    )
    ranks = rows.order_by("-priority").values_list("priority")
    highest, lower = Statement.select(ranks[:1]), Statement.select(ranks.filter(priority__lt=here)[:1])
    oldest = Statement.select(
        rows.filter(priority=here).order_by("enqueued_at").values_list(SecondsUntil("enqueued_at"))[:1]
    )
    sql = (
        f"WITH RECURSIVE ranks (priority) AS (SELECT ({highest.sql}) UNION ALL SELECT ({lower.sql}) FROM ranks"  # noqa: S608  # compiled by the ORM
        f" WHERE ranks.priority IS NOT NULL) SELECT MIN(({oldest.sql})) FROM ranks WHERE ranks.priority IS NOT NULL"
    )
    return Statement(sql, (*highest.params, *lower.params, *oldest.params))
