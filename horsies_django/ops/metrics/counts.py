"""Counts of tasks by state: exact while they are few, otherwise the planner's estimates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from django.db import connections
from django.db.models import Q

from ...core.status import TaskStatus
from ...db import postgres
from ...db.now import Now
from ...db.statements import Statement, count_query, decode_rows, run_queries
from ...models import Task
from ...models.claim.query import not_past_deadline
from ...models.depths import Depths
from ...models.filters import IS_AGGREGATING, IS_RETRYING, IS_SCHEDULED
from .workers import HeldTasks, count_held

#: Upper bound for exact counts.
MAX_COUNTED: Final = 10_000

#: The table and the indexes whose size the planner estimates.
_RELATIONS: Final = {
    "rows": Task._meta.db_table,
    "rows claimable": "horsies_task_claim",
    "rows deferred": "horsies_task_deferred",
    "rows blocked": "horsies_task_blocked",
}

#: The condition that counts every row, and the conditions that are counted in each set of rows.
ALL: Final = "all"
_CONDITION_NAMES: Final = {
    "claimable": (ALL, "due", "pending"),
    "deferred": (ALL, "retrying", "scheduled", "aggregating"),
    "latest": (ALL, "retrying", "scheduled", "aggregating"),
    "late": (ALL, "due"),
    "blocked": (ALL, "due", "pending"),
    "overdue": (ALL,),
    "newest": (ALL, "completed"),
}
_FAILED_STATES: Final = (TaskStatus.FAILED.value, TaskStatus.CANCELLED.value, TaskStatus.EXPIRED.value)


class Exactness(StrEnum):
    """How exact a count is."""

    EXACT = "exact"
    ESTIMATE = "estimate"
    AT_LEAST = "at least"


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows and how exact it is."""

    number: int
    exactness: Exactness = Exactness.EXACT

    def __bool__(self) -> bool:
        """Return whether there are any rows."""
        return self.number > 0

    def __add__(self, other: Count) -> Count:
        """Return the sum, which is as exact as the less exact summand."""
        of = {self.exactness, other.exactness}
        worst = next(one for one in (Exactness.AT_LEAST, Exactness.ESTIMATE, Exactness.EXACT) if one in of)
        return Count(self.number + other.number, worst)

    def as_json(self) -> dict[str, Any]:
        """Return a dict for JSON with the number and its exactness."""
        return {"count": self.number, "exactness": self.exactness.value}


def _row_sets(database: str) -> dict[str, Any]:
    """Return the sets of rows to count, each in the order of an index that contains exactly these rows."""
    tasks = Task.objects.using(database)
    claimable = tasks.pending().filter(deferred=False)
    deferred = tasks.deferred()
    late = deferred.filter(enqueued_at__lte=Now())
    rows = {
        "claimable": claimable.order_by("is_async", "queue_name", "-priority", "enqueued_at", "pk"),
        "deferred": deferred.order_by("enqueued_at"),
        "latest": deferred.order_by("-enqueued_at"),
        "blocked": tasks.blocked().order_by("limit_key", "-priority", "enqueued_at", "pk"),
        "late": late.order_by("enqueued_at"),
        "overdue": tasks.overdue().order_by("good_until"),
        "newest": tasks.order_by("-pk"),
    }
    return rows | {status: tasks.filter(status=status).order_by("status", "pk") for status in _FAILED_STATES}


def _conditions() -> dict[str, Q]:
    return {
        "due": Q(enqueued_at__lte=Now()) & not_past_deadline(),
        "pending": Q(enqueued_at__lte=Now()),
        "retrying": IS_RETRYING,
        "scheduled": IS_SCHEDULED,
        "aggregating": IS_AGGREGATING,
        "completed": Q(status=TaskStatus.COMPLETED),
    }


def queries(database: str) -> dict[str, Statement]:
    """Return the queries behind the counts, by name."""
    conditions = _conditions()
    asked = {
        name: count_query(
            rows,
            MAX_COUNTED + 1,
            {of: conditions[of] for of in _conditions_for(name) if of != ALL},
            by="queue_name",
        )
        for name, rows in _row_sets(database).items()
    }
    return asked | _estimate_queries(database)


