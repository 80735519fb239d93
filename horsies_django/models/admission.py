"""The admission: how many tasks may be claimed now from queues that have a limit.

Nothing counts up or down as tasks come and go: who claims from such a queue locks its row first, and counts what
workers hold. So a worker that dies leaves nothing behind that would have to be put right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.db.models import Count
from django.db.models.functions import Now

from ..expressions import SecondsUntil
from ..queue_rules import COLUMNS, QueueRules
from .queue import Queue, QueueQuerySet

if TYPE_CHECKING:
    from .transitions import TaskQuerySet

_READ: Final = ("name", "paused", *COLUMNS, "tokens")


@dataclass(slots=True)
class Admitted:
    """What one queue has to give: ``most`` tasks now. ``places`` and ``tokens`` are None where that has no limit."""

    name: str
    rules: QueueRules
    now: datetime
    is_open: bool
    places: int | None = None
    tokens: float | None = None

    @property
    def most(self) -> int | None:
        """How many may be claimed; None if any number may."""
        if not self.is_open:
            return 0
        known = [int(limit) for limit in (self.places, self.tokens) if limit is not None]
        return max(0, min(known)) if known else None

    def take(self, count: int) -> None:
        """So many were claimed."""
        if self.places is not None:
            self.places -= count
        if self.tokens is not None:
            self.tokens -= count

    @property
    def is_full(self) -> bool:
        """Whether nothing more may begin before something has ended."""
        return self.places is not None and self.places <= 0

    @property
    def token_in(self) -> float:
        """The seconds until the next may begin by the rate; 0 if it may now."""
        return 0.0 if self.tokens is None or self.rules.rate is None else self.rules.rate.wait(self.tokens)


def admit(
    tasks: TaskQuerySet, names: Sequence[str], rules_of: Callable[[str, Mapping[str, Any]], QueueRules]
) -> dict[str, Admitted]:
    """Lock these queues until the transaction ends, and return what each has to give.

    One that somebody else has locked is missing: who just claims from it is done in a moment.
    """
    queues = Queue.objects.using(tasks.db)
    columns: tuple[Any, ...] = (*_READ, SecondsUntil("refilled_at"), Now())
    rows = list(queues.lock(names).values_list(*columns))
    if len(rows) < len(names):
        known = queues.filter(name__in=names).values_list("name", flat=True)
        if new := sorted(set(names).difference(known)):
            rows += _made(queues, new, columns)
    found: dict[str, Admitted] = {}
    for *values, until, now in rows:
        row = dict(zip(_READ, values, strict=True))
        rules = rules_of(row["name"], row)
        admitted = found[row["name"]] = Admitted(row["name"], rules, now, is_open=not row["paused"])
        if rules.rate is not None:
            admitted.tokens = rules.rate.tokens(row["tokens"], 0.0 if until is None else -until)
    # In a statement of its own, which sees what was committed before the lock was had.
    limited = [name for name, admitted in found.items() if admitted.rules.max_concurrency is not None]
    if limited:
        held = tasks.rows().active().filter(queue_name__in=limited).order_by().values_list("queue_name")
        counts = dict(held.annotate(Count("pk")))
        for name in limited:
            found[name].places = (found[name].rules.max_concurrency or 0) - counts.get(name, 0)
    return found


def _made(queues: QueueQuerySet, names: Sequence[str], columns: Sequence[Any]) -> list[Any]:
    """Make rows for queues of which only the settings say something, and lock them."""
    queues.bulk_create([Queue(name=name) for name in names], ignore_conflicts=True)
    return list(queues.lock(names).values_list(*columns))


def spend(database: str, taken: Iterable[Admitted]) -> None:
    """Write what is left of the tokens of queues that were claimed from."""
    for admitted in taken:
        if admitted.tokens is not None:
            row = Queue.objects.using(database).filter(name=admitted.name)
            row.update(tokens=admitted.tokens, refilled_at=admitted.now)
