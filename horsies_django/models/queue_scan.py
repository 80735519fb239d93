"""The survey: in which queues there is something to claim, and when more will be.

Their names are found by jumping from one to the next in an index: that costs as much as there are queues in which
something waits, however deep they are. Where names are made up there may be 100,000 of these. So one survey sees
:data:`MOST` of them at most, and the next one those that come after.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.functions import Now
from django.db.models.sql.compiler import SQLCompiler

from ..db import postgres
from ..db.expressions import BoundParam, Param, SecondsUntil
from ..db.statements import JSON, Statement
from .filters import TaskFilters
from .limit import Limit
from .queue import Queue

if TYPE_CHECKING:
    from .worker import WorkerQuerySet


#: Queues that one survey sees at most.
QUEUES_PER_SCAN: Final = 128


class Waiting(NamedTuple):
    """A queue in which something is due, and what is first in it."""

    queue_name: str
    is_paused: bool
    priority: int
    enqueued_at: str


class ScanResult(NamedTuple):
    """For each kind of task the queues in which some are due; the seconds until what was sent for later is.

    The seconds until a limit by key has room by time alone. Whether the worker's own row asks it to stop, whether rows
    of queues say what holds for them, and the clock. ``is_partial`` is whether there are queues that it has not
    seen, ``goes_on`` whether some of these come after those that it has.
    """

    queues: tuple[tuple[Waiting, ...], ...]
    deferred_in: float | None
    release_in: float | None
    is_stop_requested: bool
    has_rules: bool
    now: str
    is_partial: bool = False
    continues: bool = False


class QueueScan:
    """One statement, on a worker's own row, that takes no lock. Compiled once."""

    def __init__(self, tasks: TaskFilters[Any], workers: WorkerQuerySet, worker_id: str, kinds: Sequence[bool]) -> None:
        self._connection = connections[tasks.db]
        self._is_prepared = self._connection.vendor == "postgresql"
        deferred = tasks.deferred().order_by("enqueued_at")[:1]
        in_seconds = deferred.values_list(SecondsUntil("enqueued_at"))
        gates = Limit.objects.using(tasks.db).filter(next_at__isnull=False).order_by("next_at")[:1]
        own = workers.filter(pk=worker_id).annotate(now=Now()).values_list("pk", "stop_requested_at", "now")
        row, ruled = (
            Statement.select(own),
            Statement.select(Queue.objects.using(tasks.db).with_rules().values_list("pk")[:1]),
        )
        self._after = [""] * len(kinds)
        self._blanks = [Param(f"after_{number}") for number, _ in enumerate(kinds)]
        parts = [
            *(self._waiting(tasks, is_async, blank) for is_async, blank in zip(kinds, self._blanks, strict=True)),
            Statement.select(in_seconds),
            Statement.select(gates.values_list(SecondsUntil("next_at"))),
        ]
        columns = ", ".join(f"({part.sql})" for part in parts)
        params = [param for part in [*parts, ruled, row] for param in part.params]
        columns += f", worker.stop_requested_at IS NOT NULL, EXISTS ({ruled.sql}), worker.now"
        whole = Statement(f"SELECT {columns} FROM ({row.sql}) AS worker", tuple(params))  # noqa: S608  # the ORM's
        self._statement = whole.inline_constants() if self._is_prepared else whole

    def run(self) -> ScanResult | None:
        """Make the survey; None if the worker has no row."""
        connection = self._connection
        with postgres.preparing_cursor(connection) if self._is_prepared else connection.cursor() as cursor:
            given = dict(zip([blank.name for blank in self._blanks], self._after, strict=True))
            cursor.execute(self._statement.sql, self._statement.bind(given))
            row = cursor.fetchone()
        if row is None:
            return None
        *kinds, deferred_in, gates_in, is_dismissed, is_ruled, now = row
        seen = [json.loads(queues or "[]") for queues in kinds]
        is_partial = any(self._after)
        self._after = list(map(_last_name, seen))
        queues = tuple(map(_due_queues, seen))
        goes_on = any(self._after)
        facts = (deferred_in, gates_in, bool(is_dismissed), bool(is_ruled), str(now))
        return ScanResult(queues, *facts, is_partial or goes_on, goes_on)

    def _waiting(self, tasks: TaskFilters[Any], is_async: bool, after: Param) -> Statement:
        """The queues in which something of this kind is due, as a JSON array of arrays."""
        make = JSON[self._connection.vendor]
        names, name = skip_scan(tasks, is_async, after), NAME
        is_paused = Statement.select(Queue.objects.using(tasks.db).filter(name=name, paused=True).values_list("pk"))
        due = tasks.next_up(is_async=is_async).filter(queue_name=name)[:1]
        priority, enqueued_at = (Statement.select(due.values_list(column)) for column in ("priority", "enqueued_at"))
        sql = (
            f"WITH RECURSIVE {names.sql}"  # noqa: S608  # the ORM's
            f" SELECT CAST({make.rows}({make.values}(place, name, is_paused, priority, enqueued_at)) AS {make.text})"
            f" FROM (SELECT names.place, names.name, EXISTS ({is_paused.sql}) AS is_paused,"
            f" ({priority.sql}) AS priority, ({enqueued_at.sql}) AS enqueued_at FROM names"
            f") AS queues"
        )
        parts = (names, is_paused, priority, enqueued_at)
        return Statement(sql, tuple(param for part in parts for param in part.params))


