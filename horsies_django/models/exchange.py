"""The exchange: ends of bodies for new claims, which is what a busy worker says to the database all day.

The same changes as :meth:`TaskQuerySet.complete` and :meth:`TaskQuerySet.claim`, out of the same parts, written by the
ORM once. PostgreSQL carries them out as one statement, its own transaction, in one round trip.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from django.db import connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F
from django.db.models.sql.compiler import SQLCompiler

from .. import lifecycle, postgres
from ..expressions import Blank, FromMap, IsAmong, json_array, json_object, spelled
from ..states import AttemptOutcome, TaskStatus
from .attempt import TaskAttempt, attempt_columns
from .claims import ClaimedTask, ClaimLost, Ended, Runner
from .statements import Selection, Statement
from .transitions import CLAIMED_COLUMNS, STARTED, completed_with, taken_by

if TYPE_CHECKING:
    from .transitions import TaskQuerySet

_ENDED: Final = Blank("ended")
_CLAIMS: Final = Blank("claims")
_RESULTS: Final = Blank("results")
_ROOM: Final = Blank("room")
_PICKED: Final = Blank("picked")
_MARK_PRIORITY: Final = Blank("mark_priority")
_MARK_TIME: Final = Blank("mark_time")
_MARK_ID: Final = Blank("mark_id")

#: How many times as long as a claim from the first row takes the claims after it go on from where they were.
_WORTH: Final = 10

#: Seconds for which they do at most.
_LONGEST: Final = 1.0


class Exchange:
    """Stores successes and claims what is next up of ``tasks`` for one runner."""

    def __init__(self, tasks: TaskQuerySet, runner: Runner, *, is_async: bool) -> None:
        self._alias = tasks.db
        self._connection = connections[tasks.db]
        everything = tasks.rows()
        held = everything.filter(IsAmong(_ENDED), claim=FromMap(_CLAIMS, models.IntegerField()))
        self._complete = Statement.update(
            held.filter(lifecycle.COMPLETE.is_possible),
            status=lifecycle.COMPLETE.target,
            **completed_with(_RESULTS, tasks.db),
        )
        attempt = attempt_columns(AttemptOutcome.COMPLETED, hostname=runner.hostname, pid=runner.pid)
        next_up = tasks.next_up(is_async=is_async)
        self._is_one = self._connection.vendor == "postgresql"
        if self._is_one:
            next_up = next_up.filter(_IsStored())
        self._pick = Selection(next_up.lock(), CLAIMED_COLUMNS, _ROOM)
        started = {"status": lifecycle.CLAIM_AND_START.target, **taken_by(runner.worker_id), **STARTED}
        possible = everything.filter(lifecycle.CLAIM_AND_START.is_possible)
        if self._is_one:
            # Inside that INSERT the table's name stands for the rows that were completed just now.
            just_completed = f'WITH "{tasks.model._meta.db_table}" AS (SELECT * FROM completed) '  # noqa: S608  # our own
            self._record = Statement.insert(TaskAttempt, everything, attempt, prefix=just_completed)
            self._take = Statement.update(possible.filter(_IsPicked()), **started)
            self._from_the_first = self._as_one(self._pick.statement)
            onward = next_up.filter(_IsAfter(), priority=_MarksPriority())
            self._onward = self._as_one(Selection(onward.lock(), CLAIMED_COLUMNS, _ROOM).statement)
            self._mark: ClaimedTask | None = None
            self._onward_until = float("-inf")
        else:
            completed = held.filter(status=TaskStatus.COMPLETED)
            self._record = Statement.insert(TaskAttempt, completed, attempt)
            self._take = Statement.update(possible.filter(IsAmong(_PICKED)), **started)

    def run(self, ends: Sequence[Ended], room: int) -> list[ClaimedTask]:
        """Store ``ends``, all of them successes, and return at most ``room`` tasks that have been started.

        What lost its claim meanwhile changes nothing. Raises :class:`ClaimLost`.
        """
        keys = spelled([end.task_id for end in ends], self._connection)
        given: dict[str, Any] = {
            _ENDED.name: json_array(keys, self._connection),
            _CLAIMS.name: json_object(keys, [str(end.claim) for end in ends]),
            _RESULTS.name: json_object(keys, [end.result for end in ends]),
            _ROOM.name: room,
        }
        if self._is_one:
            return self._run_as_one(given)
        with transaction.atomic(using=self._alias):
            if ends:
                self._complete.run(self._alias, given)
                self._record.run(self._alias, given)
            return self._claim(given) if room else []

    def _run_as_one(self, given: dict[str, Any]) -> list[ClaimedTask]:
        """Claim from where the last claim has ended, as long as that is worth it.

        A claim that begins with the first row walks over the index entries of all that was claimed before, as long as
        some old transaction keeps vacuum from removing them, and over the rows of queues that are not served here. So
        it is made no more often than costs a tenth of the time: a task that comes before the mark, for its priority or
        because its transaction took longer than those of its neighbours, waits some ten milliseconds more as a rule.
        """
        claims: list[ClaimedTask] = []
        room = given[_ROOM.name]
        if (mark := self._mark) is not None and room and time.monotonic() < self._onward_until:
            position = (
                (_MARK_PRIORITY.name, mark.priority),
                (_MARK_TIME.name, mark.enqueued_at),
                (_MARK_ID.name, mark.task_id),
            )
            claims = self._say(self._onward, given | dict(position))
            if len(claims) == room:
                self._mark = claims[-1]
                return claims
            given = given | {_ENDED.name: "{}", _CLAIMS.name: "{}", _RESULTS.name: "{}", _ROOM.name: room - len(claims)}
        began = time.monotonic()
        claims += self._say(self._from_the_first, given)
        now = time.monotonic()
        if room:
            self._onward_until = now + min((now - began) * _WORTH, _LONGEST)
            self._mark = claims[-1] if len(claims) == room else None
        return claims

    def _say(self, statement: Statement, given: dict[str, Any]) -> list[ClaimedTask]:
        with postgres.preparing_cursor(self._connection) as cursor:
            rows = self._pick.read(cursor, statement, given)
        if rows and rows[0][-1] != len(rows):
            raise ClaimLost
        return [ClaimedTask._make(row[:-1]) for row in rows]

    def _claim(self, given: dict[str, Any]) -> list[ClaimedTask]:
        claims = list(map(ClaimedTask._make, self._pick.run(given)))
        if claims:
            keys = spelled([claim.task_id for claim in claims], self._connection)
            given[_PICKED.name] = json_array(keys, self._connection)
            if self._take.run(self._alias, given) != len(claims):
                raise ClaimLost
        return claims

    def _as_one(self, pick: Statement) -> Statement:
        """All four as one statement.

        Each part sees the table as it was when the statement began, and no two of them touch the same row. What is
        picked must not be looked up anew for each row that is taken, so it is materialized; that its rows are locked,
        and so can't be lost, is looked at all the same.
        """
        columns = ", ".join(f"c{number}" for number, _ in enumerate(CLAIMED_COLUMNS))
        parts = [
            f"completed AS ({self._complete.sql} RETURNING *)",
            f"recorded AS ({self._record.sql})",
            f"picked ({columns}) AS MATERIALIZED ({pick.sql})",
            f"taken AS ({self._take.sql} RETURNING id)",
        ]
        whole = f"WITH {', '.join(parts)} SELECT *, (SELECT count(*) FROM taken) FROM picked"  # noqa: S608  # the ORM's
        params = (*self._complete.params, *self._record.params, *pick.params, *self._take.params)
        return Statement(whole, params).settled()


class _IsStored(models.Func):
    """True once the same statement has stored the ends: what waits for a row's lock must not hold locks of others."""

    template = "(SELECT count(*) FROM completed) >= 0"
    conditional = True
    output_field = models.BooleanField()


class _IsPicked(models.Func):
    """Whether the primary key is one of those that the same statement has picked.

    As an array: a join might be planned for good the other way round, while the table is empty.
    """

    template = "%(expressions)s = ANY(ARRAY(SELECT c0 FROM picked))"
    conditional = True
    output_field = models.BooleanField()

    def __init__(self) -> None:
        super().__init__(F("pk"))


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
        return f"{sql} > (%s::timestamptz, %s::uuid)", (*params, _MARK_TIME, _MARK_ID)


class _MarksPriority(models.Expression):
    """The priority at the mark."""

    output_field = models.SmallIntegerField()

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        return "%s::smallint", (_MARK_PRIORITY,)
