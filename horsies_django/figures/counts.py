"""How many tasks are in each state: exactly while they are few, else as the planner estimates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from django.db import connections
from django.db.models import Q
from django.db.models.functions import Now

from .. import postgres
from ..models import Task
from ..models.statements import Statement
from ..models.views import not_past_deadline
from ..states import TaskStatus
from .asking import counting, read

#: Rows that are counted one by one at most.
COUNTED: Final = 10_000
_LIMIT: Final = COUNTED + 1

#: What the planner is asked about.
_RELATIONS: Final = {
    "rows": Task._meta.db_table,
    "rows claimable": "horsies_task_claim",
    "rows deferred": "horsies_task_deferred",
}


class Exactness(StrEnum):
    """What a number is worth."""

    EXACT = "exact"
    ESTIMATE = "estimate"
    AT_LEAST = "at least"


@dataclass(frozen=True, slots=True)
class Count:
    """How many there are, and how sure that is."""

    number: int
    exactness: Exactness = Exactness.EXACT

    def __str__(self) -> str:
        if self.exactness is Exactness.ESTIMATE:
            return f"≈ {self.number:,}"
        return f"{self.number:,}" + ("+" if self.exactness is Exactness.AT_LEAST else "")

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self.number > 0

    def __add__(self, other: Count) -> Count:
        """Both together; the sum is worth what the worse of them is."""
        of = {self.exactness, other.exactness}
        worst = next(one for one in (Exactness.AT_LEAST, Exactness.ESTIMATE, Exactness.EXACT) if one in of)
        return Count(self.number + other.number, worst)

    def as_json(self) -> dict[str, Any]:
        """Return the number and its exactness."""
        return {"count": self.number, "exactness": self.exactness.value}


class _Pick(NamedTuple):
    """Some of the rows of an index, in its order, and a condition that is asked of each."""

    rows: Any
    condition: Q | None = None


def _picks(database: str) -> dict[str, _Pick]:
    """What is counted, each along an index that has it and nothing else."""
    tasks = Task.objects.using(database)
    claimable = tasks.pending().filter(deferred=False)
    claimable = claimable.order_by("is_async", "queue_name", "-priority", "enqueued_at", "pk")
    deferred = tasks.pending().filter(deferred=True)
    soonest, latest = deferred.order_by("enqueued_at"), deferred.order_by("-enqueued_at")
    retries, is_due = Q(next_retry_at__isnull=False), Q(enqueued_at__lte=Now()) & not_past_deadline()
    is_scheduled = Q(next_retry_at__isnull=True, enqueued_at__gt=Now())
    everything = tasks.order_by("-pk")
    unhappy = (TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.EXPIRED)
    return {
        "claimable": _Pick(claimable),
        "claimable due": _Pick(claimable, is_due),
        "claimable retrying": _Pick(claimable, retries),
        "deferred": _Pick(soonest),
        "deferred due": _Pick(soonest.filter(enqueued_at__lte=Now()), not_past_deadline()),
        "deferred retrying": _Pick(soonest, retries),
        "deferred scheduled": _Pick(soonest, is_scheduled),
        "latest retrying": _Pick(latest, retries),
        "latest scheduled": _Pick(latest, is_scheduled),
        "overdue": _Pick(tasks.overdue().order_by("good_until")),
        "newest": _Pick(everything),
        "newest completed": _Pick(everything, Q(status=TaskStatus.COMPLETED)),
        **{status.value: _Pick(tasks.filter(status=status).order_by("status", "pk")) for status in unhappy},
    }


def parts(database: str) -> dict[str, Statement]:
    """Return what has to be asked."""
    asked = {name: counting(pick.rows, _LIMIT, pick.condition) for name, pick in _picks(database).items()}
    if connections[database].vendor == "postgresql":
        for name, relation in _RELATIONS.items():
            asked[name] = Statement(postgres.ESTIMATED_ROWS, (relation,))
        asked["shares"] = Statement(postgres.ESTIMATED_SHARES, (Task._meta.db_table, "status"))
    return asked


def of_states(answers: Mapping[str, Any], held: Mapping[str, int]) -> dict[str, Count]:
    """Return the counts by state, in both vocabularies, out of the answers and of how many are held in each state."""
    found = _Answers(answers)
    due = found.share("claimable due", "claimable") + found.bounded("deferred due")
    claimed, running = (held.get(status, 0) for status in (TaskStatus.CLAIMED, TaskStatus.RUNNING))
    return {
        "due": due,
        "scheduled": found.of_deferred("scheduled"),
        "retrying": found.share("claimable retrying", "claimable") + found.of_deferred("retrying"),
        "overdue": found.bounded("overdue"),
        "pending": found.share("claimable", "claimable") + found.share("deferred", "deferred"),
        "active": Count(claimed + running),
        "claimed": Count(claimed),
        "running": Count(running),
        "completed": found.completed(),
        "failed": found.of_status(TaskStatus.FAILED),
        "cancelled": found.of_status(TaskStatus.CANCELLED),
        "expired": found.of_status(TaskStatus.EXPIRED),
    }


class _Answers:
    def __init__(self, answers: Mapping[str, Any]) -> None:
        self._answers = answers
        self._rows = answers.get("rows") or -1
        self._shares = dict(read(answers.get("shares")))

    def bounded(self, name: str) -> Count:
        """What was counted, or at least so much."""
        number = self._answers[name]
        return Count(COUNTED, Exactness.AT_LEAST) if number > COUNTED else Count(number)

    def share(self, name: str, whole: str) -> Count:
        """Those of an index that meet a condition: as many of it as of its first rows."""
        return self._part([name], [whole], whole)

    def of_deferred(self, what: str) -> Count:
        """Those of what waits for its time: retries come soonest, so an estimate looks at the latest, too."""
        if self._answers["deferred"] <= COUNTED:
            return Count(self._answers[f"deferred {what}"])
        return self._part([f"deferred {what}", f"latest {what}"], ["deferred", "deferred"], "deferred")

    def _part(self, names: Iterable[str], wholes: Iterable[str], index: str) -> Count:
        number, whole = sum(self._answers[name] for name in names), sum(self._answers[name] for name in wholes)
        if self._answers[index] <= COUNTED:
            return Count(number)
        estimated = self._answers.get(f"rows {index}") or -1
        if estimated <= COUNTED:
            return Count(min(number, COUNTED), Exactness.AT_LEAST)
        return Count(round(estimated * number / whole), Exactness.ESTIMATE)

    def of_status(self, status: TaskStatus) -> Count:
        """Those of one state."""
        estimated = self._estimated(status)
        counted = self.bounded(status)
        is_more = counted.exactness is Exactness.AT_LEAST and estimated > COUNTED
        return Count(estimated, Exactness.ESTIMATE) if is_more else counted

    def completed(self) -> Count:
        """Those that are completed: no index has them, for that would cost each task."""
        counted = Count(self._answers["newest completed"])
        if self._answers["newest"] <= COUNTED:
            return counted
        estimated = self._estimated(TaskStatus.COMPLETED)
        if estimated > counted.number:
            return Count(estimated, Exactness.ESTIMATE)
        return Count(min(counted.number, COUNTED), Exactness.AT_LEAST)

    def _estimated(self, status: TaskStatus) -> int:
        return round(float(self._shares.get(status.value, 0)) * int(self._rows))
