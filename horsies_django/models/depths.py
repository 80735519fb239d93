"""How much is due in each queue, and for how long the oldest of it has waited.

Names and priorities are found by jumping from one to the next in the index of claims, and rows are counted no further
than a bound, however deep the queues are. Names may be made up, so of these there is a bound too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from django.db import connections
from django.db.models import CharField, Expression, SmallIntegerField

from ..db.expressions import BoundParam, Param, SecondsUntil
from ..db.statements import Statement
from .queue_scan import NAME, OuterColumn, skip_scan

if TYPE_CHECKING:
    from .transitions import TaskQuerySet

#: Rows of a queue that are counted at most, of each kind.
MAX_COUNTED: Final = 1_000

#: Queues that are looked into at most because tasks wait there; where that is not all, so many others that are known.
MAX_QUEUES: Final = 100

#: Queues, for each kind of task, among which the oldest of all is looked for: a jump into each is all that it takes.
MAX_SEARCHED: Final = 1_000

_QUEUE: Final = Param("queue")


@dataclass(frozen=True, slots=True)
class Depth:
    """What is due in a queue: how much, whether that is but the least, the seconds that its oldest has waited."""

    due: int = 0
    is_more: bool = False
    waits: float | None = None

    def __add__(self, other: Depth) -> Depth:
        """Both kinds of task together."""
        known = [waits for waits in (self.waits, other.waits) if waits is not None]
        return Depth(self.due + other.due, self.is_more or other.is_more, max(known, default=None))


class Depths(dict[str, Depth]):
    """Depths by the names of queues. ``is_more`` is whether tasks wait in queues that were not looked into.

    ``waits`` are then the seconds that the oldest of all has waited, of whichever queue; ``is_searched`` is whether no
    queue was left out of the search for it, so that none can have waited longer.
    """

    is_more: bool = False
    waits: float | None = None
    is_searched: bool = True

    def of(self, name: str) -> Depth:
        """Return the depth of a queue; of one that was not looked into nothing is known but that it is not negative."""
        return self.get(name, Depth(is_more=self.is_more))


def depths(tasks: TaskQuerySet, only: str | None = None, also: Iterable[str] = ()) -> Depths:
    """Return the depth of each queue in which something is due, or of one, in four statements at most.

    Of more than ``QUEUES`` the first by name are looked into, and the first of ``also``, in its order, that are not
    among them.
    """
    found = Depths()
    waiting = {is_async: _names(tasks, is_async) if only is None else [only] for is_async in (False, True)}
    names = sorted({*waiting[False], *waiting[True]})
    if len(names) > MAX_QUEUES:
        found.is_more = True
        found.waits, found.is_searched = _oldest(tasks)
        first = names[:MAX_QUEUES]
        names = [*first, *[name for name in dict.fromkeys(also) if name not in first][:MAX_QUEUES]]
        found.update(dict.fromkeys(names, Depth()))
    depth_of = {is_async: _depth(tasks, is_async) for is_async, known in waiting.items() if known}
    parts = [
        (depth_of[is_async], name)
        for is_async, known in waiting.items()
        for name in names
        if name in known or len(known) > MAX_QUEUES  # or it may wait behind those
    ]
    if not parts:
        return found
    sql = " UNION ALL ".join(part.sql for part, _ in parts)
    with connections[tasks.db].cursor() as cursor:
        cursor.execute(sql, [param for part, name in parts for param in part.bind({_QUEUE.name: name})])
        for name, due, waits in cursor.fetchall():
            found[name] = found.get(name, Depth()) + Depth(min(due, MAX_COUNTED), due > MAX_COUNTED, _ago(waits))
    return found


def _names(tasks: TaskQuerySet, is_async: bool) -> list[str]:
    """One more than are looked into, if there are more."""
    names = skip_scan(tasks, is_async)
    sql = f"WITH RECURSIVE {names.sql} SELECT name FROM names WHERE name IS NOT NULL LIMIT {MAX_QUEUES + 1}"  # noqa: S608  # the ORM's
    with connections[tasks.db].cursor() as cursor:
        cursor.execute(sql, names.params)
        return [name for (name,) in cursor.fetchall()]


def _oldest(tasks: TaskQuerySet) -> tuple[float | None, bool]:
    """For how long the oldest of all has waited, by jumping through the queues, and whether those were all of them."""
    parts = [(skip_scan(tasks, is_async), _first_due(tasks, NAME, is_async)) for is_async in (False, True)]
    sql = " UNION ALL ".join(
        f"SELECT * FROM (WITH RECURSIVE {names.sql} SELECT MIN(({first.sql})), COUNT(*)"  # noqa: S608  # the ORM's
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


def _depth(tasks: TaskQuerySet, is_async: bool) -> Statement:
    name = BoundParam(_QUEUE, CharField())  # the ORM takes longer to write this than the database to do it
    due = tasks.next_up(is_async=is_async).filter(queue_name=name)  # in the order of the index, lest all is read
    counted = Statement.select(due.values_list("pk")[: MAX_COUNTED + 1])
    first = _first_due(tasks, name, is_async)
    sql = f"SELECT %s AS name, (SELECT COUNT(*) FROM ({counted.sql}) AS counted) AS due, ({first.sql})"  # noqa: S608  # the ORM's
    return Statement(sql, (_QUEUE, *counted.params, *first.params))


def _first_due(tasks: TaskQuerySet, name: Expression, is_async: bool) -> Statement:
    """The seconds until what is due first in a queue, of whatever priority; they are negative."""
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
        f"WITH RECURSIVE ranks (priority) AS (SELECT ({highest.sql}) UNION ALL SELECT ({lower.sql}) FROM ranks"  # noqa: S608  # the ORM's
        f" WHERE ranks.priority IS NOT NULL) SELECT MIN(({oldest.sql})) FROM ranks WHERE ranks.priority IS NOT NULL"
    )
    return Statement(sql, (*highest.params, *lower.params, *oldest.params))
