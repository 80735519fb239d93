"""The parts of the claim that the ORM can't express.

A claim is compiled once and run thousands of times a second; what differs from run to run is a parameter that each run
binds. Everything here takes querysets and knows no table.
"""

from __future__ import annotations

import re
from typing import Any, Final

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F
from django.db.models.sql.compiler import SQLCompiler

from . import postgres
from .expressions import BoundParam, Param
from .statements import Statement

#: Maximum tasks that a run claims, and the queue, or queues, that it claims from.
LIMIT: Final = Param("room")
QUEUE: Final = Param("queue")
QUEUES: Final = Param("queues")

#: Maximum tasks of each of several queues, and of all of them, that are compared before any is locked.
CAPS: Final = Param("most")
CANDIDATES: Final = Param("candidates")

#: The position of the last claimed task: its priority, time and id.
CURSOR_PRIORITY: Final = Param("mark_priority")
CURSOR_TIME: Final = Param("mark_time")
CURSOR_ID: Final = Param("mark_id")

#: A column name in the ORM's SELECT.
_NAME: Final = re.compile(r' AS "\w+"')


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

    def __init__(self, name: str | None, paused: models.QuerySet[Any]) -> None:
        super().__init__()
        self._name = BoundParam(QUEUE, self.output_field) if name is None else models.Value(name, self.output_field)
        self._paused = Statement.part(paused.filter(name=self._name).values_list("pk"))

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        """Render a subquery without a table, which both databases evaluate once."""
        name, params = compiler.compile(self._name)
        sql = f"(SELECT {name} WHERE NOT EXISTS ({self._paused.sql}))"  # the ORM's
        return sql, (*params, *self._paused.params)


class LateralQueue(models.Expression):
    """The queue of one round of :class:`IsQueueCandidate`."""

    output_field = models.CharField()

    def as_sql(self, *_: Any, **__: Any) -> tuple[str, tuple[Any, ...]]:
        """Render the name from the join in :class:`IsQueueCandidate`."""
        return "waiting.name", ()


class IsQueueCandidate(models.Func):
    """Whether the primary key is among the ``CANDIDATES`` that come first of the first ones of each of the ``QUEUES``.

    PostgreSQL alone can join the first rows of each queue. The keys are an array: a join might be planned for good the
    other way round, while the table is empty.
    """

    template = "%(expressions)s"
    conditional = True
    output_field = models.BooleanField()

    def __init__(self, firsts: models.QuerySet[Any], paused: models.QuerySet[Any], *, is_capped: bool = False) -> None:
        super().__init__(F("pk"))
        self._is_capped = is_capped
        self._paused = Statement.part(paused.values_list("name"))
        limit = Statement("waiting.most") if is_capped else CANDIDATES
        self._firsts = Statement.part(firsts.values_list("pk", "priority", "enqueued_at"), limit)

    def as_sql(self, *args: Any, **kwargs: Any) -> tuple[str, tuple[Any, ...]]:
        """Render the candidates. Without caps all queues have one limit; with caps each has its own."""
        key, params = super().as_sql(*args, **kwargs)
        if self._is_capped:
            queues = (
                "(SELECT * FROM unnest({names}::text[], {caps}::integer[]) AS named (name, most)"
                " WHERE name NOT IN ({paused})) AS waiting (name, most)"
            )
        else:
            queues = "(SELECT unnest({names}::text[]) EXCEPT {paused}) AS waiting (name)"
        whole = Statement.compose(
            "{key} = ANY(ARRAY(SELECT first.id FROM {queues}"
            " CROSS JOIN LATERAL ({firsts}) AS first (id, priority, enqueued_at)"
            " ORDER BY first.priority DESC, first.enqueued_at, first.id LIMIT {candidates}))",
            key=Statement(key, params),
            queues=Statement.compose(queues, names=QUEUES, caps=CAPS, paused=self._paused),
            firsts=self._firsts,
            candidates=CANDIDATES,
        )
        return whole.sql, tuple(whole.params)


class IsStored(models.Func):
    """True once the same statement has stored the results: a wait for a row's lock must not hold locks of others."""

    template = "(SELECT count(*) FROM completed) >= 0"
    conditional = True
    output_field = models.BooleanField()


class IsPicked(models.Func):
    """Whether the primary key is one of those that the same statement has picked.

    As an array: a join might be planned for good the other way round, while the table is empty.
    """

    template = "%(expressions)s = ANY(ARRAY(SELECT c0 FROM picked))"
    conditional = True
    output_field = models.BooleanField()

    def __init__(self) -> None:
        super().__init__(F("pk"))


def one_statement(
    *, complete: Statement, record: Statement, pick: Statement, take: Statement, table: str, columns: int, alias: str
) -> Statement:
    """Return PostgreSQL's statement that stores results, records attempts, picks tasks and takes them.

    Each part sees the table as it was when the statement began, and no two of them touch the same row. ``picked`` is
    materialized: it must not be evaluated again for each row that is taken. Its rows are locked and so can't be lost;
    the count of ``taken`` checks that all the same.
    """
    whole = Statement.compose(
        "WITH completed AS ({complete} RETURNING *), recorded AS (WITH {table} AS (SELECT * FROM completed) {record}),"
        " picked ({names}) AS MATERIALIZED ({pick}), taken AS ({take} RETURNING id)"
        " SELECT *, (SELECT count(*) FROM taken) FROM picked",
        complete=complete,
        table=f'"{table}"',
        record=record._replace(sql=_shortened(record.sql, table)),
        names=", ".join(f"c{number}" for number in range(columns)),
        pick=pick._replace(sql=_shortened(pick.sql, table)),
        take=take,
    )
    return postgres.inline_constants(whole._replace(convert=pick.convert), alias)


def _shortened(select: str, table: str) -> str:
    """Leave out the column aliases and table prefixes that a SELECT from one table does not need.

    psycopg parses a statement of more than 4,096 characters anew on each run, which doubles the client's work. ORDER BY
    keeps the prefix, because a bare name there could refer to a result column.
    """
    head, found, rest = _NAME.sub("", select).partition(f' FROM "{table}" ')
    before, select, columns = head.rpartition("SELECT ")
    condition, order, last = rest.rpartition(" ORDER BY ")
    columns, condition = (part.replace(f'"{table}".', "") for part in (columns, condition))
    return before + select + columns + found + condition + order + last