def _estimate_queries(database: str) -> dict[str, Statement]:
    if connections[database].vendor != "postgresql":
        return {}
    asked = {name: Statement(postgres.ESTIMATED_ROWS, (relation,)) for name, relation in _RELATIONS.items()}
    return asked | {"shares": Statement(postgres.ESTIMATED_SHARES, (Task._meta.db_table, "status"))}


def count_by_state(database: str, only: Q | None = None) -> dict[str, Count]:
    """Count the tasks by state, or of them those that meet ``only``, in two statements.

    As exact as the overview's counts.
    """
    conditions, sets = _conditions(), _row_sets(database)
    asked = {}
    for name, rows in sets.items():
        wanted = {of: conditions[of] for of in _conditions_for(name) if of != ALL}
        if only is not None:
            wanted = {ALL: only, **{of: condition & only for of, condition in wanted.items()}}
        asked[name] = count_query(rows, MAX_COUNTED + 1, wanted)
    answers = run_queries(database, asked | _estimate_queries(database))
    read: dict[str, int] = {}
    for name in sets:
        numbers = decode_rows(answers[name])
        read[name] = numbers[0]
        answers[name] = [["", *(numbers if only is None else numbers[1:])]]
    return _by_state(_Counts(answers, read), count_held(database, only).states)


def counts_by_state(answers: Mapping[str, Any], held: Mapping[str, int]) -> dict[str, Count]:
    """Return counts by state, under our names and asynq's, from the answers and the held tasks by state."""
    return _by_state(_Counts(answers), held)


def _by_state(found: _Counts, held: Mapping[str, int]) -> dict[str, Count]:
    claimed, running = (held.get(status, 0) for status in (TaskStatus.CLAIMED, TaskStatus.RUNNING))
    return {
        "due": found.claimable("due") + found.bounded("late", "due"),
        "blocked": found.limited("due"),
        "overdue": found.bounded("overdue"),
        "pending": found.claimable("pending") + found.limited("pending") + found.bounded("late"),
        "scheduled": found.deferred("scheduled"),
        "aggregating": found.deferred("aggregating"),
        "retrying": found.deferred("retrying"),
        "active": Count(claimed + running),
        "claimed": Count(claimed),
        "running": Count(running),
        "completed": found.completed(),
        "failed": found.in_status(TaskStatus.FAILED),
        "cancelled": found.in_status(TaskStatus.CANCELLED),
        "expired": found.in_status(TaskStatus.EXPIRED),
    }


def counts_by_queue(
    answers: Mapping[str, Any], names: Iterable[str], holding: HeldTasks, due: Depths
) -> dict[str, dict[str, Count]]:
    """Return counts by state for each of these queues; each task counts in one state.

    They come from the rows counted for all queues together, so with many rows they are lower bounds.
    """
    found = _Counts(answers)
    counts = {}
    for name in names:
        pending = found.in_queue(name, "claimable", "pending") + found.in_queue(name, "blocked", "pending")
        pending += found.in_queue(name, "late")
        counts[name] = {
            "pending": _at_least(pending, due.of(name).due + due.of(name).blocked),
            "scheduled": found.in_queue(name, "deferred", "scheduled"),
            "aggregating": found.in_queue(name, "deferred", "aggregating"),
            "retrying": found.in_queue(name, "deferred", "retrying"),
            "claimed": Count(holding.states_of_queues[name, TaskStatus.CLAIMED]),
            "running": Count(holding.states_of_queues[name, TaskStatus.RUNNING]),
            "completed": found.in_queue(name, "newest", "completed"),
            **{status.lower(): found.in_queue(name, status) for status in _FAILED_STATES},
        }
    return counts


def due_by_queue(answers: Mapping[str, Any], names: Iterable[str], due: Depths) -> dict[str, Count]:
    """Return the number of due tasks of each of these queues, which is as exact as the counts by state."""
    found = _Counts(answers)
    return {
        name: _at_least(
            found.in_queue(name, "claimable", "due") + found.in_queue(name, "late", "due"), due.of(name).due
        )
        for name in names
    }


