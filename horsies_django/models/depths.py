"""How much is due in each queue, and for how long the oldest of it has waited.

Names and priorities are found by jumping from one to the next in the index of claims, and rows are counted no further
than a bound: that costs as much as there are queues in which something waits, however deep they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from django.db import connections
from django.db.models import SmallIntegerField

from ..expressions import SecondsUntil
from .statements import Statement
from .survey import Here, jumping

if TYPE_CHECKING:
    from .transitions import TaskQuerySet

#: Rows of a queue that are counted at most, of each kind.
COUNTED: Final = 1_000

#: Queues that are looked into at most.
QUEUES: Final = 100


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


def depths(tasks: TaskQuerySet, only: str | None = None) -> dict[str, Depth]:
    """Return the depth of each queue in which something is due, or of one, in three statements at most."""
    found: dict[str, Depth] = {}
    kinds = (False, True)
    names = [(name, kind) for kind in kinds for name in (_names(tasks, kind) if only is None else [only])]
    if not names:
        return found
    parts = [_depth(tasks, name, is_async) for name, is_async in names]
    sql = " UNION ALL ".join(part.sql for part in parts)
    with connections[tasks.db].cursor() as cursor:
        cursor.execute(sql, [param for part in parts for param in part.params])
        for name, due, waits in cursor.fetchall():
            depth = Depth(min(due, COUNTED), due > COUNTED, None if waits is None else max(0.0, -waits))
            found[name] = found.get(name, Depth()) + depth
    return found


def _names(tasks: TaskQuerySet, is_async: bool) -> list[str]:
    names = jumping(tasks, is_async)
    sql = f"WITH RECURSIVE {names.sql} SELECT name FROM names WHERE name IS NOT NULL LIMIT {QUEUES}"  # noqa: S608  # the ORM's
    with connections[tasks.db].cursor() as cursor:
        cursor.execute(sql, names.params)
        return [name for (name,) in cursor.fetchall()]


def _depth(tasks: TaskQuerySet, name: str, is_async: bool) -> Statement:
    rows, here = tasks.waiting(is_async=is_async).filter(queue_name=name), Here("ranks.priority", SmallIntegerField())
    due = tasks.next_up(is_async=is_async).filter(queue_name=name)  # in the order of the index, lest all is read
    counted = Statement.select(due.values_list("pk")[: COUNTED + 1])
    ranks = rows.order_by("-priority").values_list("priority")
    highest, lower = Statement.select(ranks[:1]), Statement.select(ranks.filter(priority__lt=here)[:1])
    first = rows.filter(priority=here).order_by("enqueued_at").values_list(SecondsUntil("enqueued_at"))
    oldest = Statement.select(first[:1])
    sql = (
        f"SELECT %s AS name, (SELECT COUNT(*) FROM ({counted.sql}) AS counted) AS due,"  # noqa: S608  # the ORM's
        f" (WITH RECURSIVE ranks (priority) AS (SELECT ({highest.sql}) UNION ALL SELECT ({lower.sql}) FROM ranks"
        f" WHERE ranks.priority IS NOT NULL) SELECT MIN(({oldest.sql})) FROM ranks WHERE ranks.priority IS NOT NULL)"
    )
    parts = (counted, highest, lower, oldest)
    return Statement(sql, (name, *(param for part in parts for param in part.params)))
