"""The parts of the claim that the ORM can't express.

A claim is compiled once and run thousands of times a second; what differs from run to run is a parameter that each run
binds. Everything here takes querysets and knows no table.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F
from django.db.models.sql import Query
from django.db.models.sql.compiler import SQLCompiler

from . import postgres
from .expressions import BoundParam, OuterColumn, Param
from .statements import Statement

QuerySetT = TypeVar("QuerySetT", bound=models.QuerySet[Any])

#: Maximum tasks that a run claims, and the queue, or queues, that it claims from.
LIMIT: Final = Param("room")
QUEUE: Final = Param("queue")
QUEUES: Final = Param("queues")

#: Maximum tasks of each of several queues, and of all of them, that are compared before any is locked.
CAPS: Final = Param("caps")
CANDIDATES: Final = Param("candidates")

#: The position of the last claimed task: its priority, time and id.
CURSOR_PRIORITY: Final = Param("cursor_priority")
CURSOR_TIME: Final = Param("cursor_time")
CURSOR_ID: Final = Param("cursor_id")

#: The queue of one round of :class:`IsQueueCandidate`.
LATERAL_QUEUE: Final = OuterColumn("waiting.name", models.CharField())


def without_prefixes(rows: QuerySetT) -> QuerySetT:
    """Return all rows of a table. Statements about them name columns without the table.

    psycopg parses a statement of more than 4,096 characters anew on each run, which doubles the client's work.
    """
    rows = rows.all()
    rows.query = Query(rows.model, alias_cols=False)
    return rows


class AfterCursor(models.Func):
    """Whether a row comes after the cursor, among the rows of the cursor's priority."""

    template = "(%(expressions)s)"
    arg_joiner = ", "
    conditional = True
    output_field = models.BooleanField()

    def __init__(self) -> None:
        super().__init__(F("enqueued_at"), F("pk"))

    def as_sql(self, *args: Any, **kwargs: Any) -> tuple[str, tuple[Any, ...]]:
        """Compare both columns as one row value, as the index stores them."""
        sql, params = super().as_sql(*args, **kwargs)
        return f"{sql} > (%s::timestamptz, %s::uuid)", (*params, CURSOR_TIME, CURSOR_ID)


class UnpausedQueue(models.Expression):
    """The name of a queue; NULL if that is in ``paused``, so that rows of a paused queue are not read."""

    output_field = models.TextField()

    def __init__(self, paused: models.QuerySet[Any]) -> None:
        super().__init__()
        self._name = BoundParam(QUEUE, self.output_field)
        self._paused = Statement.part(paused.filter(name=self._name).values_list("pk"))

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        """Render a subquery without a table, which both databases evaluate once."""
        name, params = compiler.compile(self._name)
        sql = f"(SELECT {name} WHERE NOT EXISTS ({self._paused.sql}))"  # the ORM's
        return sql, (*params, *self._paused.params)


class IsQueueCandidate(models.Func):
    """Whether the primary key is among the ``CANDIDATES`` that come first of the first ones of each of the ``QUEUES``.

    At most ``CAPS`` of each queue are. PostgreSQL alone can join the first rows of each queue. The keys are an array: a
    join might be planned for good the other way round, while the table is empty.
    """

    template = "%(expressions)s"
    conditional = True
    output_field = models.BooleanField()

    def __init__(self, firsts: models.QuerySet[Any], paused: models.QuerySet[Any]) -> None:
        super().__init__(F("pk"))
        self._paused = Statement.part(paused.values_list("name"))
        self._firsts = Statement.part(firsts.values_list("pk", "priority", "enqueued_at"), Statement("waiting.cap"))

    def as_sql(self, *args: Any, **kwargs: Any) -> tuple[str, tuple[Any, ...]]:
        """Render the candidates."""
        sql, params, _ = Statement.compose(
            "{key} = ANY(ARRAY(SELECT first.id FROM"
            " (SELECT * FROM unnest({names}::text[], {caps}::integer[]) AS named (name, cap)"
            " WHERE name NOT IN ({paused})) AS waiting"
            " CROSS JOIN LATERAL ({firsts}) AS first (id, priority, enqueued_at)"
            " ORDER BY first.priority DESC, first.enqueued_at, first.id LIMIT {candidates}))",
            key=Statement(*super().as_sql(*args, **kwargs)),
            names=QUEUES,
            caps=CAPS,
            paused=self._paused,
            firsts=self._firsts,
            candidates=CANDIDATES,
        )
        return sql, tuple(params)


class IsStored(models.Func):
    """True once the same statement has stored the results: a wait for a row's lock must not hold locks of others."""

    template = "(SELECT count(*) FROM completed) >= 0"
    conditional = True
    output_field = models.BooleanField()


class IsPicked(models.Func):
    """Whether the primary key is one of those that the same statement has picked.

    As an array: a join might be planned for good the other way round, while the table is empty.
    """

    template = "%(expressions)s = ANY(ARRAY(SELECT key FROM picked))"
    conditional = True
    output_field = models.BooleanField()

    def __init__(self) -> None:
        super().__init__(F("pk"))


def one_statement(
    rows: models.QuerySet[Any], *, complete: Statement, record: Statement, pick: Statement, take: Statement
) -> Statement:
    """Return PostgreSQL's statement that stores results, records attempts, picks ``rows`` and takes them.

    Each part sees the table as it was when the statement began, except that ``record`` reads only the completed rows.
    No two parts touch the same row. ``picked`` is materialized: it must not be evaluated again for each row that is
    taken. Its rows are locked and so can't be lost; the count of ``taken`` checks that all the same.
    """
    whole = Statement.compose(
        "WITH completed AS ({complete} RETURNING *), recorded AS (WITH {table} AS (SELECT * FROM completed) {record}),"
        " picked (key) AS MATERIALIZED ({pick}), taken AS ({take} RETURNING id)"
        " SELECT *, (SELECT count(*) FROM taken) FROM picked",
        complete=complete,
        table=f'"{rows.model._meta.db_table}"',
        record=record,
        pick=pick,
        take=take,
    )
    return postgres.inline_constants(whole._replace(convert=pick.convert), rows.db)