def _due_queues(seen: list[list[Any]]) -> tuple[Waiting, ...]:
    """Return those in which something is due, those first that have what comes first."""
    waiting = (Waiting(name, bool(is_paused), *rank) for _, name, is_paused, *rank in seen if rank[0] is not None)
    return tuple(sorted(waiting, key=lambda queue: (-queue.priority, queue.enqueued_at)))


def _last_name(seen: list[list[Any]]) -> str:
    """Return the last of them; nothing if there are no more, which a NULL says."""
    if len(seen) < QUEUES_PER_SCAN or any(name is None for _, name, *_ in seen):
        return ""
    return str(max(seen)[1])


#: What names of queues are to the ORM.
_NAMES: Final = models.CharField(max_length=100)


class OuterColumn(models.Expression):
    """A column of the table that a jump is made from."""

    def __init__(self, column: str, output_field: models.Field[Any, Any]) -> None:
        super().__init__(output_field=output_field)
        self._column = column

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        """Name it."""
        return self._column, ()


#: The queue that a jump is made from.
NAME: Final = OuterColumn("names.name", models.CharField())


def skip_scan(tasks: TaskFilters[Any], is_async: bool, after: Param | None = None) -> Statement:
    """``names (name) AS …``: the queues in which something of this kind waits, and a NULL at the end.

    With ``after``, which each run gives: ``names (name, place)``, :data:`MOST` of those that come after that name.
    """
    names = tasks.waiting(is_async=is_async).order_by("queue_name").values_list("queue_name")
    first = Statement.select((names if after is None else names.filter(queue_name__gt=BoundParam(after, _NAMES)))[:1])
    following = Statement.select(names.filter(queue_name__gt=NAME)[:1])
    if after is not None:
        sql = (
            f"names (name, place) AS (SELECT ({first.sql}), 1 UNION ALL"  # noqa: S608  # the ORM's
            f" SELECT ({following.sql}), names.place + 1 FROM names"
            f" WHERE names.name IS NOT NULL AND names.place < {QUEUES_PER_SCAN})"
        )
        return Statement(sql, (*first.params, *following.params))
    sql = (
        f"names (name) AS (SELECT ({first.sql}) UNION ALL"  # noqa: S608  # the ORM's
        f" SELECT ({following.sql}) FROM names WHERE names.name IS NOT NULL)"
    )
    return Statement(sql, (*first.params, *following.params))
