"""``PendingInsert``, a row to be inserted, and ``EnqueueResult``."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from django.db import DatabaseError, DataError, IntegrityError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from ..core.unique import Unique
from ..db import clock, notifications, postgres
from ..db.expressions import Param
from ..db.inserts import can_leave_out, can_return, columns_of, insert_values, read, run_prepared
from ..db.notifications import TaskReady
from ..db.statements import Statement
from .call_builder import Arguments, CallBuilder, task_ready_of

if TYPE_CHECKING:
    from ..models import Task as TaskRow

logger = logging.getLogger("horsies_django")

#: The columns of a new row that the database sets.
_SET_BY_DATABASE: Final = ("sent_at", "enqueued_at", "run_after")

#: The columns that differ between the calls of a task.
_OWN_PARAMS: Final = {name: Statement("%s", (Param(name),)) for name in ("id", "args", "kwargs")}


class NewCall(NamedTuple):
    """A call that was inserted as its task says; all that the framework's result needs."""

    calls: CallBuilder
    arguments: Arguments
    sent_at: datetime


@dataclass(frozen=True, slots=True)
class EnqueueResult:
    """The id of a call's task. If the caller needs more or the task existed already, its row, or the call itself."""

    id: UUID
    row: TaskRow | None = None
    is_new: bool = True
    is_grouped: bool = False
    call: NewCall | None = None


