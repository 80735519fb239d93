"""Stores results and claims tasks: the tick of a worker.

It makes the same changes as :meth:`TaskQuerySet.complete` and :meth:`TaskQuerySet.claim`, from the same parts, compiled
by the ORM once. On PostgreSQL they are one statement, one transaction and one round trip.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.db import connections, models, transaction

from ...core import lifecycle
from ...core.status import AttemptOutcome, TaskStatus
from ...db import postgres
from ...db.claim_expressions import (
    CANDIDATES,
    CAPS,
    CURSOR_ID,
    CURSOR_PRIORITY,
    CURSOR_TIME,
    LIMIT,
    QUEUE,
    QUEUES,
    IsPicked,
    IsStored,
    one_statement,
    without_prefixes,
)
from ...db.expressions import AnyOf, Param, ValueByPk, encode_pk, json_array, json_object
from ...db.statements import Statement
from ..attempt import TaskAttempt, attempt_columns
from ..claims import ClaimedTask, Completion, WorkerInfo, claimed_tasks, raise_unless_all_claimed
from .columns import CLAIMED_COLUMNS, START_COLUMNS, claim_columns, completion_columns, seconds_since_start
from .cursors import KeptCursors

if TYPE_CHECKING:
    from ..transitions import TaskQuerySet

_ENDED: Final = Param("ended")
_CLAIMS: Final = Param("claims")
_RESULTS: Final = Param("results")
_SECONDS: Final = Param("seconds")
_PICKED: Final = Param("picked")
_NO_ENDS: Final = {_ENDED.name: "{}", _CLAIMS.name: "{}", _RESULTS.name: "{}", _SECONDS.name: "{}"}

#: Candidates per task to claim, if there are several queues: other workers may lock some first.
_OVERFETCH: Final = 2

#: Claims continue from the cursor for this many times the duration of a claim from the first row, and at most for so
#: many seconds.
_DURATION_FACTOR: Final = 10
_MAX_DURATION: Final = 1.0

#: Before all ids.
_FIRST_ID: Final = UUID(int=0)

_NO_CAPS: Final[Mapping[str, int]] = {}


def compile_for(
    tasks: TaskQuerySet,
    runner: WorkerInfo,
    *,
    is_async: bool,
    starts: bool = True,
    cursors: KeptCursors | None = None,
) -> CompleteAndClaim:
    """Return the :class:`CompleteAndClaim` of ``tasks`` for one runner, for this database.

    Several may share their ``cursors``. Only PostgreSQL has any.
    """
    if connections[tasks.db].vendor != "postgresql":
        return _FourStatements(tasks, runner, is_async=is_async, starts=starts)
    return _OneStatement(tasks, runner, is_async=is_async, starts=starts, cursors=cursors)


class CompleteAndClaim(ABC):
    """Stores results of successes and claims the next of ``tasks`` for one runner; ``starts`` them too, or not."""

    def __init__(self, tasks: TaskQuerySet, runner: WorkerInfo, *, is_async: bool, starts: bool) -> None:
        self._alias = tasks.db
        self._connection = connections[tasks.db]
        self._is_async = is_async
        self._rows = rows = without_prefixes(tasks)
        token = ValueByPk(_CLAIMS, models.IntegerField())
        self._held = rows.filter(AnyOf(_ENDED), claim=token, claimed_by_worker_id=runner.worker_id)
        self._complete = Statement.update(
            self._held.filter(lifecycle.COMPLETE.is_possible),
            status=lifecycle.COMPLETE.target,
            **completion_columns(_RESULTS, _SECONDS, tasks.db),
        )
        self._attempt = attempt_columns(AttemptOutcome.COMPLETED, hostname=runner.hostname, pid=runner.pid)
        claim = lifecycle.CLAIM_AND_START if starts else lifecycle.CLAIM
        self._claimable = rows.filter(claim.is_possible)
        self._changes = {
            "status": claim.target,
            **claim_columns(runner.worker_id),
            **(START_COLUMNS if starts else {}),
        }

    @abstractmethod
    def run(
        self, ends: Sequence[Completion], room: int, queues: Sequence[str], caps: Mapping[str, int] = _NO_CAPS
    ) -> list[ClaimedTask]:
        """Store ``ends``, all of them successes; claim at most ``room`` tasks of ``queues``, and return them.

        ``caps`` are maximum numbers of tasks of single queues. An end whose claim was lost changes nothing. Raises
        ClaimLost if a task was locked and yet could not be claimed: a transaction has to roll back, and without one it
        is unknown which tasks were claimed.
        """

    def _values_of(self, ends: Sequence[Completion]) -> dict[str, Any]:
        keys = encode_pk([end.task_id for end in ends], self._connection)
        return {
            _ENDED.name: json_array(keys, self._connection),
            _CLAIMS.name: json_object(keys, [str(end.claim) for end in ends]),
            _RESULTS.name: json_object(keys, [end.result for end in ends]),
            _SECONDS.name: json_object(keys, seconds_since_start(ends)),
        }


class _OneStatement(CompleteAndClaim):
    """All of it in one statement, on PostgreSQL.

    Claims from one queue continue from the cursor, the position of the last claimed task, while that is faster. While
    an old transaction blocks vacuum, a claim from the first row walks over the index entries of all tasks that were
    claimed before. So such claims take at most a tenth of the time. A task that sorts before the cursor, because of its
    priority or because its transaction committed late, then waits some ten milliseconds more. If there are many
    entries, claims that would begin at the first row begin at kept cursors.
    """

    _cursor: ClaimedTask | None = None
    _cursor_until = float("-inf")
    _was_short = False

    def __init__(
        self, tasks: TaskQuerySet, runner: WorkerInfo, *, is_async: bool, starts: bool, cursors: KeptCursors | None
    ) -> None:
        super().__init__(tasks, runner, is_async=is_async, starts=starts)
        self._kept = cursors or KeptCursors(self._alias)

    def run(
        self, ends: Sequence[Completion], room: int, queues: Sequence[str], caps: Mapping[str, int] = _NO_CAPS
    ) -> list[ClaimedTask]:
        """Run it: of several queues together, or of each in turn.

        The latter if the candidates were locked the last time, or there were fewer and a queue has cursors.
        """
        values = self._values_of(ends)
        if room and len(queues) > 1 and not self._was_short:
            candidates = room * _OVERFETCH
            values |= {
                QUEUES.name: list(queues),
                CAPS.name: [min(candidates, caps.get(queue, candidates)) for queue in queues],
                CANDIDATES.name: candidates,
                LIMIT.name: room,
            }
            tasks = self._execute(self._of_several, values)
            self._was_short = len(tasks) < min(room, sum(caps.get(queue, room) for queue in queues))
            return tasks
        tasks = []
        for queue in queues or ("",):
            left = room - len(tasks)
            tasks += self._claim_of_one(values, queue, min(left, caps.get(queue, left)))
            if len(tasks) == room:
                break
            values |= _NO_ENDS
        if room:  # together, they would be claimed from their first rows on
            self._was_short = len(tasks) < room and self._kept.are_of_any(queues)
        return tasks

    def _claim_of_one(self, values: dict[str, Any], queue: str, room: int) -> list[ClaimedTask]:
        values |= {QUEUE.name: queue, LIMIT.name: room}
        tasks: list[ClaimedTask] = []
        began, last = time.monotonic(), self._cursor
        if room and last is not None and last.queue_name == queue and began < self._cursor_until:
            tasks = self._claim_after(values, last.priority, last.enqueued_at, last.task_id)
            self._kept.add_claim(queue, room, tasks, time.monotonic() - began, is_from_first_row=False)
            if len(tasks) == room:
                self._cursor = tasks[-1]
                return tasks
            values |= {**_NO_ENDS, LIMIT.name: room - len(tasks)}
            began = time.monotonic()
        tasks += self._claim_from_start(values, queue, room - len(tasks))
        if room:
            now = time.monotonic()
            self._cursor_until = now + min((now - began) * _DURATION_FACTOR, _MAX_DURATION)
            self._cursor = tasks[-1] if len(tasks) == room else None
        return tasks

    def _claim_from_start(self, values: dict[str, Any], queue: str, room: int) -> list[ClaimedTask]:
        """Claim from the first row on, or from the kept cursors on."""
        began = time.monotonic()
        cursors = self._kept.of(queue) if room else []
        tasks: list[ClaimedTask] = []
        for priority, since in cursors:
            tasks += self._claim_after(values, priority, since, _FIRST_ID)
            if len(tasks) == room:
                break
            values |= {**_NO_ENDS, LIMIT.name: room - len(tasks)}
        if not cursors:
            tasks = self._execute(self._of_one, values)
        if room:
            self._kept.add_claim(queue, room, tasks, time.monotonic() - began, is_from_first_row=not cursors)
        return tasks

    def _claim_after(
        self, values: Mapping[str, Any], priority: int, enqueued_at: str | datetime, task_id: UUID
    ) -> list[ClaimedTask]:
        cursor = {CURSOR_PRIORITY.name: priority, CURSOR_TIME.name: enqueued_at, CURSOR_ID.name: task_id}
        return self._execute(self._after_cursor, {**values, **cursor})

    def _execute(self, statement: Statement, values: Mapping[str, Any]) -> list[ClaimedTask]:
        asked_at = time.monotonic()
        with postgres.preparing_cursor(self._connection) as cursor:
            cursor.execute(statement.sql, statement.bind(values))
            # Without a claim there are no rows to wait for: in a pipeline the statement goes along with the next one.
            rows = statement.fetch(cursor) if values[LIMIT.name] else []
        if rows:
            raise_unless_all_claimed(rows[0][-1], len(rows))
        return claimed_tasks((row[:-1] for row in rows), asked_at)

    # Compiled on first use: many workers have one queue, and one that finds few tasks has no cursor.

    @cached_property
    def _of_one(self) -> Statement:
        return self._compile(self._stored.claimable(is_async=self._is_async))

    @cached_property
    def _after_cursor(self) -> Statement:
        return self._compile(self._stored.claimable(is_async=self._is_async).after_cursor())

    @cached_property
    def _of_several(self) -> Statement:
        return self._compile(self._stored.claimable_of_queues(self._rows, is_async=self._is_async))

    @property
    def _stored(self) -> TaskQuerySet:
        return self._rows.filter(IsStored())

    def _compile(self, rows: TaskQuerySet) -> Statement:
        with transaction.atomic(using=self._alias, savepoint=False):  # else Django compiles no SELECT … FOR UPDATE
            return one_statement(
                rows,
                complete=self._complete,
                # No attempt exists yet, unless a row was changed by hand: its result is then stored alone. ON CONFLICT
                # would write each row twice.
                record=Statement.insert(TaskAttempt, self._rows, self._attempt, may_exist=False),
                pick=Statement.select(rows, *CLAIMED_COLUMNS, limit=LIMIT),
                take=Statement.update(self._claimable.filter(IsPicked()), **self._changes),
            )


class _FourStatements(CompleteAndClaim):
    """Four statements in one transaction, on other databases."""

    def __init__(self, tasks: TaskQuerySet, runner: WorkerInfo, *, is_async: bool, starts: bool) -> None:
        super().__init__(tasks, runner, is_async=is_async, starts=starts)
        self._record = Statement.insert(TaskAttempt, self._held.filter(status=TaskStatus.COMPLETED), self._attempt)
        self._pick = Statement.select(self._rows.claimable(is_async=is_async), *CLAIMED_COLUMNS, limit=LIMIT)
        self._take = Statement.update(self._claimable.filter(AnyOf(_PICKED)), **self._changes)

    def run(
        self, ends: Sequence[Completion], room: int, queues: Sequence[str], caps: Mapping[str, int] = _NO_CAPS
    ) -> list[ClaimedTask]:
        """Run them."""
        with transaction.atomic(using=self._alias):
            if ends:
                values = self._values_of(ends)
                self._complete.run(self._alias, values)
                self._record.run(self._alias, values)
            asked_at = time.monotonic()
            asked = [{QUEUE.name: queue, LIMIT.name: min(room, caps.get(queue, room))} for queue in queues if room]
            firsts = claimed_tasks(self._pick.union_all(self._alias, asked), asked_at)
            tasks = sorted(firsts, key=lambda task: (-task.priority, task.enqueued_at, task.task_id))[:room]
            if tasks:
                keys = encode_pk([task.task_id for task in tasks], self._connection)
                picked = {_PICKED.name: json_array(keys, self._connection)}
                raise_unless_all_claimed(self._take.run(self._alias, picked), len(tasks))
        return tasks
