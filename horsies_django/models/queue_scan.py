"""The queue scan: which queues have claimable tasks, and when more tasks will be due.

It finds the queues' names by a skip scan of an index, whose cost grows with the number of queues, not of tasks.
Projects that generate names may have 100,000 queues. So one scan sees at most :data:`QUEUES_PER_SCAN` of them, and the
next one continues after those.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from django.db import connections

from ..db import postgres
from ..db.expressions import BoundParam, Param, SecondsUntil
from ..db.skip_scan import first_of_name, skip_scan
from ..db.statements import JSON, Statement
from .filters import TaskFilterQuerySet
from .limit import Limit
from .queue import Queue
from .worker import Worker, WorkerRequest, worker_request

#: What a scan returns of a queue: its place, its name and the rank of its first due task as JSON, whether it is paused.
_Place: TypeAlias = list[Any]

#: Maximum queues that one scan sees.
QUEUES_PER_SCAN: Final = 128


class DueQueue(NamedTuple):
    """A queue with due tasks, and the rank of the first."""

    queue_name: str
    is_paused: bool
    priority: int
    enqueued_at: str


class ScanResult(NamedTuple):
    """The result of a queue scan.

    ``queues`` are the queues with due tasks, for each kind of task. ``deferred_in`` is the number of seconds until the
    next scheduled task, ``release_in`` until time alone makes room at a limit. ``request`` is what the worker's own
    row asks of it, ``has_rules`` tells whether rows of queues have rules.
    ``is_partial`` is whether the scan has not seen all queues, ``continues`` whether some come after those seen.
    """

    queues: tuple[tuple[DueQueue, ...], ...]
    deferred_in: float | None
    release_in: float | None
    request: WorkerRequest
    has_rules: bool
    is_partial: bool = False
    continues: bool = False


class QueueScan:
    """The scan: one statement that takes no lock. ``kinds`` are whether tasks are coroutines, one for each pool."""

    def __init__(self, database: str, worker_id: str, kinds: Sequence[bool]) -> None:
        self._connection = connections[database]
        self._is_prepared = self._connection.vendor == "postgresql"
        self._statement = compile_scan(database, tuple(kinds))
        self._worker_id = worker_id
        self._last_names = [""] * len(kinds)

    def run(self) -> ScanResult | None:
        """Run the scan; return None if the worker has no row."""
        connection = self._connection
        with postgres.preparing_cursor(connection) if self._is_prepared else connection.cursor() as cursor:
            after = {_after(number).name: name for number, name in enumerate(self._last_names)}
            self._statement.execute(cursor, {_WORKER_ID.name: self._worker_id} | after)
            row = cursor.fetchone()
        if row is None:
            return None
        *kinds, deferred_in, release_in, is_stop_requested, is_quiet, has_rules = row
        seen = [json.loads(queues or "[]") for queues in kinds]
        is_partial = any(self._last_names)
        self._last_names = list(map(_last_name, seen))
        queues = tuple(map(_due_queues, seen))
        continues = any(self._last_names)
        facts = (deferred_in, release_in, worker_request(is_stop_requested, is_quiet), bool(has_rules))
        return ScanResult(queues, *facts, is_partial or continues, continues)


#: The id of the worker, which each run of the scan gives.
_WORKER_ID: Final = Param("worker_id")


def _after(number: int) -> Param:
    """Return the parameter for the name after which the scan begins, for the pool of this number."""
    return Param(f"after_{number}")


@functools.cache
def compile_scan(database: str, kinds: tuple[bool, ...]) -> Statement:
    """Compile the scan. A supervisor does so before it forks its runners, so that they share the memory of that."""
    from .task import Task

    tasks, workers = Task.objects.using(database), Worker.objects.using(database)
    deferred = tasks.deferred().order_by("enqueued_at")[:1]
    limits = Limit.objects.using(database).filter(next_at__isnull=False).order_by("next_at")[:1]
    own = workers.filter(pk=BoundParam(_WORKER_ID, Worker._meta.get_field("id")))
    pools = [_waiting(tasks, is_async, _after(number)) for number, is_async in enumerate(kinds)]
    scan = Statement.compose(
        "SELECT ({pools}), ({deferred}), ({limits}), worker.stop_requested_at IS NOT NULL,"
        " worker.quiet_since IS NOT NULL, EXISTS ({with_rules}) FROM ({worker}) AS worker",
        pools=Statement.join("), (", pools),
        deferred=Statement.part(deferred.values_list(SecondsUntil("enqueued_at"))),
        limits=Statement.part(limits.values_list(SecondsUntil("next_at"))),
        with_rules=Statement.part(Queue.objects.using(database).with_rules().values_list("pk")[:1]),
        worker=Statement.part(own.values_list("pk", "stop_requested_at", "quiet_since")),
    )
    return postgres.inline_constants(scan, database)


def _waiting(tasks: TaskFilterQuerySet[Any], is_async: bool, after: Param) -> Statement:
    """Return the queues with due tasks of this kind, as a JSON array of arrays."""
    make = JSON[connections[tasks.db].vendor]
    due = tasks.next_up(is_async=is_async)
    paused = Queue.objects.using(tasks.db).filter(name=first_of_name(tasks.db), paused=True)
    return Statement.compose(
        "WITH RECURSIVE {names}"
        " SELECT CAST({json_rows}({json_values}(place, CAST(name AS {text}), EXISTS ({paused}))) AS {text}) FROM names",
        json_rows=make.rows,
        json_values=make.values,
        text=make.text,
        names=skip_scan(due, "queue_name", QUEUES_PER_SCAN, after, ("priority", "enqueued_at")),
        paused=Statement.part(paused.values_list("pk")),
    )


def _due_queues(seen: list[_Place]) -> tuple[DueQueue, ...]:
    """Return the queues with due tasks, in the order of their first tasks."""
    firsts = ((json.loads(first), is_paused) for _, first, is_paused in seen if first is not None)
    waiting = (DueQueue(name, bool(is_paused), *rank) for (name, *rank), is_paused in firsts)
    return tuple(sorted(waiting, key=lambda queue: (-queue.priority, queue.enqueued_at)))


def _last_name(seen: list[_Place]) -> str:
    """Return the last name, or an empty text if there are no more queues, which a NULL at the end shows."""
    if len(seen) < QUEUES_PER_SCAN or any(first is None for _, first, _ in seen):
        return ""
    return str(json.loads(max(seen)[1])[0])
