"""The number of due and of blocked tasks in each queue, and how long the oldest of them have waited.

A skip scan of the index of claims finds names, and counts stop at a bound, so the cost does not grow with the depth of
the queues. The number of queues has a bound too, because projects may generate names. No index has the blocked tasks of
one queue: they are counted for all queues together.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from django.db import connections
from django.db.models import Case, CharField, QuerySet, SmallIntegerField, When

from ..db.expressions import OuterColumn, SecondsUntil
from ..db.skip_scan import distinct, skip_scan
from ..db.statements import JSON, Statement, decode_rows
from .claim.query import DUE_AT, ORDER, not_past_deadline

if TYPE_CHECKING:
    from .transitions import TaskQuerySet

#: Maximum rows of a kind that are counted of a queue, and of all queues together if these are many. Each row is read
#: from the table.
MAX_COUNTED: Final = 1_000
MAX_COUNTED_OF_ALL: Final = 20_000

#: Maximum queues with more tasks, of whose lower priorities the oldest is searched, and rows of a priority compared.
MAX_DEEP: Final = 50
_COMPARED: Final = 50
_PRIORITIES: Final = 201  # from -100 to 100

#: Maximum tasks counted of those that have become due and that no worker has moved into the index of claims yet.
MAX_LATE: Final = 1_000

#: Maximum queues of each kind of task, and maximum limit keys, whose tasks are read.
MAX_SEARCHED: Final = 1_000

#: Maximum queues with waiting tasks that are returned. If there are more, as many of the known queues are too.
MAX_QUEUES: Final = 100

#: Maximum blocked tasks that are counted of all queues together.
MAX_BLOCKED: Final = 10_000

_UNTIL_DUE: Final = SecondsUntil(DUE_AT)

#: The queue, or the limit key, that a part of a statement is about: see :func:`_answers`.
_ASKED: Final = OuterColumn("asked.name", CharField())


@dataclass(frozen=True, slots=True)
class Depth:
    """The due and the blocked tasks of a queue: their numbers, and the seconds that the oldest of each has waited.

    ``is_more`` and ``is_more_blocked`` are whether the numbers and the waits are lower bounds. ``blocked_waits`` is of
    tasks that wait for a limit; those that a paused workflow holds back are only counted.
    """

    due: int = 0
    is_more: bool = False
    waits: float | None = None
    blocked: int = 0
    is_more_blocked: bool = False
    blocked_waits: float | None = None

    def __add__(self, other: Depth) -> Depth:
        """Add the depths of other tasks of the queue."""
        return Depth(
            self.due + other.due,
            self.is_more or other.is_more,
            longest(self.waits, other.waits),
            self.blocked + other.blocked,
            self.is_more_blocked or other.is_more_blocked,
            longest(self.blocked_waits, other.blocked_waits),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the dict that ``horsies_status --json`` prints of a queue. Times are in seconds."""
        return {
            "due": self.due,
            "due_is_at_least": self.is_more,
            "oldest_waits": self.waits,
            "oldest_waits_is_at_least": self.is_more,
            "blocked": self.blocked,
            "blocked_is_at_least": self.is_more_blocked,
            "oldest_blocked_waits": self.blocked_waits,
        }


class Depths(dict[str, Depth]):
    """Depths by name of queue. ``is_more`` is whether due tasks wait in other queues.

    ``waits`` and ``blocked_waits`` are of the oldest due and the oldest blocked task of all queues, in seconds. They
    are lower bounds unless ``is_searched`` and ``is_searched_blocked``.
    """

    is_more: bool = False
    waits: float | None = None
    is_searched: bool = True
    is_more_blocked: bool = False
    blocked_waits: float | None = None
    is_searched_blocked: bool = True

    def of(self, name: str) -> Depth:
        """Return the depth of a queue; of one that was not counted, a lower bound of 0."""
        return self.get(name, Depth(is_more=self.is_more, is_more_blocked=self.is_more_blocked))


def longest(*waits: float | None) -> float | None:
    """Return the longest of some waits; None if there is none."""
    return max((seconds for seconds in waits if seconds is not None), default=None)


