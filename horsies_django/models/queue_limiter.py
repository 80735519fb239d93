"""Limits by queue: how many tasks may be claimed now from queues that have a limit.

There are no counters. A worker locks the row of such a queue before it claims, and counts the held tasks. So a worker
that dies leaves no counter to repair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.db import connections, transaction
from django.db.models import CharField, F

from ..core.queue_policy import POLICY_COLUMNS, QueuePolicy
from ..db import postgres
from ..db.expressions import BoundParam, Param, SecondsUntil
from ..db.now import Now
from ..db.statements import Statement
from .queue import Queue

if TYPE_CHECKING:
    from .transitions import TaskQuerySet

#: Milliseconds to wait for another claim from the queue. A worker that retried later would find the row locked again:
#: two workers would claim a quarter less.
LOCK_WAIT_MS: Final = 30

_NAME: Final = Param("name")
_COLUMNS: Final = ("name", *POLICY_COLUMNS, "tokens")


@dataclass(slots=True)
class Allowance:
    """How many tasks the limits of one queue allow now, paused or not: ``places`` and ``tokens``, None for no limit."""

    rules: QueuePolicy
    now: datetime
    places: int | None = None
    tokens: float | None = None
    is_used: bool = False

    @property
    def available(self) -> int | None:
        """How many may be claimed; None if any number may."""
        counts = [int(limit) for limit in (self.places, self.tokens) if limit is not None]
        return max(0, min(counts)) if counts else None

    def take(self, count: int) -> None:
        """Subtract claimed tasks."""
        self.is_used = True
        if self.places is not None:
            self.places -= count
        if self.tokens is not None:
            self.tokens -= count

    @property
    def is_full(self) -> bool:
        """Whether a task has to end before another may start."""
        return self.places is not None and self.places <= 0

    @property
    def token_in(self) -> float:
        """The seconds until the rate lets the next task start; 0 if it may start now."""
        rate = self.rules.rate
        return 0.0 if rate is None else rate.wait(self.tokens or 0.0)


class QueueLimiter:
    """Reads what queues allow, on one connection. Its statements are compiled once."""

    def __init__(self, tasks: TaskQuerySet, rules_of: Callable[[str, Mapping[str, Any]], QueuePolicy]) -> None:
        self._queues = Queue.objects.using(tasks.db)
        self._connection = connections[tasks.db]
        self._rules_of = rules_of
        self._waits = self._connection.vendor == "postgresql"
        name = BoundParam(_NAME, CharField(max_length=100))
        # Outside a transaction Django compiles no SELECT … FOR UPDATE.
        with transaction.atomic(using=tasks.db):
            row = self._queues.filter(name=name).lock(skip=not self._waits)
            lock = Statement.select(row, *_COLUMNS, SecondsUntil("refilled_at"), Now())
        held = Statement.part(tasks.all_rows().active().filter(queue_name=name).order_by().values_list("pk"))
        count = Statement.compose("SELECT COUNT(*) FROM ({held}) AS held", held=held)
        self._lock = postgres.inline_constants(lock, tasks.db)
        self._count = postgres.inline_constants(count, tasks.db)

    def lock_allowances(self, names: Iterable[str]) -> dict[str, Allowance]:
        """Lock these queues until the transaction ends, and return what each allows.

        PostgreSQL waits :data:`LOCK_WAIT_MS` for a row, then raises an OperationalError that ends the transaction
        (:func:`postgres.is_lock_timeout`). On other databases a locked queue is missing from the result.
        """
        asked = {name: self._allowance(name) for name in sorted(names)}
        return {name: allowance for name, allowance in asked.items() if allowance is not None}

    def _allowance(self, name: str) -> Allowance | None:
        locked = self._lock_and_count(name) or self._create_and_lock(name)
        if locked is None:
            return None
        (*values, until, now), held = locked
        columns = dict(zip(_COLUMNS, values, strict=True))
        rules = self._rules_of(name, columns)
        allowance = Allowance(rules, now)
        if rules.rate is not None:
            allowance.tokens = rules.rate.tokens(columns["tokens"], None if until is None else -until)
        if rules.max_concurrency is not None:
            allowance.places = rules.max_concurrency - held
        return allowance

    def _lock_and_count(self, name: str) -> tuple[Any, int] | None:
        """Lock a queue's row; return it and the number of held tasks, or None if there is no unlocked row.

        A second statement counts the tasks, so that it sees what was committed before the lock. Both go in one round
        trip, because each wait costs a busy process the interpreter lock.
        """
        parameters = {_NAME.name: name}
        with (
            postgres.pipeline(self._connection),
            postgres.preparing_cursor(self._connection) as lock,
            postgres.preparing_cursor(self._connection) as count,
        ):
            with postgres.waiting_for_locks(self._connection, LOCK_WAIT_MS):
                self._lock.execute(lock, parameters)
            self._count.execute(count, parameters)
            rows = self._lock.fetch(lock)
            return (rows[0], count.fetchone()[0]) if rows else None

    def _create_and_lock(self, name: str) -> tuple[Any, int] | None:
        """Create and lock the row of a queue whose limits stand only in the settings."""
        if self._queues.filter(name=name).exists():
            return None
        self._queues.named(name)
        return self._lock_and_count(name)


def store_tokens(database: str, allowances: Mapping[str, Allowance]) -> None:
    """Store the tokens that are left in queues after a claim."""
    for name, allowance in allowances.items():
        if allowance.is_used and allowance.tokens is not None:
            row = Queue.objects.using(database).filter(name=name)
            row.update(tokens=allowance.tokens, refilled_at=allowance.now)


def refund_tokens(held: TaskQuerySet) -> None:
    """Refund the tokens of tasks that a worker holds and will not start.

    Call it in the transaction that releases the tasks, before the release. A bucket may then exceed its burst; the next
    claim reads it as full.
    """
    queues = Queue.objects.using(held.db).filter(tokens__isnull=False)
    names = held.filter(queue_name__in=queues.values("name")).lock(skip=False).values_list("queue_name", flat=True)
    for name, count in sorted(Counter(names).items()):
        queues.filter(name=name).update(tokens=F("tokens") + count)
