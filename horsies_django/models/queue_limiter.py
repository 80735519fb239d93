"""The admission: how many tasks may be claimed now from queues that have a limit.

Nothing counts up or down as tasks come and go: who claims from such a queue locks its row first, and counts what
workers hold. So a worker that dies leaves nothing behind that would have to be put right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.db import connections, transaction
from django.db.models import CharField, F
from django.db.models.functions import Now

from ..core.queue_policy import POLICY_COLUMNS, QueuePolicy
from ..db import postgres
from ..db.expressions import BoundParam, Param, SecondsUntil
from ..db.statements import CompiledSelect, Statement
from .queue import Queue

if TYPE_CHECKING:
    from .transitions import TaskQuerySet

#: Milliseconds for which somebody else's claim from a queue is waited for. Who came back later instead would find it
#: locked again: two workers then claim a quarter less.
REFILLED_AT: Final = 30

_NAME: Final = Param("name")
_READ: Final = ("name", "paused", *POLICY_COLUMNS, "tokens")


@dataclass(slots=True)
class Allowance:
    """What one queue has to give: ``most`` tasks now. ``places`` and ``tokens`` are None where that has no limit."""

    name: str
    rules: QueuePolicy
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


class QueueLimiter:
    """Asks for tasks, in transactions of one connection; its statements are compiled once."""

    def __init__(self, tasks: TaskQuerySet, rules_of: Callable[[str, Mapping[str, Any]], QueuePolicy]) -> None:
        self._queues = Queue.objects.using(tasks.db)
        self._connection = connections[tasks.db]
        self._rules_of = rules_of
        self._waits = self._connection.vendor == "postgresql"
        name = BoundParam(_NAME, CharField(max_length=100))
        # Else Django writes no SELECT … FOR UPDATE.
        with transaction.atomic(using=tasks.db):
            row = self._queues.filter(name=name).lock(skip=not self._waits)
            self._row = CompiledSelect(row, (*_READ, SecondsUntil("refilled_at"), Now()))
        held = Statement.select(tasks.all_rows().active().filter(queue_name=name).order_by().values_list("pk"))
        count = Statement(f"SELECT COUNT(*) FROM ({held.sql}) AS held", held.params)  # noqa: S608  # the ORM's
        self._lock = self._row.statement.inline_constants() if self._waits else self._row.statement
        self._count = count.inline_constants() if self._waits else count

    def ask(self, names: Iterable[str]) -> dict[str, Allowance]:
        """Lock these queues until the transaction ends, and return what each has to give.

        Who just claims from one is done in a moment, which PostgreSQL waits for. One that is locked for longer is
        missing, or on PostgreSQL an OperationalError that ends the transaction (:func:`postgres.is_lock_timeout`).
        """
        asked = {name: self._of(name) for name in sorted(names)}
        return {name: admitted for name, admitted in asked.items() if admitted is not None}

    def _of(self, name: str) -> Allowance | None:
        row, held = self._locked(name) or self._made(name)
        if row is None:
            return None
        *values, until, now = row
        columns = dict(zip(_READ, values, strict=True))
        rules = self._rules_of(name, columns)
        admitted = Allowance(name, rules, now, is_open=not columns["paused"])
        if rules.rate is not None:
            admitted.tokens = rules.rate.tokens(columns["tokens"], 0.0 if until is None else -until)
        if rules.max_concurrency is not None:
            admitted.places = rules.max_concurrency - held
        return admitted

    def _locked(self, name: str) -> tuple[Any, int] | None:
        """Lock a queue's row; return it, and how many of its tasks are held. None if it was not to be had.

        They are counted by a statement of its own, which sees what was committed before the lock was had. Both go in
        one round trip: each costs a busy process the turn of its interpreter.
        """
        given = {_NAME.name: name}
        with (
            postgres.pipeline(self._connection),
            postgres.preparing_cursor(self._connection) as lock,
            postgres.preparing_cursor(self._connection) as count,
        ):
            with postgres.waiting_for_locks(self._connection, REFILLED_AT):
                lock.execute(self._lock.sql, self._lock.bind(given))
            count.execute(self._count.sql, self._count.bind(given))
            rows = self._row.fetch(lock)
            return (rows[0], count.fetchone()[0]) if rows else None

    def _made(self, name: str) -> tuple[Any, int]:
        """Make the row of a queue of which only the settings say something, and lock it."""
        if self._queues.filter(name=name).exists():
            return None, 0
        self._queues.named(name)
        return self._locked(name) or (None, 0)


def spend(database: str, taken: Iterable[Allowance]) -> None:
    """Write what is left of the tokens of queues that were claimed from."""
    for admitted in taken:
        if admitted.tokens is not None:
            row = Queue.objects.using(database).filter(name=admitted.name)
            row.update(tokens=admitted.tokens, refilled_at=admitted.now)


def give_back(held: TaskQuerySet) -> int:
    """Give back the tokens of these tasks, which a worker holds and will not begin; return how many those are.

    To be called in the transaction that hands them back, and before it does. A bucket that holds more than its burst
    then is full: it is looked at when it is next claimed from.
    """
    queues = Queue.objects.using(held.db).filter(tokens__isnull=False)
    names = held.filter(queue_name__in=queues.values("name")).lock(skip=False).values_list("queue_name", flat=True)
    counts = Counter(names)
    for name, count in sorted(counts.items()):
        queues.filter(name=name).update(tokens=F("tokens") + count)
    return counts.total()
