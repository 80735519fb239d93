"""Counts of tasks by state: exact up to a bound, and lower bounds above it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Case, F, Q, TextField, Value, When

from ...core.status import TaskStatus
from ...db.now import Now
from ...db.statements import Statement, count_query, decode_rows, run_queries
from ...models import Task, filters
from ...models.claim.query import not_past_deadline
from ...models.claims import WORKFLOW_WAIT
from .workers import HeldTasks, count_held

#: Maximum rows of a set that are counted.
MAX_COUNTED: Final = 10_000

#: The condition of all rows that the caller asks for.
_ALL: Final = "all"

#: The sets of rows that are counted, and the conditions that are counted in each.
_CONDITIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "claimable": ("due", "pending"),
    "deferred": ("retrying", "scheduled", "aggregating"),
    "waits": ("awaiting",),
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
    "awaiting": (("waits", "awaiting"),),
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
        "waits": tasks.awaiting().order_by("waits_for", "pk"),
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
        "retrying": filters.IS_RETRYING,
        "scheduled": filters.IS_SCHEDULED,
        "aggregating": filters.IS_AGGREGATING,
        "awaiting": filters.IS_AWAITING,
        "completed": Q(status=TaskStatus.COMPLETED),
    }
    conditions = {name: condition & (only or Q()) for name, condition in conditions.items()}
    conditions[_ALL] = only or Q(pk__isnull=False)
    return {
        name: count_query(rows, MAX_COUNTED + 1, {of: conditions[of] for of in _CONDITIONS[name]}, by="queue_name")
        for name, rows in sets.items()
    }


#: Maximum names of what tasks wait for that are listed.
MAX_NAMES: Final = 20


def waits_query(database: str) -> Statement:
    """Return the query behind :func:`waits`. Every workflow has a name of its own, so all of them count as one."""
    is_workflow = Q(waits_for__startswith=WORKFLOW_WAIT)
    what = Case(When(is_workflow, then=Value("workflow")), default=F("waits_for"), output_field=TextField())
    rows = Task.objects.using(database).awaiting().annotate(what=what)
    return count_query(rows.order_by("waits_for", "pk"), MAX_COUNTED + 1, by="what")


def waits(answer: Any) -> dict[str, Count]:
    """Return the number of awaiting tasks by what they wait for, the most frequent first."""
    rows = decode_rows(answer)
    read = sum(number for _, number in rows)
    most = sorted(rows, key=lambda row: (-row[1], row[0]))[:MAX_NAMES]
    return {what: bounded(number, read) for what, number in most}


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
