"""Counts of tasks by state: exact up to a bound, and lower bounds above it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Q

from ...core.status import TaskStatus
from ...db.now import Now
from ...db.statements import Statement, count_query, decode_rows, run_queries
from ...models import Task
from ...models.claim.query import not_past_deadline
from ...models.filters import IS_AGGREGATING, IS_RETRYING, IS_SCHEDULED
from .workers import HeldTasks, count_held

#: Maximum rows of a set that are counted.
MAX_COUNTED: Final = 10_000

#: The condition of all rows that the caller asks for.
_ALL: Final = "all"

#: The sets of rows that are counted, and the conditions that are counted in each.
_CONDITIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "claimable": ("due", "pending"),
    "deferred": ("retrying", "scheduled", "aggregating"),
    "late": (_ALL, "due"),
    "blocked": ("due", "pending"),
    "overdue": (_ALL,),
    "newest": ("completed",),
    "failed": (_ALL,),
    "cancelled": (_ALL,),
    "expired": (_ALL,),
}

#: The parts of each state: sets and conditions. No index has the completed tasks, because every task would pay for its
#: upkeep, so they are counted among the newest tasks.
_STATES: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "due": (("claimable", "due"), ("late", "due")),
    "blocked": (("blocked", "due"),),
    "overdue": (("overdue", _ALL),),
    "pending": (("claimable", "pending"), ("blocked", "pending"), ("late", _ALL)),
    "scheduled": (("deferred", "scheduled"),),
    "aggregating": (("deferred", "aggregating"),),
    "retrying": (("deferred", "retrying"),),
    "active": (("held", TaskStatus.CLAIMED), ("held", TaskStatus.RUNNING)),
    "claimed": (("held", TaskStatus.CLAIMED),),
    "running": (("held", TaskStatus.RUNNING),),
    "completed": (("newest", "completed"),),
    "failed": (("failed", _ALL),),
    "cancelled": (("cancelled", _ALL),),
    "expired": (("expired", _ALL),),
}

#: The states in which a task counts besides another one.
OVERLAPPING: Final = frozenset({"due", "blocked", "overdue", "active"})


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows. ``is_more``: it is a lower bound."""

    number: int
    is_more: bool = False

    def __bool__(self) -> bool:
        """Return whether there are any rows."""
        return self.number > 0

    def __add__(self, other: Count) -> Count:
        """Return the sum, which is a lower bound if one of the summands is."""
        return Count(self.number + other.number, self.is_more or other.is_more)

    def as_json(self) -> dict[str, Any]:
        """Return a dict for JSON with the number and its exactness."""
        return {"count": self.number, "exactness": "at least" if self.is_more else "exact"}


def bounded(number: int, read: int) -> Count:
    """Return a number of rows among those that were read, of which there may be more than ``MAX_COUNTED``."""
    return Count(number) if read <= MAX_COUNTED else Count(min(number, MAX_COUNTED), is_more=True)


def queries(database: str, only: Q | None = None) -> dict[str, Statement]:
    """Return the queries behind the counts by name: of all tasks, or of those that meet ``only``."""
    tasks = Task.objects.using(database)
    deferred = tasks.deferred()
    # Each in the order of an index that contains exactly these rows.
    sets = {
        "claimable": tasks.pending()
        .filter(deferred=False)
        .order_by("is_async", "queue_name", "-priority", "enqueued_at", "pk"),
        "deferred": deferred.order_by("enqueued_at"),
        "late": deferred.filter(enqueued_at__lte=Now()).order_by("enqueued_at"),
        "blocked": tasks.blocked().order_by("limit_key", "-priority", "enqueued_at", "pk"),
        "overdue": tasks.overdue().order_by("good_until"),
        "newest": tasks.order_by("-pk"),
        **{
            name: tasks.filter(status=name.upper()).order_by("status", "pk")
            for name in ("failed", "cancelled", "expired")
        },
    }
    conditions = {
        "due": Q(enqueued_at__lte=Now()) & not_past_deadline(),
        "pending": Q(enqueued_at__lte=Now()),
        "retrying": IS_RETRYING,
        "scheduled": IS_SCHEDULED,
        "aggregating": IS_AGGREGATING,
        "completed": Q(status=TaskStatus.COMPLETED),
    }
    conditions = {name: condition & (only or Q()) for name, condition in conditions.items()}
    conditions[_ALL] = only or Q(pk__isnull=False)
    return {
        name: count_query(rows, MAX_COUNTED + 1, {of: conditions[of] for of in _CONDITIONS[name]}, by="queue_name")
        for name, rows in sets.items()
    }


def count_by_state(database: str, only: Q | None = None) -> dict[str, Count]:
    """Count the tasks by state, or of them those that meet ``only``, in two statements."""
    answers = run_queries(database, queries(database, only))
    return counts_of_queues(answers, count_held(database, only))[None]


def counts_of_queues(
    answers: Mapping[str, Any], held: HeldTasks, queues: Iterable[str] = ()
) -> dict[str | None, dict[str, Count]]:
    """Return the counts by state of all queues, under None, and of these, from the answers to :func:`queries`.

    The rows of all queues are counted together, so with many rows the counts of each queue are lower bounds.
    """
    numbers = Counter[tuple[str | None, str, str]]()
    read = {"held": 0}
    parts = [(queue, "held", status, count) for (queue, status), count in held.queues.items()]
    for name, conditions in _CONDITIONS.items():
        rows = decode_rows(answers[name])
        read[name] = sum(number for _, number, *_ in rows)
        for queue, _, *counted in rows:
            parts += [(queue, name, condition, count) for condition, count in zip(conditions, counted, strict=True)]
    for queue, name, condition, count in parts:
        numbers[queue, name, condition] += count
        numbers[None, name, condition] += count

    def counts_of(queue: str | None) -> dict[str, Count]:
        counts = {part: bounded(numbers[queue, *part], read[part[0]]) for parts in _STATES.values() for part in parts}
        return {state: sum((counts[part] for part in parts), start=Count(0)) for state, parts in _STATES.items()}

    return {queue: counts_of(queue) for queue in (None, *queues)}
