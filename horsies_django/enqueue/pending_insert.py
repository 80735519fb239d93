"""A row that is to be, and what has become of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.db import DatabaseError, DataError, IntegrityError, connections, transaction
from django.utils import timezone

from ..core.limit_terms import LimitTerms
from ..core.unique import Unique
from ..db import notifications, postgres
from ..db.expressions import Param
from ..db.inserts import Insert, SqlFragment, can_leave_out, columns_of, read
from ..db.notifications import TaskReady
from .call_builder import Arguments, CallBuilder

if TYPE_CHECKING:
    from ..models import Task as TaskRow

logger = logging.getLogger("horsies_django")

#: What only the database knows of a new row.
_SET_BY_DATABASE: Final = ("sent_at", "enqueued_at", "run_after")


@dataclass(frozen=True, slots=True)
class EnqueueResult:
    """What has become of a call: its task's id, and the row, if it was asked for or was there already."""

    id: UUID
    row: TaskRow | None = None
    is_new: bool = True
    is_grouped: bool = False


@dataclass(frozen=True, slots=True)
class PendingInsert:
    """A row that is to be. ``unique`` says what becomes of it if another has its key; None: it stands back.

    ``has_own`` says that its columns are not those of all calls of its task, ``has_given_id`` that its id was given.
    """

    database: str
    calls: CallBuilder
    values: dict[str, Any]
    arguments: Arguments
    with_row: bool
    has_own: bool = False
    has_given_id: bool = False
    unique: Unique | None = None
    limit: LimitTerms | None = None

    @property
    def id(self) -> UUID:
        """Its primary key."""
        key: UUID = self.values["id"]
        return key

    def insert(self) -> EnqueueResult:
        """Insert it, and wake who waits for it, if possible in the same round trip."""
        told = self._try_insert()
        assert told is not None  # it would have raised
        return self._result(told)

    def insert_if_free(self) -> EnqueueResult | None:
        """The same, but return None if its id or its unique key is taken; a transaction that is open stays usable."""
        if can_leave_out(self.database):
            told = self._try_insert(if_free=True)
            return None if told is None else self._result(told)
        try:
            with transaction.atomic(using=self.database):
                return self.insert()
        except IntegrityError:
            return None

    def dry_run(self) -> EnqueueResult:
        """Return what would have become of it, with nobody's clock asked; not new, so that nobody is told of it."""
        from ..models import Task as TaskRow

        now = timezone.now()
        times = {"sent_at": now, "enqueued_at": now, "run_after": None}
        known = {
            name: value for name, value in self.values.items() if name not in (*self._returned_columns, "deferred")
        }
        return EnqueueResult(self.id, TaskRow(**times, **known), is_new=False)

    @property
    def task_ready(self) -> TaskReady:
        """Whom it wakes."""
        # Only a time that is asked for can be later, and whether it is may be for the database to say.
        return task_ready_of(self.values)

    @property
    def _returned_columns(self) -> tuple[str, ...]:
        return (*_SET_BY_DATABASE, "unique_expires_at") if self.values.get("unique_expires_at") else _SET_BY_DATABASE

    def _result(self, told: Sequence[Any]) -> EnqueueResult:
        if self.values.get("blocked"):
            release_after_commit(self.database, [self.values["limit_key"]], self.limit)
        return EnqueueResult(self.id, self._row(told[: len(self._returned_columns)]) if self.with_row else None)

    def _try_insert(self, *, if_free: bool = False) -> Sequence[Any] | None:
        """Return what the database tells of the new row, None if there is none."""
        database, wake = self.database, self.task_ready
        if self.values.get("blocked"):  # who lets it in wakes somebody
            with transaction.mark_for_rollback_on_error(using=database):
                return self._insert_and_notify(None, if_free=if_free)
        is_alone = connections[database].get_autocommit()
        payload = notifications.piggyback(database, wake) if is_alone else None
        with transaction.mark_for_rollback_on_error(using=database):
            told = self._insert_and_notify(payload, if_free=if_free)
        if told is None:
            return None
        if not is_alone:
            notifications.wake_after_commit(database, wake.queue_name, later=wake.later, is_async=wake.is_async)
        elif payload is not None:
            notifications.mark_sent(database, payload)
        return told

    def _insert_and_notify(self, payload: str | None, *, if_free: bool) -> Sequence[Any] | None:
        if payload is None:
            return self._run_insert(None, if_free=if_free)
        try:
            return self._run_insert(payload, if_free=if_free)
        except (IntegrityError, DataError):
            raise
        except DatabaseError:
            # It was a transaction of its own, of which nothing is left. A task must not be lost for want of a word.
            if not connections[self.database].is_usable():
                raise
            logger.warning("task id=%s is inserted without its notification", self.id, exc_info=True)
            return self._run_insert(None, if_free=if_free)

    def _run_insert(self, payload: str | None, *, if_free: bool) -> Sequence[Any] | None:
        """Run the INSERT and return what it gives back. PostgreSQL's is written for good by the second such call."""
        if self.has_own or if_free or not postgres.can_listen(self.database):
            return self._build_insert(self.values, payload, if_free=if_free).run(self.database)
        texts = {"id": self.id, "args": self.arguments.args_text, "kwargs": self.arguments.kwargs_text}
        blanks = {name: SqlFragment("%s", (Param(name),)) for name in texts}
        insert = self.calls.insert(
            (self.database, self.with_row, payload),
            lambda: self._build_insert({**self.calls.columns, **blanks}, payload).inline_constants(postgres.literal),
        )
        if insert is None:
            given = {name: SqlFragment("%s", (text,)) for name, text in texts.items()}
            return self._build_insert({**self.calls.columns, **given}, payload).run(self.database)
        return insert.run(self.database, texts)

    def _build_insert(self, values: Mapping[str, Any], payload: str | None, *, if_free: bool = False) -> Insert:
        from ..models import Task as TaskRow

        told = columns_of(TaskRow, self._returned_columns, self.database) if self.with_row else []
        said = [] if payload is None else [postgres.notification(payload)]
        # That there is a row is told by what it gives back.
        found = columns_of(TaskRow, ["id"], self.database) if if_free else []
        return Insert(TaskRow, values, self.database, returning=[*told, *said, *found], if_free=if_free)

    def _row(self, told: Sequence[Any]) -> TaskRow:
        from ..models import Task as TaskRow

        known = self.values | (read(TaskRow, self._returned_columns, told, self.database) if told else {})
        fields = TaskRow._meta.concrete_fields
        names = [field.attname for field in fields]
        values = [known[field.attname] if field.attname in known else field.get_default() for field in fields]
        row = TaskRow.from_db(self.database, names, values)
        if not told:
            row.refresh_from_db(fields=self._returned_columns)
        return row


def task_ready_of(columns: Mapping[str, Any]) -> TaskReady:
    """Return whom a row with these columns wakes."""
    return TaskReady(columns["queue_name"], bool(columns.get("deferred")), columns["is_async"])


def release_after_commit(database: str, keys: Iterable[str | None], terms: LimitTerms | None) -> None:
    """Let in what waits for these limits once the current transaction has committed."""
    from ..models import release_blocked

    release_blocked.release_after_commit(database, keys, terms)