def depths(tasks: TaskQuerySet, only: str | None = None, also: Iterable[str] = ()) -> Depths:
    """Return the depth of each queue with due or blocked tasks, or of ``only`` one, in at most seven statements.

    If more than ``MAX_QUEUES`` have due tasks, these are the first by name, and the first of ``also`` that are not
    among them.
    """
    result = _claimable(tasks, only, also)
    _add_late(result, tasks if only is None else tasks.filter(queue_name=only))
    _add_blocked(result, tasks, only)
    return result


def depths_of_limits(tasks: TaskQuerySet, keys: Collection[str]) -> dict[str, Depth]:
    """Return the blocked tasks of each of these limits, by its key, in one statement."""
    rows = tasks.blocked().filter(not_past_deadline(), limit_key=_ASKED).order_by(*ORDER)
    return {
        key: Depth(blocked=depth.due, is_more_blocked=depth.is_more, blocked_waits=depth.waits)
        for key, depth in _count(keys, rows).items()
    }


def _claimable(tasks: TaskQuerySet, only: str | None, also: Iterable[str]) -> Depths:
    """Return the depths of the tasks in the index of claims."""
    result = Depths()
    names = _waiting_names(tasks) if only is None else {False: [only], True: [only]}
    is_partial = any(len(queues) > MAX_SEARCHED for queues in names.values())
    others = dict.fromkeys(also)
    all_names = sorted({*names[False], *names[True], *(others if is_partial else ())})
    rows = [tasks.next_up(is_async=kind).filter(queue_name=_ASKED) for kind, queues in names.items() if queues]
    counts = _count(all_names, *rows)
    deep = [name for name, depth in counts.items() if depth.is_more][:MAX_DEEP]
    if deep:
        for name, waits in _search_priorities(tasks, deep, names).items():
            counts[name] += Depth(waits=waits)
    result.is_searched = not (is_partial or any(depth.is_more for depth in counts.values()))
    result.waits = longest(*(depth.waits for depth in counts.values()))
    result.is_more = len(all_names) > MAX_QUEUES
    first = all_names[:MAX_QUEUES]
    if result.is_more:
        first += [name for name in others if name not in first][:MAX_QUEUES]
    result.update({name: counts.get(name, Depth()) for name in first})
    return result


def _search_priorities(tasks: TaskQuerySet, queues: Collection[str], kinds: Iterable[bool]) -> dict[str, float | None]:
    """Return how long the first tasks of each priority have waited, the longest of each queue: the index has them.

    A task of a low priority can wait for hours behind more of a higher one than are counted. Tasks that a limit has
    released are not in the order of their waits. So what is found remains a lower bound.
    """
    priority = OuterColumn("names.name", SmallIntegerField())
    parts = []
    for kind in kinds:
        rows = tasks.next_up(is_async=kind).filter(queue_name=_ASKED)
        first = rows.filter(priority=priority).annotate(until=_UNTIL_DUE).values_list("until")[:_COMPARED]
        parts.append(
            Statement.compose(
                "WITH RECURSIVE {names} SELECT MIN((SELECT MIN(until) FROM ({first}) AS compared))"
                " FROM names WHERE name IS NOT NULL",
                names=skip_scan(rows, "priority", _PRIORITIES),
                first=Statement.part(first),
            )
        )
    return {name: longest(*map(_ago, untils)) for name, *untils in _answers(queues, parts, tasks.db)}


def _add_late(result: Depths, tasks: TaskQuerySet) -> None:
    """Add the due tasks that no worker has moved into the index of claims yet."""
    late: QuerySet[Any] = tasks.deferred().due().order_by("enqueued_at").annotate(until=_UNTIL_DUE)
    counts, is_more = _by_queue(late, MAX_LATE)
    for name, (count, waits) in counts.items():
        result[name] = result.of(name) + Depth(min(count, MAX_LATE), waits=waits)
        result.waits = longest(result.waits, waits)
    if is_more:  # the oldest of all is among those that were read, but not the oldest of each queue
        result.is_more = True
        result.update({name: replace(depth, is_more=True) for name, depth in result.items()})


