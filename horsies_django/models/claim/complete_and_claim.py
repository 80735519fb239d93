"""Stores results and claims tasks: the tick of a worker.

It makes the same changes as :meth:`TaskQuerySet.complete` and :meth:`TaskQuerySet.claim`, from the same parts, compiled
by the ORM once. On PostgreSQL they are one statement, one transaction and one round trip.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
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
    LIMIT,
    QUEUE,
    QUEUES,
    IsPicked,
    IsStored,
    one_statement,
)
from ...db.expressions import AnyOf, Param, ValueByPk, encode_pk, json_array, json_object
from ...db.statements import Statement
from ..attempt import TaskAttempt, attempt_columns
from ..claims import ClaimedTask, Completion, WorkerInfo, claimed_tasks, raise_unless_all_claimed
from ..transitions import (
    CLAIMED_COLUMNS,
    START_COLUMNS,
    claim_columns,
    completion_columns,
    seconds_since_start,
)
from .cursor import ClaimCursor
from .query import RANK, first_of

if TYPE_CHECKING:
    from ..transitions import TaskQuerySet

_ENDED: Final = Param("ended")
_CLAIMS: Final = Param("claims")
_RESULTS: Final = Param("results")
_SECONDS: Final = Param("seconds")
_PICKED: Final = Param("picked")
_NOTHING: Final = {_ENDED.name: "{}", _CLAIMS.name: "{}", _RESULTS.name: "{}", _SECONDS.name: "{}"}

#: Candidates per task to claim, if there are several queues: other workers may lock some first.
_OVERFETCH: Final = 2

_NO_CAPS: Final[Mapping[str, int]] = {}


def compile_for(tasks: TaskQuerySet, runner: WorkerInfo, *, is_async: bool) -> CompleteAndClaim:
    """Return a :class:`CompleteAndClaim` of ``tasks`` for one runner.

    Call it inside a transaction: elsewhere Django compiles no SELECT … FOR UPDATE.
    """
    is_postgres = connections[tasks.db].vendor == "postgresql"
    return (_OneStatement if is_postgres else _FourStatements)(tasks, runner, is_async=is_async)


class CompleteAndClaim(ABC):
    """Stores results of successes and claims the next of ``tasks`` for one runner."""

    def __init__(self, tasks: TaskQuerySet, runner: WorkerInfo, *, is_async: bool) -> None:
        self._alias = tasks.db
        self._connection = connections[tasks.db]
        rows = tasks.all_rows()
        token = ValueByPk(_CLAIMS, models.IntegerField())
        self._held = rows.filter(AnyOf(_ENDED), claim=token, claimed_by_worker_id=runner.worker_id)
        self._complete = Statement.update(
            self._held.filter(lifecycle.COMPLETE.is_possible),
            status=lifecycle.COMPLETE.target,
            **completion_columns(_RESULTS, _SECONDS, tasks.db),
        )
        self._attempt = attempt_columns(AttemptOutcome.COMPLETED, hostname=runner.hostname, pid=runner.pid)
        self._startable = rows.filter(lifecycle.CLAIM_AND_START.is_possible)
        self._started = {"status": lifecycle.CLAIM_AND_START.target, **claim_columns(runner.worker_id), **START_COLUMNS}

    def run(
        self, ends: Sequence[Completion], room: int, queues: Sequence[str], most: Mapping[str, int] = _NO_CAPS
    ) -> list[ClaimedTask]:
        """Store ``ends``, all of them successes; claim and start at most ``room`` tasks of ``queues``, and return them.

        ``most`` caps the tasks of single queues. An end whose claim was lost changes nothing. Raises ClaimLost if a
        task was locked and yet could not be claimed; the transaction has to roll back.
        """
        keys = encode_pk([end.task_id for end in ends], self._connection)
        bound = {
            _ENDED.name: json_array(keys, self._connection),
            _CLAIMS.name: json_object(keys, [str(end.claim) for end in ends]),
            _RESULTS.name: json_object(keys, [end.result for end in ends]),
            _SECONDS.name: json_object(keys, seconds_since_start(ends)),
            LIMIT.name: room,
        }
        return self._run(bound, queues, most)

    @abstractmethod
    def _run(self, bound: dict[str, Any], queues: Sequence[str], most: Mapping[str, int]) -> list[ClaimedTask]: ...


class _OneStatement(CompleteAndClaim):
    """All of it in one statement, on PostgreSQL."""

    def __init__(self, tasks: TaskQuerySet, runner: WorkerInfo, *, is_async: bool) -> None:
        super().__init__(tasks, runner, is_async=is_async)
        # No attempt exists yet, unless a row was changed by hand: its result is then stored alone. ON CONFLICT would
        # write each row twice.
        self._record = Statement.insert(TaskAttempt, tasks.all_rows(), self._attempt, may_exist=False)
        self._take = Statement.update(self._startable.filter(IsPicked()), **self._started)
        self._is_async = is_async
        self._stored = stored = tasks.filter(IsStored())
        self._one = ClaimCursor(self._as_one(stored.claimable(None, is_async=is_async)), self._compile_after_cursor)
        self._was_short = False

    def _run(self, bound: dict[str, Any], queues: Sequence[str], most: Mapping[str, int]) -> list[ClaimedTask]:
        room = bound[LIMIT.name]
        if len(queues) < 2 or not room:
            bound[QUEUE.name] = next(iter(queues), "")
            bound[LIMIT.name] = min(room, most.get(bound[QUEUE.name], room))
            return self._one.claim(self._execute, bound, _NOTHING)
        if self._was_short:
            claims = self._one_by_one(bound, queues, most)
        else:
            bound |= {QUEUES.name: list(queues), CANDIDATES.name: room * _OVERFETCH}
            if most:
                bound[CAPS.name] = [min(room * _OVERFETCH, most.get(queue, room * _OVERFETCH)) for queue in queues]
            claims = (self._capped if most else self._several).claim(self._execute, bound, _NOTHING)
        possible = min(room, sum(most.get(queue, room) for queue in queues))
        self._was_short = len(claims) < possible and not self._was_short
        return claims

    def _compile_after_cursor(self) -> Statement:
        with transaction.atomic(using=self._alias, savepoint=False):
            rows = self._stored.claimable_after_cursor(is_async=self._is_async)
            return self._as_one(rows)

    @cached_property
    def _several(self) -> ClaimCursor:
        """The claim from several queues, compiled on first use because many workers have one queue."""
        return self._of_queues(is_capped=False)

    @cached_property
    def _capped(self) -> ClaimCursor:
        """The claim from queues with a limit, compiled on first use because few queues have one."""
        return self._of_queues(is_capped=True)

    def _of_queues(self, *, is_capped: bool) -> ClaimCursor:
        with transaction.atomic(using=self._alias):
            rows = self._stored.claimable_of_queues(
                self._stored.all_rows(), is_async=self._is_async, is_capped=is_capped
            )
            return ClaimCursor(self._as_one(rows))

    def _one_by_one(self, bound: dict[str, Any], queues: Sequence[str], most: Mapping[str, int]) -> list[ClaimedTask]:
        """Claim from one queue after the other, skipping locked rows."""
        claims: list[ClaimedTask] = []
        room = bound[LIMIT.name]
        for queue in queues:
            left = room - len(claims)
            bound |= {QUEUE.name: queue, LIMIT.name: min(left, most.get(queue, left))}
            claims += self._one.claim(self._execute, bound, _NOTHING)
            if len(claims) == room:
                break
            bound |= _NOTHING
        return claims

    def _execute(self, statement: Statement, bound: dict[str, Any]) -> list[ClaimedTask]:
        asked_at = time.monotonic()
        with postgres.preparing_cursor(self._connection) as cursor:
            statement.execute(cursor, bound)
            # Without a claim there are no rows to wait for: in a pipeline the statement goes along with the next one.
            rows = statement.fetch(cursor) if bound[LIMIT.name] else []
        if rows:
            raise_unless_all_claimed(rows[0][-1], len(rows))
        return claimed_tasks((row[:-1] for row in rows), asked_at)

    def _as_one(self, rows: TaskQuerySet) -> Statement:
        return one_statement(
            complete=self._complete,
            record=self._record,
            pick=Statement.select(rows, *CLAIMED_COLUMNS, limit=LIMIT),
            take=self._take,
            table=self._stored.model._meta.db_table,
            columns=len(CLAIMED_COLUMNS),
            alias=self._alias,
        )


class _FourStatements(CompleteAndClaim):
    """Four statements in one transaction, on other databases."""

    def __init__(self, tasks: TaskQuerySet, runner: WorkerInfo, *, is_async: bool) -> None:
        super().__init__(tasks, runner, is_async=is_async)
        self._record = Statement.insert(TaskAttempt, self._held.filter(status=TaskStatus.COMPLETED), self._attempt)
        self._take = Statement.update(self._startable.filter(AnyOf(_PICKED)), **self._started)
        self._pick = Statement.select(tasks.claimable(None, is_async=is_async), *CLAIMED_COLUMNS, limit=LIMIT)
        self._tasks, self._is_async = tasks, is_async

    # Compiled on first use, because many workers have one queue.

    @cached_property
    def _firsts(self) -> Statement:
        """The ranks of the first tasks of a queue. It locks none: another worker may lock some before the claim."""
        return Statement.select(self._tasks.in_open_queue(None, is_async=self._is_async), *RANK, limit=LIMIT)

    @cached_property
    def _among(self) -> Statement:
        """The claim of tasks by id."""
        return Statement.select(self._tasks.claimable_among(AnyOf(_PICKED)), *CLAIMED_COLUMNS, limit=LIMIT)

    def _run(self, bound: dict[str, Any], queues: Sequence[str], most: Mapping[str, int]) -> list[ClaimedTask]:
        with transaction.atomic(using=self._alias):
            if bound[_CLAIMS.name] != "{}":
                self._complete.run(self._alias, bound)
                self._record.run(self._alias, bound)
            claims = self._next_up(bound, queues, most) if bound[LIMIT.name] and queues else []
            if claims:
                bound[_PICKED.name] = self._listed(claim.task_id for claim in claims)
                raise_unless_all_claimed(self._take.run(self._alias, bound), len(claims))
        return claims

    def _next_up(self, bound: dict[str, Any], queues: Sequence[str], most: Mapping[str, int]) -> list[ClaimedTask]:
        pick = self._pick
        if len(queues) == 1:
            (bound[QUEUE.name],) = queues
            bound[LIMIT.name] = min(bound[LIMIT.name], most.get(bound[QUEUE.name], bound[LIMIT.name]))
        else:
            choice = bound[LIMIT.name] * _OVERFETCH
            rooms = {queue: min(choice, most.get(queue, choice)) for queue in queues}
            firsts = [
                self._firsts.rows(self._alias, bound | {QUEUE.name: queue, LIMIT.name: rooms[queue]})
                for queue in queues
            ]
            pick, bound[_PICKED.name] = self._among, self._listed(first_of(*firsts)[:choice])
        asked_at = time.monotonic()
        return claimed_tasks(pick.rows(self._alias, bound), asked_at)

    def _listed(self, keys: Iterable[UUID]) -> str:
        return json_array(encode_pk(keys, self._connection), self._connection)
