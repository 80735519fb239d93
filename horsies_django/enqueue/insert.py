"""Inserts a call as a row: checks it, adds its columns to those of its task, runs the INSERT and notifies workers."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from django.db import DatabaseError, DataError, IntegrityError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from ..core import headers
from ..core.current_task import is_dry_run
from ..core.ids import uuid7
from ..core.middleware import TaskSend, around_send
from ..core.options import Options
from ..core.serialization import dumps_for_sqlite
from ..db import clock, notifications, postgres
from ..db.expressions import Param
from ..db.inserts import DO_NOTHING, columns_of, insert_values
from ..db.statements import Statement
from . import grouping
from .call_builder import Arguments, CallBuilder
from .dedupe import holder_of

if TYPE_CHECKING:
    from ..models import Task as TaskRow

logger = logging.getLogger("horsies_django")

#: Maximum retries of an INSERT because the task in conflict ended, or started, before it was locked.
_TRIES: Final = 50

#: The columns that differ between the calls of a task.
_OWN_PARAMS: Final = {name: Statement("%s", (Param(name),)) for name in ("id", "args", "kwargs")}


@dataclass(frozen=True, slots=True)
class EnqueueResult:
    """The id of a call's task and, if the caller asks for it, the new row or the row of the task that has its place.

    ``times`` are those that the database gave the new row: when it was sent and, for a later call, when it is due.
    """

    id: UUID
    row: TaskRow | None = None
    is_new: bool = True
    is_grouped: bool = False
    new_row: NewRow | None = None
    times: Sequence[datetime] = ()


def insert_call(
    options: Options,
    calls: CallBuilder,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    needs_result: bool = False,
    own: Mapping[str, Any] | None = None,
) -> EnqueueResult:
    """Insert one call of a valid task in the current transaction, unless its task exists already.

    ``own`` sets columns for this call only; they override those that all calls of the task share.

    A task with the same ``task_id`` or unique key may take the place of a new one. A call with ``gather`` joins the
    open group of its key (see :mod:`~.grouping`), or joins it when its ``run_after`` has come. Raises PayloadMismatch
    if its ``task_id`` belongs to a different call, UniqueConflict, and the errors of :meth:`CallBuilder.call` and of
    :func:`headers.inject`.
    """
    task, own = calls.task, own or {}
    send = TaskSend(task_name=task.task_name, queue_name=task.queue_name) if options.middleware else None
    with nullcontext() if send is None else around_send(options, send):
        if send is not None:
            own = {**inject_headers(options, calls), **own}
        if task.gather is not None and task.run_after is None:
            result = _join_group(options, calls, args, kwargs, needs_result, own)
        else:
            arguments = calls.call(args, kwargs)
            if calls.is_limited or task.unique is not None:
                own = {**calls.own_columns(arguments), **own}
            row = NewRow(options.database, calls, arguments, task.task_id or uuid7(), own, needs_result)
            result = row.dry_run() if is_dry_run() else insert_once(row)
        if send is not None:
            send.id, send.count, send.is_new = result.id, 1, result.is_new or result.is_grouped
    return result


def _join_group(
    options: Options,
    calls: CallBuilder,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    needs_result: bool,
    own: Mapping[str, Any],
) -> EnqueueResult:
    (joined,) = grouping.join(options, calls, [(args, kwargs)], own)
    if is_dry_run():
        return NewRow(options.database, calls, Arguments([], {}, "[]", "{}"), joined.id, own).dry_run()
    row = _model().objects.using(options.database).get(pk=joined.id) if needs_result else None
    return EnqueueResult(joined.id, row, joined.is_new, is_grouped=True)


def inject_headers(options: Options, calls: CallBuilder) -> dict[str, Any]:
    """Return the metadata column with the middleware's headers; no column if there are none."""
    if not options.middleware:
        return {}
    metadata = headers.inject(options, calls.columns["metadata"])
    return {} if metadata is None else {"metadata": metadata}


def insert_once(row: NewRow) -> EnqueueResult:
    """Insert a row, or resolve the conflict if its ``task_id`` or unique key is taken.

    Raises PayloadMismatch and UniqueConflict.
    """
    task = row.calls.task
    may_exist = task.unique is not None or task.unique_key is not None or task.task_id is not None
    for _ in range(_TRIES if may_exist else 0):
        if (result := row.insert(if_free=True)) is not None:
            return result
        if (holder := holder_of(row)) is not None:
            return EnqueueResult(holder.pk, holder, is_new=False)
    result = row.insert()  # raises the database's own error if the conflict persists
    assert result is not None
    return result


