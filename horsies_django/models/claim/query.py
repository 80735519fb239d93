"""Picks: which tasks are next."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F
from django.db.models.sql.compiler import SQLCompiler

from ...db.expressions import Blank, Given
from ...db.statements import Statement
from ..queue import Queue

if TYPE_CHECKING:
    from ..transitions import TaskQuerySet

ROOM: Final = Blank("room")
QUEUE: Final = Blank("queue")
QUEUES: Final = Blank("queues")
CANDIDATES: Final = Blank("candidates")
MOST: Final = Blank("most")
MARK_PRIORITY: Final = Blank("mark_priority")
MARK_TIME: Final = Blank("mark_time")
MARK_ID: Final = Blank("mark_id")


#: What says which is next of two.
RANK: Final = ("priority", "enqueued_at", "pk")


class Pick(NamedTuple):
    """What is next from the first row on, and, where one can go on from a mark, what comes after that."""

    first: TaskQuerySet
    onward: TaskQuerySet | None = None


def of_one_queue(tasks: TaskQuerySet, *, is_async: bool) -> Pick:
    """What is next in a queue that each run names; nothing if it is paused."""
    next_up = tasks.next_up(is_async=is_async).filter(queue_name=_IfItIsOpen(tasks.db))
    onward = next_up.filter(_IsAfter(), priority=Given(MARK_PRIORITY, models.SmallIntegerField()))
    return Pick(next_up, onward)


def of_queues(tasks: TaskQuerySet, *, is_async: bool, is_capped: bool = False) -> Pick:
    """What is next in several queues that each run names, without those that are paused; ``MOST`` of each if capped.

    Only PostgreSQL can join what is next in each of them. Of the ``CANDIDATES``, which are not locked, others may be
    quicker to lock some.
    """
    firsts = tasks.rows().next_up(is_async=is_async).filter(queue_name=_QueueName())
    return Pick(among(tasks, (_IsAmongTheCapped if is_capped else _IsAmongTheFirsts)(firsts)))


def among(tasks: TaskQuerySet, candidates: models.Q | models.expressions.BaseExpression) -> TaskQuerySet:
    """What is next of some candidates.

    They are few, and get sorted: in an order that an index has, the planner would rather walk over all that is there.
    """
    return tasks.due().filter(candidates).order_by(F("priority") * -1, "enqueued_at", "pk")


def in_order(*firsts: Iterable[tuple[Any, ...]]) -> list[UUID]:
    """Return the keys of what is next in several queues, given the rank of each."""
    return [key for *_, key in sorted(chain(*firsts), key=lambda rank: (-rank[0], *rank[1:]))]


class _IsAfter(models.Func):
    """Whether a row comes after the mark, among those of the mark's priority."""

    template = "(%(expressions)s)"
    arg_joiner = ", "
    conditional = True
    output_field = models.BooleanField()

    def __init__(self) -> None:
        super().__init__(F("enqueued_at"), F("pk"))

    def as_sql(self, *args: Any, **kwargs: Any) -> tuple[str, tuple[Any, ...]]:
        sql, params = super().as_sql(*args, **kwargs)
        return f"{sql} > (%s::timestamptz, %s::uuid)", (*params, MARK_TIME, MARK_ID)


class _IfItIsOpen(models.Expression):
    """The queue that a run names; no queue if it is paused, so that its rows are not even looked at."""

    output_field = models.TextField()

    def __init__(self, database: str) -> None:
        super().__init__()
        name = Given(QUEUE, self.output_field)
        self._name = name
        self._paused = Statement.select(Queue.objects.using(database).filter(name=name, paused=True).values_list("pk"))

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        name, params = compiler.compile(self._name)
        sql = f"(SELECT {name} WHERE NOT EXISTS ({self._paused.sql}))"  # the ORM's
        return sql, (*params, *self._paused.params)


class _QueueName(models.Expression):
    """The queue at hand."""

    output_field = models.CharField()

    def as_sql(self, *_: Any, **__: Any) -> tuple[str, tuple[Any, ...]]:
        return "waiting.name", ()


class _IsAmongTheFirsts(models.Func):
    """Whether the primary key is one of the first of the firsts of each queue.

    As an array: a join might be planned for good the other way round, while the table is empty.
    """

    template = "%(expressions)s"
    conditional = True
    output_field = models.BooleanField()

    def __init__(self, firsts: TaskQuerySet) -> None:
        super().__init__(F("pk"))
        paused = Queue.objects.using(firsts.db).filter(paused=True).values_list("name")
        self._paused = Statement.select(paused)
        self._firsts = Statement.select(firsts.values_list("pk", "priority", "enqueued_at"), limit=CANDIDATES)

    def as_sql(self, *args: Any, **kwargs: Any) -> tuple[str, tuple[Any, ...]]:
        key, params = super().as_sql(*args, **kwargs)
        sql = (
            f"{key} = ANY(ARRAY(SELECT first.id FROM"  # noqa: S608  # the ORM's
            f" (SELECT unnest(%s::text[]) EXCEPT {self._paused.sql}) AS waiting (name)"
            f" CROSS JOIN LATERAL ({self._firsts.sql}) AS first (id, priority, enqueued_at)"
            " ORDER BY first.priority DESC, first.enqueued_at, first.id LIMIT %s))"
        )
        return sql, (*params, QUEUES, *self._paused.params, *self._firsts.params, CANDIDATES)


class _IsAmongTheCapped(_IsAmongTheFirsts):
    """The same with no more of each queue than may be claimed from it."""

    def as_sql(self, *args: Any, **kwargs: Any) -> tuple[str, tuple[Any, ...]]:
        key, params = models.Func.as_sql(self, *args, **kwargs)
        head, *_ = self._firsts.sql.rpartition("%s")
        sql = (
            f"{key} = ANY(ARRAY(SELECT first.id FROM"  # noqa: S608  # the ORM's
            " (SELECT * FROM unnest(%s::text[], %s::integer[]) AS named (name, most)"
            f" WHERE name NOT IN ({self._paused.sql})) AS waiting (name, most)"
            f" CROSS JOIN LATERAL ({head}waiting.most) AS first (id, priority, enqueued_at)"
            " ORDER BY first.priority DESC, first.enqueued_at, first.id LIMIT %s))"
        )
        return sql, (*params, QUEUES, MOST, *self._paused.params, *self._firsts.params[:-1], CANDIDATES)