def _at_least(count: Count, number: int) -> Count:
    """Return a count, or if it is a lower bound and this number is larger, that."""
    is_larger = count.exactness is Exactness.AT_LEAST and number > count.number
    return Count(number, Exactness.AT_LEAST) if is_larger else count


def _conditions_for(name: str) -> tuple[str, ...]:
    return _CONDITION_NAMES.get(name, (ALL,))


class _Counts:
    """The counted rows of each set, by queue and condition, and how many rows were read to count them."""

    def __init__(self, answers: Mapping[str, Any], read: Mapping[str, int] | None = None) -> None:
        self._by_queue = {
            name: {queue: numbers for queue, *numbers in decode_rows(answers[name])}
            for name in (*_CONDITION_NAMES, *_FAILED_STATES)
        }
        self._numbers = {
            name: [sum(numbers) for numbers in zip(*queues.values(), strict=True)] or [0] * len(_conditions_for(name))
            for name, queues in self._by_queue.items()
        }
        self._read = read or {name: numbers[0] for name, numbers in self._numbers.items()}
        self._estimates = {name: answers.get(name) or -1 for name in _RELATIONS}
        self._shares = dict(decode_rows(answers.get("shares")))

    def bounded(self, name: str, condition: str = ALL) -> Count:
        """Return the count, or the bound as a lower bound."""
        number = self._number(name, condition)
        is_more = self._read[name] > MAX_COUNTED
        return Count(min(number, MAX_COUNTED), Exactness.AT_LEAST) if is_more else Count(number)

    def in_queue(self, queue: str, name: str, condition: str = ALL) -> Count:
        """Return the count of one queue, as a lower bound if the bound was reached."""
        numbers = self._by_queue[name].get(queue)
        number = 0 if numbers is None else int(numbers[_conditions_for(name).index(condition)])
        return Count(number, Exactness.AT_LEAST if self._read[name] > MAX_COUNTED else Exactness.EXACT)

    def claimable(self, condition: str) -> Count:
        """Return the claimable tasks that meet a condition."""
        return self._scaled(["claimable"], condition, "rows claimable")

    def deferred(self, condition: str) -> Count:
        """Return the deferred tasks that meet a condition. Retries are due soonest, so estimates sample both ends."""
        return self._scaled(["deferred", "latest"], condition, "rows deferred")

    def limited(self, condition: str) -> Count:
        """Return the tasks that wait for their limit and meet a condition."""
        return self._scaled(["blocked"], condition, "rows blocked")

    def in_status(self, status: TaskStatus) -> Count:
        """Return the tasks in one status."""
        counted, estimated = self.bounded(status), self._estimated(status, status)
        is_more = counted.exactness is Exactness.AT_LEAST and estimated > MAX_COUNTED
        return Count(estimated, Exactness.ESTIMATE) if is_more else counted

    def completed(self) -> Count:
        """Return the completed tasks. No index covers them, because every task would pay for its upkeep."""
        counted, estimated = self.bounded("newest", "completed"), self._estimated(TaskStatus.COMPLETED, "newest")
        is_more = counted.exactness is Exactness.AT_LEAST and estimated > counted.number
        return Count(estimated, Exactness.ESTIMATE) if is_more else counted

    def _scaled(self, names: list[str], condition: str, relation: str) -> Count:
        """Scale the estimated size of an index by the share of its counted rows that meet the condition."""
        counted, estimated = self.bounded(names[0], condition), self._estimates[relation]
        if counted.exactness is Exactness.EXACT or estimated <= MAX_COUNTED:
            return counted
        number, whole = sum(self._number(name, condition) for name in names), sum(self._read[name] for name in names)
        return Count(round(estimated * number / whole), Exactness.ESTIMATE)

    def _number(self, name: str, condition: str = ALL) -> int:
        return int(self._numbers[name][_conditions_for(name).index(condition)])

    def _estimated(self, status: TaskStatus, name: str) -> int:
        """Return the estimated rows of a status, scaled by the share of the rows of a set that were to be counted."""
        share = self._number(name) / self._read[name] if self._read[name] else 0.0
        return round(float(self._shares.get(status.value, 0)) * int(self._estimates["rows"]) * share)