def _add_blocked(result: Depths, tasks: TaskQuerySet, only: str | None) -> None:
    """Add the blocked tasks. If they are too many to count, read the first ones of each limit for the oldest."""
    until = Case(When(limit_key__isnull=False, then=_UNTIL_DUE))
    blocked = tasks.blocked().filter(not_past_deadline()).order_by("limit_key", *ORDER).annotate(until=until)
    counts, is_more = _by_queue(blocked, MAX_BLOCKED)
    for name, (count, waits) in counts.items():
        if only in (None, name):
            result[name] = result.of(name) + Depth(blocked=min(count, MAX_BLOCKED), blocked_waits=waits)
            result.blocked_waits = longest(result.blocked_waits, waits)
    if is_more:
        result.is_more_blocked = True
        result.update({name: replace(depth, is_more_blocked=True) for name, depth in result.items()})
        limited = tasks.blocked().filter(limit_key__isnull=False)
        keys = distinct(limited, "limit_key", MAX_SEARCHED + 1).rows(tasks.db) if only is None else []
        limits = depths_of_limits(tasks, [key for (key,) in keys]).values()
        result.blocked_waits = longest(result.blocked_waits, *(depth.blocked_waits for depth in limits))
        are_all = 0 < len(keys) <= MAX_SEARCHED
        result.is_searched_blocked = are_all and not any(depth.is_more_blocked for depth in limits)


def _waiting_names(tasks: TaskQuerySet) -> dict[bool, list[str]]:
    """Return the queues with waiting tasks of each kind; one more than ``MAX_SEARCHED`` if there are more."""
    names: dict[bool, list[str]] = {False: [], True: []}
    kinds = [
        Statement.compose(
            "SELECT {kind}, name FROM ({names}) AS waiting",
            kind=int(kind),
            names=distinct(tasks.waiting(is_async=kind), "queue_name", MAX_SEARCHED + 1),
        )
        for kind in names
    ]
    for kind, name in Statement.join(" UNION ALL ", kinds).rows(tasks.db):
        names[bool(kind)].append(name)
    return names


def _by_queue(rows: QuerySet[Any], limit: int) -> tuple[dict[str, tuple[int, float | None]], bool]:
    """Count the first rows of each queue; return with each count how long the oldest has waited, and whether all were.

    The rows are annotated with the seconds ``until`` they were due.
    """
    counted = Statement.compose(
        "SELECT queue_name, COUNT(*), MIN(until) FROM ({rows}) AS counted GROUP BY queue_name",
        rows=Statement.part(rows.values_list("queue_name", "until")[: limit + 1]),
    )
    counts = {name: (count, _ago(until)) for name, count, until in counted.rows(rows.db)}
    return counts, sum(count for count, _ in counts.values()) > limit


def _count(names: Collection[str], *parts: QuerySet[Any]) -> dict[str, Depth]:
    """Count the first rows of each name in each of the parts, which are about :data:`_ASKED`, in one statement."""
    if not names or not parts:
        return {}
    database, bound = parts[0].db, min(MAX_COUNTED, MAX_COUNTED_OF_ALL // len(names))
    counts = [
        Statement.compose(
            "SELECT {array}(COUNT(*), MIN(until)) FROM ({rows}) AS counted",
            array=JSON[connections[database].vendor].values,
            # In index order, so that the read stops at the bound.
            rows=Statement.part(rows.annotate(until=_UNTIL_DUE).values_list("until")[: bound + 1]),
        )
        for rows in parts
    ]
    depths = dict[str, Depth]()
    for name, *answers in _answers(names, counts, database):
        depths[name] = Depth()
        for count, until in map(decode_rows, answers):
            depths[name] += Depth(min(count, bound), count > bound, _ago(until))
    return depths


def _answers(names: Collection[str], parts: Collection[Statement], database: str) -> list[Any]:
    """Return each of the names with the values of the parts, which are about :data:`_ASKED`, in one statement."""
    whole = Statement.compose(
        "SELECT name, ({parts}) FROM (SELECT value AS name FROM {elements}) AS asked",
        parts=Statement.join("), (", parts),
        elements=Statement(JSON[connections[database].vendor].elements, (json.dumps(list(names)),)),
    )
    return whole.rows(database)


def _ago(until: float | None) -> float | None:
    return None if until is None else max(0.0, -until)