@dataclass(frozen=True, slots=True)
class PendingInsert:
    """A row to be inserted.

    ``has_own`` says that some of its columns differ from those of the task's other calls, ``has_given_id`` that the
    caller chose its id.
    """

    database: str
    calls: CallBuilder
    values: dict[str, Any]
    arguments: Arguments
    with_row: bool
    has_own: bool = False
    has_given_id: bool = False

    @property
    def id(self) -> UUID:
        """The primary key."""
        key: UUID = self.values["id"]
        return key

    @property
    def unique(self) -> Unique | None:
        """How to resolve a conflict of its unique key; with None, the existing task wins."""
        return self.calls.task.unique

    def insert(self) -> EnqueueResult:
        """Insert the row and notify workers, in one round trip if possible."""
        returned = self._try_insert()
        assert returned is not None  # a conflict raises
        return self._result(returned)

    def insert_if_free(self) -> EnqueueResult | None:
        """Insert the row, or return None if its id or unique key is taken. An open transaction stays usable."""
        if can_leave_out(self.database):
            returned = self._try_insert(if_free=True)
            return None if returned is None else self._result(returned)
        try:
            with transaction.atomic(using=self.database):
                return self.insert()
        except IntegrityError:
            return None

    def dry_run(self) -> EnqueueResult:
        """Return the result without a query. Its times are local, and it is not new, so that no signal is sent."""
        now = timezone.now()
        times = {"sent_at": now, "enqueued_at": now, "run_after": None}
        unknown = {*times, "unique_expires_at", "deferred"}
        known = {name: value for name, value in self.values.items() if name not in unknown}
        return EnqueueResult(self.id, _model()(**times, **known), is_new=False)

    @property
    def task_ready(self) -> TaskReady:
        """The notification for workers."""
        return task_ready_of(self.values) if self.has_own else self.calls.task_ready

    @property
    def _needs_row(self) -> bool:
        """Whether only the row has all that the framework's result needs."""
        is_like_others = self.calls.has_fixed_options and not self.has_own
        return self.with_row and not (is_like_others and can_return(self.database))

    @property
    def _row_columns(self) -> tuple[str, ...]:
        return (*_SET_BY_DATABASE, "unique_expires_at") if self.values.get("unique_expires_at") else _SET_BY_DATABASE

    def _result(self, returned: Sequence[Any]) -> EnqueueResult:
        if self.values.get("blocked"):
            release_after_commit(self.database, [self.values["limit_key"]], frees_places=False)
        if not self.with_row:
            return EnqueueResult(self.id)
        if self._needs_row:
            return EnqueueResult(self.id, self._row(returned[: len(self._row_columns)]))
        return EnqueueResult(self.id, call=NewCall(self.calls, self.arguments, self._sent_at(returned[0])))

    def _sent_at(self, returned: Any) -> datetime:
        if connections[self.database].vendor == "postgresql":
            return clock.of_microseconds(returned)
        moment: datetime = read(_model(), ["sent_at"], [returned], self.database)["sent_at"]
        return moment

    def _try_insert(self, *, if_free: bool = False) -> Sequence[Any] | None:
        """Insert and notify; return the columns that the database set, None if the row was left out."""
        connection, database = connections[self.database], self.database
        if self.values.get("blocked"):  # workers are notified when its limit releases it
            with transaction.mark_for_rollback_on_error(using=database):
                return self._run_insert(connection, None, if_free=if_free)
        wake = self.task_ready
        if connection.get_autocommit():
            payload = notifications.piggyback(database, wake)
            began = time.monotonic()
            returned = self._insert_and_notify(connection, payload, if_free=if_free)
            if returned is not None and payload is not None:
                notifications.mark_sent(database, payload, began)
            return returned
        with transaction.mark_for_rollback_on_error(using=database):
            returned = self._run_insert(connection, None, if_free=if_free)
        if returned is not None:
            notifications.wake_after_commit(database, wake.queue_name, later=wake.later, is_async=wake.is_async)
        return returned

    def _insert_and_notify(
        self, connection: BaseDatabaseWrapper, payload: str | None, *, if_free: bool
    ) -> Sequence[Any] | None:
        if payload is None:
            return self._run_insert(connection, None, if_free=if_free)
        try:
            return self._run_insert(connection, payload, if_free=if_free)
        except (IntegrityError, DataError):
            raise
        except DatabaseError as error:
            # The failed INSERT was its own transaction and rolled back. Retry without NOTIFY; workers that poll will
            # still find the row.
            if not connection.is_usable():
                raise
            if not notifications.pause_if_full(self.database, error):
                logger.warning("task inserted without its notification id=%s", self.id, exc_info=True)
            return self._run_insert(connection, None, if_free=if_free)

    def _run_insert(
        self, connection: BaseDatabaseWrapper, payload: str | None, *, if_free: bool
    ) -> Sequence[Any] | None:
        """Run the INSERT and return the columns it returns."""
        if self.has_own or if_free:
            return self._build_insert(self.values, payload, if_free=if_free).first(self.database)
        statement = functools.partial(self._shared_insert, payload)
        if connection.vendor != "postgresql":
            given = {name: field.get_db_prep_save(self.values[name], connection) for name, field in _own_fields()}
            return statement().first(self.database, given)
        given = {"id": self.id, "args": self.arguments.args_text, "kwargs": self.arguments.kwargs_text}
        if connection.get_autocommit() and self.calls.has_fixed_options:
            return run_prepared(connection, statement, given)
        return statement().first(self.database, given)

    def _shared_insert(self, payload: str | None, is_prepared: bool = False) -> Statement:
        """Return the statement of the task's calls, with params for what differs between them.

        From its second use on it is kept, in the form that is the fastest to run as it is, or to prepare.
        """
        kept, key = self.calls.inserts, (self.database, self.with_row, payload, is_prepared)
        if (insert := kept.get(key)) is None:
            insert = self._build_insert({**self.calls.columns, **_OWN_PARAMS}, payload)
            # Tasks made by with_options() are often sent only once: leave the work that only pays later.
            if key in kept and not is_prepared:
                insert = postgres.inline_constants(insert, self.database)
            kept[key] = insert if key in kept else None
        return insert

    def _build_insert(
        self,
        values: Mapping[str, Any],
        payload: str | None,
        *,
        if_free: bool = False,
    ) -> Statement:
        columns = self._returned_columns() if self.with_row else []
        notification = [] if payload is None else [postgres.notification(payload)]
        # With ``if_free``, only a returned column tells that a row was inserted.
        inserted_id = columns_of(_model(), ["id"], self.database) if if_free else []
        return insert_values(
            _model(),
            values,
            self.database,
            returning=[*columns, *notification, *inserted_id],
            if_free=if_free,
        )

    def _returned_columns(self) -> list[Statement]:
        if self._needs_row:
            return columns_of(_model(), self._row_columns, self.database)
        (sent_at,) = columns_of(_model(), ["sent_at"], self.database)
        return [postgres.microseconds_of(sent_at) if postgres.can_listen(self.database) else sent_at]

    def _row(self, returned: Sequence[Any]) -> TaskRow:
        model = _model()
        known = self.values | (read(model, self._row_columns, returned, self.database) if returned else {})
        fields = model._meta.concrete_fields
        names = [field.attname for field in fields]
        values = [known[field.attname] if field.attname in known else field.get_default() for field in fields]
        row = model.from_db(self.database, names, values)
        if not returned:
            row.refresh_from_db(fields=self._row_columns)
        return row


@functools.cache
def _model() -> type[TaskRow]:
    from ..models import Task as TaskRow

    return TaskRow


@functools.cache
def _own_fields() -> Sequence[tuple[str, Any]]:
    return [(name, _model()._meta.get_field(name)) for name in _OWN_PARAMS]


def release_after_commit(database: str, keys: Iterable[str | None], *, frees_places: bool = True) -> None:
    """Release blocked tasks of these limits once the current transaction has committed."""
    from ..models import release_blocked

    release_blocked.release_after_commit(database, keys, frees_places=frees_places)
