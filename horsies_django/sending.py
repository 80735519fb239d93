"""How a call becomes a row."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.db import DatabaseError, DataError, IntegrityError, connections, transaction
from django.utils import timezone

from . import gathering, headers, limits, postgres, waking
from .calls import Arguments, Calls
from .conf import Options
from .dry import is_dry
from .exceptions import PayloadMismatch
from .expressions import Blank, FromNow
from .ids import uuid7, uuid7s
from .inserts import Insert, Piece, columns_of, read
from .limits import Terms
from .states import TASK_LIVE_STATES
from .tasks import HorsiesTask
from .waking import Wake

if TYPE_CHECKING:
    from .models import Task as TaskRow

logger = logging.getLogger("horsies_django")

#: Rows of one INSERT of ``send_many()``.
ROWS_PER_INSERT: Final = 1_000

#: Characters of arguments that make an INSERT full before it has that many rows.
TEXT_PER_INSERT: Final = 4_000_000

#: Calls that ``send_many()`` checks before it inserts the first, unless their arguments have so many characters: most
#: mistakes cost the database nothing. Of more calls no more than that are in memory; those before a mistake are rolled
#: back.
CALLS_AHEAD: Final = 10_000
TEXT_AHEAD: Final = 10 * TEXT_PER_INSERT

#: What has to be the same in two sends with one ``task_id``.
_PAYLOAD: Final = ("task_name", "args", "kwargs", "queue_name", "priority", "good_until", "run_after")

#: What only the database knows of a new row.
_TOLD: Final = ("sent_at", "enqueued_at", "run_after")

#: Times that an INSERT is tried against tasks that hold its ``unique_key`` and end before they can be looked at.
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Sent:
    """What has become of a call: its task's id, and the row, if it was asked for or was there already."""

    id: UUID
    row: TaskRow | None = None
    is_new: bool = True
    is_gathered: bool = False