class NewRow(NamedTuple):
    """The row of a checked call. ``own`` are its columns that differ from those of the task's other calls."""

    database: str
    calls: CallBuilder
    arguments: Arguments
    id: UUID
    own: Mapping[str, Any]
    needs_result: bool = False

    @property
    def values(self) -> dict[str, Any]:
        """All columns."""
        arguments = self.arguments
        return {**self.calls.columns, **self.own, "id": self.id, "args": arguments.args, "kwargs": arguments.kwargs}

    def insert(self, *, if_free: bool = False) -> EnqueueResult | None:
        """Insert the row and notify workers, in one round trip if possible.

        With ``if_free``, return None if its id or unique key is taken; an open transaction stays usable.
        """
        connection, wake = connections[self.database], self.calls.notification
        is_blocked = self.own.get("blocked", False)
        if is_blocked or not connection.get_autocommit():
            with transaction.mark_for_rollback_on_error(using=self.database):
                returned = self._run(connection, None, if_free)
        else:
            returned = self._run_and_notify(connection, wake, if_free)
        if returned is None:
            return None
        if is_blocked:  # workers are notified when its limit releases it
            release_after_commit(self.database, [self.own["limit_key"]], frees_places=False)
        elif not connection.get_autocommit():
            self.calls.wake_after_commit(self.database)
        if not self.needs_result:
            return EnqueueResult(self.id)
        times = [clock.read_stored(value, connection) for value in returned[: len(self.calls.times)]]
        return EnqueueResult(self.id, new_row=self, times=times)

    def dry_run(self) -> EnqueueResult:
        """Return the result without a query. Its time is local, and it is not new, so that no signal is sent."""
        return EnqueueResult(self.id, is_new=False, new_row=self, times=[timezone.now()])

    def _run_and_notify(self, connection: BaseDatabaseWrapper, wake: str, if_free: bool) -> Sequence[Any] | None:
        """Run the INSERT in autocommit mode, with the notification of workers. Returns what :meth:`_run` does."""
        payload = notifications.piggyback(connection, wake)
        if payload is None:
            return self._run(connection, None, if_free)
        began = time.monotonic()
        try:
            returned = self._run(connection, payload, if_free)
        except (IntegrityError, DataError):
            raise
        except DatabaseError as error:
            # The failed INSERT was its own transaction and rolled back. Retry without NOTIFY; workers that poll will
            # still find the row.
            if not connection.is_usable():
                raise
            if not notifications.pause_if_full(self.database, error):
                logger.warning("task inserted without its notification id=%s", self.id, exc_info=True)
            return self._run(connection, None, if_free)
        if returned is not None:
            notifications.mark_sent(self.database, payload, began)
        return returned

    def _run(self, connection: BaseDatabaseWrapper, payload: str | None, if_free: bool) -> Sequence[Any] | None:
        """Run the INSERT; return the columns it returns, None if the row was left out."""
        if self.own or if_free:
            return self._statement(self.values, payload, if_free).first(self.database)
        arguments = self.arguments
        statement = functools.partial(self._kept_statement, payload)
        if connection.vendor != "postgresql":
            texts = {"args": dumps_for_sqlite(arguments.args), "kwargs": dumps_for_sqlite(arguments.kwargs)}
            return statement(False).first(self.database, {"id": self.id.hex, **texts})
        values = {"id": self.id, "args": arguments.args_text, "kwargs": arguments.kwargs_text}
        if connection.get_autocommit() and self.calls.has_fixed_options:
            return postgres.run_prepared(connection, statement, values)
        return statement(False).first(self.database, values)

    def _kept_statement(self, payload: str | None, is_prepared: bool) -> Statement:
        """Return the statement of the task's calls, with params for what differs between them.

        From its second use on it is kept, in the form that is the fastest to run as it is, or to prepare.
        """
        kept, key = self.calls.inserts, (self.database, self.needs_result, payload, is_prepared)
        if (statement := kept.get(key)) is None:
            statement = self._statement({**self.calls.columns, **_OWN_PARAMS}, payload)
            # Tasks made by with_options() are often sent only once: leave the work that only pays later.
            if key in kept and not is_prepared:
                statement = postgres.inline_constants(statement, self.database)
            kept[key] = statement if key in kept else None
        return statement

    def _statement(self, values: Mapping[str, Any], payload: str | None, if_free: bool = False) -> Statement:
        # If the row may be left out, only a returned column tells whether it was.
        times = columns_of(_model(), self.calls.times if self.needs_result else (), self.database)
        returning = [clock.as_stored(column, connections[self.database]) for column in times]
        if if_free:
            returning += columns_of(_model(), ("id",), self.database)
        if payload is not None:
            returning.append(postgres.notification(payload))
        return insert_values(
            _model(), values, self.database, returning=returning, on_conflict=DO_NOTHING if if_free else ""
        )


@functools.cache
def _model() -> type[TaskRow]:
    from ..models import Task as TaskRow

    return TaskRow


def release_after_commit(database: str, keys: Iterable[str | None], *, frees_places: bool = True) -> None:
    """Release blocked tasks of these limits once the current transaction has committed."""
    from ..models import release_blocked

    release_blocked.release_after_commit(database, keys, frees_places=frees_places)
