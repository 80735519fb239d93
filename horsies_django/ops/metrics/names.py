"""The names of queues, tasks and error codes that the roll-ups know, with their attempts of the last day."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from django.db.models import Q, Subquery, Sum
from django.db.models.functions import Coalesce

from ...db.expressions import NowPlus
from ...models import Rollup
from ...models.operator_actions import ENGINE_TASK_PREFIX
from ...models.rollup import RollupSpan

#: How far back the hours are read, in days, and at most how many of the newest roll-ups.
MAX_DAYS: Final = 35
MAX_ROLLUPS: Final = 20_000

_DAY: Final = 86_400


@dataclass(frozen=True, slots=True)
class KnownNames:
    """Names, each with the attempts that ended in the last 24 hours; of an error code, those that failed with it."""

    queues: Counter[str] = field(default_factory=Counter)
    tasks: Counter[str] = field(default_factory=Counter)
    error_codes: Counter[str] = field(default_factory=Counter)


def known_names(database: str) -> KnownNames:
    """Return the names, in one statement that reads a bounded number of roll-ups.

    The names of the newest hours, and those that the totals of all time have. Leaves out the workflow engine's tasks.
    """
    rollups = Rollup.objects.using(database).order_by()
    hours = rollups.filter(span=RollupSpan.HOUR)
    starts = hours.order_by("-start").values("start")
    # The hour in which the bound is reached is left out, so that its names are not a part of them by chance.
    since = Coalesce(Subquery(starts[MAX_ROLLUPS : MAX_ROLLUPS + 1]), NowPlus(-MAX_DAYS * _DAY))
    recent = Q(span=RollupSpan.HOUR, start__gt=since, pk__isnull=False) & Q(start__gt=NowPlus(-MAX_DAYS * _DAY))
    last_day = Sum("count", filter=Q(span=RollupSpan.HOUR, start__gt=NowPlus(-_DAY)), default=0)
    groups = rollups.filter(recent | Q(span=RollupSpan.TOTAL)).values_list("queue_name", "task_name", "error_code")
    known = KnownNames()
    for queue, task, code, count in groups.annotate(attempts=last_day):
        known.queues[queue] += count
        if not task.startswith(ENGINE_TASK_PREFIX):
            known.tasks[task] += count
        known.error_codes[code] += count
    for names in (known.queues, known.tasks, known.error_codes):
        names.pop("", None)
    return known