def insert(
    options: Options,
    task: HorsiesTask[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    with_row: bool = False,
    own: Mapping[str, Any] | None = None,
) -> Sent:
    """Insert one call in the current transaction, unless its task is there already.

    ``own`` are values of columns for this call alone, over those that all calls of the task have.

    The task with the same ``task_id``, or a live one with the same ``unique_key``, stands in for a new one; a call that
    is gathered joins the open group of its key (see :mod:`~horsies_django.gathering`). Raises PayloadMismatch if there
    is another call under its ``task_id``, and what :meth:`Calls.arguments` and :func:`headers.along` raise.
    """
    if options.middleware:
        own = {**_travelling(options, task), **(own or {})}
    if task.gather is not None:
        return _join(options, task, args, kwargs, with_row=with_row, own=own)
    calls = Calls.of(task, options)
    limit = limits.terms_of(task)
    arguments = (calls.limited if limit else calls.arguments)(args, kwargs)
    values = {"id": task.task_id or uuid7(), **calls.columns, "args": arguments.args, "kwargs": arguments.kwargs}
    if arguments.limit_key is not None:
        own = {**(own or {}), **limits.gating(arguments.limit_key, {**calls.columns, **(own or {})})}
    draft = _Draft(options.database, calls, {**values, **(own or {})}, arguments, with_row, has_own=bool(own))
    if is_dry():
        return draft.imagined()
    sent = draft.insert() if task.unique_key is None and task.task_id is None else _insert_once(draft)
    if sent.is_new and draft.values.get("gated"):
        _admit(options.database, [draft.values["limit_key"]], limit)
    return sent


def _travelling(options: Options, task: HorsiesTask[..., Any]) -> dict[str, Any]:
    """Return the columns that middleware adds something to."""
    metadata = headers.along(options, Calls.of(task, options).columns["metadata"])
    return {} if metadata is None else {"metadata": metadata}


def _join(
    options: Options,
    task: HorsiesTask[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    with_row: bool,
    own: Mapping[str, Any] | None,
) -> Sent:
    from .models import Task as TaskRow

    (joined,) = gathering.join(options, task, [(args, kwargs)], own)
    row = None
    if is_dry():
        calls = Calls.of(task, options)
        nothing = Arguments([], {}, "[]", "{}")
        row = _Draft(options.database, calls, {"id": joined.id, **calls.columns}, nothing, with_row).imagined().row
    elif with_row:
        row = TaskRow.objects.using(options.database).get(pk=joined.id)
    return Sent(joined.id, row, joined.is_new, is_gathered=True)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A row that is to be."""

    database: str
    calls: Calls
    values: dict[str, Any]
    arguments: Arguments
    with_row: bool
    has_own: bool = False

    @property
    def id(self) -> UUID:
        key: UUID = self.values["id"]
        return key

    def insert(self) -> Sent:
        """Insert it, and wake who waits for it, if possible in the same round trip."""
        database = self.database
        if self.values.get("gated"):  # who lets it in will wake somebody
            with transaction.mark_for_rollback_on_error(using=database):
                told = self._insert(None)
            return Sent(self.id, self._row(told) if self.with_row else None)
        wake = _wake(self.values)
        is_alone = connections[database].get_autocommit()
        payload = waking.to_go_along(database, wake) if is_alone else None
        with transaction.mark_for_rollback_on_error(using=database):
            told = self._run(payload)
        if not is_alone:
            waking.wake_after_commit(database, wake.queue_name, later=wake.later, is_async=wake.is_async)
        elif payload is not None:
            waking.went_along(database, payload)
        return Sent(self.id, self._row(told[: len(_TOLD)]) if self.with_row else None)

    def imagined(self) -> Sent:
        """Return what would have become of it, with nobody's clock asked; not new, so that nobody is told of it."""
        from .models import Task as TaskRow

        now = timezone.now()
        times = {"sent_at": now, "enqueued_at": now, "run_after": None}
        known = {name: value for name, value in self.values.items() if name not in _TOLD and name != "deferred"}
        return Sent(self.id, TaskRow(**times, **known), is_new=False)

    def _run(self, payload: str | None) -> Sequence[Any]:
        if payload is None:
            return self._insert(None)
        try:
            return self._insert(payload)
        except (IntegrityError, DataError):
            raise
        except DatabaseError:
            # It was a transaction of its own, of which nothing is left. A task must not be lost for want of a word.
            if not connections[self.database].is_usable():
                raise
            logger.warning("task id=%s is inserted without its notification", self.id, exc_info=True)
            return self._insert(None)

    def _insert(self, payload: str | None) -> Sequence[Any]:
        """Run the INSERT and return what it gives back. PostgreSQL's is written for good by the second such call."""
        if self.has_own or not postgres.can_listen(self.database):
            return self._written(self.values, payload).run(self.database)
        texts = {"id": self.id, "args": self.arguments.args_text, "kwargs": self.arguments.kwargs_text}
        blanks = {name: Piece("%s", (Blank(name),)) for name in texts}
        insert = self.calls.insert(
            (self.database, self.with_row, payload),
            lambda: self._written({**self.calls.columns, **blanks}, payload).settled(postgres.literal),
        )
        if insert is None:
            given = {name: Piece("%s", (text,)) for name, text in texts.items()}
            return self._written({**self.calls.columns, **given}, payload).run(self.database)
        return insert.run(self.database, texts)

    def _written(self, values: Mapping[str, Any], payload: str | None) -> Insert:
        from .models import Task as TaskRow

        told = columns_of(TaskRow, _TOLD, self.database) if self.with_row else []
        said = [] if payload is None else [postgres.notification(payload)]
        return Insert(TaskRow, values, self.database, returning=[*told, *said])

    def _row(self, told: Sequence[Any]) -> TaskRow:
        from .models import Task as TaskRow

        known = self.values | (read(TaskRow, _TOLD, told, self.database) if told else {})
        fields = TaskRow._meta.concrete_fields
        names = [field.attname for field in fields]
        values = [known[field.attname] if field.attname in known else field.get_default() for field in fields]
        row = TaskRow.from_db(self.database, names, values)
        if not told:
            row.refresh_from_db(fields=_TOLD)
        return row


def _admit(database: str, keys: Iterable[str | None], terms: Terms) -> None:
    from .models.admission import admit_after_commit

    admit_after_commit(database, keys, terms)


def insert_many(options: Options, task: HorsiesTask[..., Any], calls: Iterable[Mapping[str, Any]]) -> list[UUID]:
    """Insert one row for each dict of keyword arguments, all of them or none, and return their ids.

    Calls that are gathered get the ids of the tasks that they join. Raises ValueError with a ``unique_key`` or a
    ``task_id``, and what :meth:`Calls.arguments` raises.
    """
    travelling = _travelling(options, task) if options.middleware else {}
    if task.gather is not None:
        given = [((), kwargs) for kwargs in calls]
        return [joined.id for joined in gathering.join(options, task, given, travelling)]
    for name in ("unique_key", "task_id"):
        if (value := getattr(task, name)) is not None:
            raise ValueError(f"send_many() can't give {str(value)!r} to every call: {name} is for one.")
    checks, database = Calls.of(task, options), options.database
    limit = limits.terms_of(task)
    check = checks.limited if limit else checks.arguments
    checked = (check((), kwargs) for kwargs in calls)
    ahead = _taken(checked, CALLS_AHEAD, TEXT_AHEAD)
    if not ahead:
        return []
    further = list(itertools.islice(checked, 1))
    if is_dry():
        return uuid7s(len(ahead) + len(further) + sum(1 for _ in checked))
    columns, ids, keys = {**checks.columns, **travelling}, list[UUID](), set[str | None]()
    with _all_or_none(database, ahead, is_all=not further):
        rest = itertools.chain(further, checked)
        while ahead:
            ids += _insert_rows(database, columns, ahead)
            keys |= {call.limit_key for call in ahead} if limit else set()
            ahead = _taken(rest, CALLS_AHEAD, TEXT_AHEAD)
        if keys and not limits.is_later(columns):
            _admit(database, keys, limit)
        wake = _wake(columns)
        waking.wake_after_commit(database, wake.queue_name, later=wake.later, is_async=wake.is_async)
    return ids


def _taken(calls: Iterable[Arguments], limit: int, room: int) -> list[Arguments]:
    """Take the next calls, no more than ``limit``, and no more once their texts have filled ``room``."""
    taken: list[Arguments] = []
    for arguments in calls:
        taken.append(arguments)
        room -= len(arguments.kwargs_text)
        if len(taken) == limit or room <= 0:
            break
    return taken


def _batches(calls: Iterable[Arguments]) -> Iterator[list[Arguments]]:
    """Yield what goes into an INSERT each."""
    rest = iter(calls)
    while batch := _taken(rest, ROWS_PER_INSERT, TEXT_PER_INSERT):
        yield batch


def _all_or_none(database: str, ahead: Sequence[Arguments], *, is_all: bool) -> AbstractContextManager[Any]:
    if is_all and len(list(itertools.islice(_batches(ahead), 2))) == 1:
        return transaction.mark_for_rollback_on_error(using=database)  # one INSERT is its own transaction
    # A mistake that is found on the way is no reason to take what the caller has done before.
    return transaction.atomic(using=database, savepoint=not is_all)


def _insert_rows(database: str, columns: Mapping[str, Any], calls: Sequence[Arguments]) -> list[UUID]:
    from .models import Task as TaskRow

    ids = uuid7s(len(calls))
    if not postgres.can_listen(database):
        rows = [
            TaskRow(id=key, kwargs=call.kwargs, **{**columns, **limits.gating(call.limit_key, columns)})
            for key, call in zip(ids, calls, strict=True)
        ]
        TaskRow.objects.using(database).bulk_create(rows, batch_size=ROWS_PER_INSERT)
        return ids
    keys = iter(ids)
    values = {**columns, "id": Piece("sent.id"), "kwargs": Piece("sent.kwargs")}
    is_limited = any(call.limit_key is not None for call in calls)
    if is_limited:
        is_gated = False if limits.is_later(columns) else Piece("(sent.limit_key IS NOT NULL)")
        values |= {"limit_key": Piece("sent.limit_key"), "gated": is_gated, "deferred": is_gated or True}
    for batch in _batches(calls):
        its_own = itertools.islice(keys, len(batch))
        limit_keys = [arguments.limit_key for arguments in batch] if is_limited else None
        source = postgres.sent_rows(its_own, [arguments.kwargs_text for arguments in batch], limit_keys)
        Insert(TaskRow, values, database, source=source).run(database)
    return ids


def _wake(columns: Mapping[str, Any]) -> Wake:
    # Only a time that is asked for can be later, and whether it is may be for the database to say.
    later = bool(columns.get("deferred"))
    return Wake(columns["queue_name"], later, columns["is_async"])


def _insert_once(draft: _Draft) -> Sent:
    """Insert a row unless its ``task_id`` or its ``unique_key`` is taken."""
    tries, database = _TRIES, draft.database
    while True:
        try:
            # In a transaction that is open a savepoint keeps it usable.
            with nullcontext() if connections[database].get_autocommit() else transaction.atomic(using=database):
                return draft.insert()
        except IntegrityError:
            if earlier := _earlier(draft.values, database):
                return Sent(earlier.pk, earlier, is_new=False)
            # The holder ended between the two statements; or it is something else, which this raises in the end.
            tries -= 1
            if not tries:
                raise


def _earlier(values: Mapping[str, Any], database: str) -> TaskRow | None:
    """Return the task that stands where a row can't go. Raises PayloadMismatch if it is another call by that id."""
    from .models import Task as TaskRow

    rows = TaskRow.objects.using(database)
    if same := rows.filter(pk=values["id"]).first():
        differing = [name for name in _PAYLOAD if not _is_same(values.get(name), getattr(same, name))]
        if differing:
            raise PayloadMismatch(same.pk, differing)
        return same
    if values["unique_key"] is None:
        return None
    return rows.filter(unique_key=values["unique_key"], status__in=TASK_LIVE_STATES).first()


def _is_same(sent: Any, stored: Any) -> bool:
    """Whether a stored value is what was sent, as far as any database keeps it."""
    match sent:
        case FromNow():
            return True  # a delay counts from each call anew
        case datetime():
            # By moment: a project without time zones reads naive ones.
            return isinstance(stored, datetime) and sent.timestamp() == stored.timestamp()
        case dict():
            same_names = isinstance(stored, dict) and sent.keys() == stored.keys()
            return same_names and all(_is_same(sent[name], stored[name]) for name in sent)
        case list():
            same_length = isinstance(stored, list) and len(sent) == len(stored)
            return same_length and all(map(_is_same, sent, stored))
        case float():
            # PostgreSQL keeps the digits of 1e22 and gives an int back.
            return isinstance(stored, int | float) and not isinstance(stored, bool) and sent == float(str(stored))
    return isinstance(sent, bool) == isinstance(stored, bool) and bool(sent == stored)
