"""Inserts the calls of ``send_many()``.

Calls of a task with ``unique`` are inserted in the order of their keys, and each row is inserted or locked before the
next key. So two senders of the same keys can't deadlock: one waits for the other.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db import connections, transaction

from ..core.current_task import is_dry_run
from ..core.ids import uuid7s
from ..core.options import Options
from ..core.serialization import dumps, dumps_for_sqlite
from ..db import postgres
from ..db.inserts import DO_NOTHING, columns_of, insert_values
from ..db.sent_rows import sent_rows
from ..db.statements import Statement
from . import grouping
from .call_builder import Arguments, CallBuilder
from .dedupe import holder_of, ids_of_holders
from .handle import TaskHandle
from .handles import TaskHandles, packed
from .insert import EnqueueResult, NewRow, inject_headers, insert_once, release_after_commit
from .many_calls import check_call, checked, reading

#: Rows of one INSERT.
ROWS_PER_INSERT: Final = 1_000

#: The characters of arguments after which an INSERT takes no more rows.
TEXT_PER_INSERT: Final = 4_000_000

#: The calls of so many INSERTs are checked before any is inserted, so that most errors cost the database nothing. No
#: more calls are kept in memory; a later error rolls back.
INSERTS_AHEAD: Final = 10


class _Sent(NamedTuple):
    """The tasks of the calls of one INSERT, in their order: their ids, and whether they existed already."""

    ids: Sequence[UUID]
    replayed: Sequence[bool]


class _Calls(NamedTuple):
    """The checked calls of one INSERT: the JSON texts of keyword arguments, and limit and unique keys, if any.

    Plain texts, because the garbage collector walks over anything else again and again, which cost a third of the time
    of a large send. Only calls that are sorted have ids yet: others get theirs while the server is busy.
    """

    kwargs: list[str]
    limit_keys: list[str | None]
    unique_keys: list[str | None]
    ids: Sequence[UUID] = ()


def insert_many(options: Options, builder: CallBuilder, calls: Iterable[Mapping[str, Any]]) -> TaskHandles[Any]:
    """Insert one row for each dict of keyword arguments, all of them or none, and return their handles.

    The rows of a queryset are read while they are inserted. Calls with ``gather`` get the handles of the tasks that
    they join, and calls with ``unique`` those of the tasks that have their keys; calls with the same key are processed
    in their order. Raises TypeError if a call is no mapping, ValueError if the task has a ``unique_key`` or a
    ``task_id``, and the errors of :func:`~.insert.insert_call`.
    """
    with reading(calls, options.database, ROWS_PER_INSERT) as rows:
        return _insert_calls(options, builder, rows)


def _insert_calls(options: Options, builder: CallBuilder, calls: Iterable[Mapping[str, Any]]) -> TaskHandles[Any]:
    task, database = builder.task, options.database
    own = inject_headers(options, builder)
    if task.gather is not None and task.run_after is None:
        joined = grouping.join(options, builder, (((), kwargs) for kwargs in checked(calls)), own)
        return TaskHandles.of(task.backend, (TaskHandle(call.id) for call in joined))
    for name in ("unique_key", "task_id"):
        if (value := getattr(task, name)) is not None:
            raise ValueError(f"send_many() can't give {str(value)!r} to every call: {name} is for one call.")
    batches = _batches(builder, calls, database)
    if task.unique is None:
        return _insert_all(database, builder, own, batches)
    places, by_key = _ordered_by_key(batches)
    handles = _insert_all(database, builder, own, iter(by_key))
    by_place = dict(zip(places, handles, strict=True))
    return TaskHandles.of(task.backend, (by_place[place] for place in range(len(handles))))


def _insert_all(
    database: str, builder: CallBuilder, own: Mapping[str, Any], batches: Iterator[_Calls]
) -> TaskHandles[Any]:
    """Insert the calls of all batches, or none, and return their handles."""
    ahead, backend = list(itertools.islice(batches, INSERTS_AHEAD)), builder.task.backend
    if is_dry_run() or not ahead:
        count = sum(len(batch.kwargs) for batch in itertools.chain(ahead, batches))
        return TaskHandles(backend, packed(uuid7s(count)), bytes(count))
    ids, replayed, limit_keys = bytearray(), bytearray(), set[str | None]()
    with _all_or_none(database, len(ahead), is_unique=builder.task.unique is not None):
        while ahead:
            # The server runs one INSERT while this process makes the next.
            with postgres.pipeline(connections[database]):
                for batch in ahead:
                    sent = _insert(database, builder, own, batch)
                    ids += packed(sent.ids)
                    replayed += bytes(sent.replayed)
                    limit_keys.update(batch.limit_keys)
            ahead = list(itertools.islice(batches, INSERTS_AHEAD))
        if builder.is_limited and not builder.is_deferred:
            release_after_commit(database, limit_keys, frees_places=False)
        builder.wake_after_commit(database)
    return TaskHandles(backend, ids, replayed)


def _batches(builder: CallBuilder, calls: Iterable[Mapping[str, Any]], database: str) -> Iterator[_Calls]:
    """Check calls as they are taken, and yield those of each INSERT. Raises the errors of :meth:`CallBuilder.call`."""
    write = dumps if connections[database].vendor == "postgresql" else dumps_for_sqlite
    has_keys = builder.task.gather is not None or builder.task.unique is not None or builder.is_limited
    calls, count = iter(calls), 0
    while True:
        texts, limit_keys, unique_keys, size = list[str](), list[str | None](), list[str | None](), 0
        for kwargs in itertools.islice(calls, ROWS_PER_INSERT):
            text = None if has_keys else builder.plain_text(kwargs, write=write)
            if text is None:
                check_call(kwargs, count + len(texts))
                arguments = builder.call((), kwargs)
                text = arguments.kwargs_text if write is dumps else write(arguments.kwargs)
                if has_keys:
                    limit_keys.append(arguments.limit_key)
                    unique_keys.append(arguments.unique_key)
            texts.append(text)
            size += len(text)
            if size >= TEXT_PER_INSERT:
                break
        if not texts:
            return
        count += len(texts)
        yield _Calls(texts, limit_keys, unique_keys)


def _ordered_by_key(batches: Iterable[_Calls]) -> tuple[list[int], list[_Calls]]:
    """Return the calls of batches in the order of their unique keys, and the place of each among the calls before.

    Their ids stay in the order of the calls, which is that of claiming.
    """
    calls: list[Any] = [call for batch in batches for call in zip(*batch[:-1], uuid7s(len(batch.kwargs)), strict=True)]
    places = sorted(range(len(calls)), key=lambda place: (str(calls[place][2]), place))
    chunks, size = list[list[Any]](), 0
    for place in places:
        if not chunks or len(chunks[-1]) == ROWS_PER_INSERT or size >= TEXT_PER_INSERT:
            chunks.append([])
            size = 0
        chunks[-1].append(calls[place])
        size += len(calls[place][0])
    return places, [_Calls(*map(list, zip(*chunk, strict=True))) for chunk in chunks]


def _all_or_none(database: str, inserts: int, *, is_unique: bool) -> AbstractContextManager[Any]:
    if inserts == 1 and not is_unique:
        return transaction.mark_for_rollback_on_error(using=database)  # one INSERT is its own transaction
    # With a savepoint, an error in a later call leaves the caller's own work in the transaction intact.
    return transaction.atomic(using=database, savepoint=is_unique or inserts == INSERTS_AHEAD)


def _insert(database: str, builder: CallBuilder, own: Mapping[str, Any], calls: _Calls) -> _Sent:
    """Insert calls, or resolve the conflicts of their unique keys, and return their tasks."""
    unique = builder.task.unique
    if unique is None:
        calls = calls._replace(ids=uuid7s(len(calls.kwargs)))
        _insert_rows(database, builder, own, calls)
        return _Sent(calls.ids, [False] * len(calls.ids))
    # Only the first call of each key can be inserted.
    firsts = [place for place, key in enumerate(calls.unique_keys) if not place or key != calls.unique_keys[place - 1]]
    first = _Calls(*([column[place] for place in firsts] for column in calls))  # type: ignore[arg-type]  # the same types
    new = set(_insert_rows(database, builder, own, first))
    are_skipped = unique.on_conflict == "skip" and len(new) < len(calls.ids)
    holders = ids_of_holders(database, calls.unique_keys) if are_skipped else {}
    tasks: list[tuple[UUID, bool]] = []
    for text, limit_key, unique_key, key in zip(*calls, strict=True):
        if key in new:
            tasks.append((key, False))
        elif (holder_id := holders.get(unique_key)) is not None:
            tasks.append((holder_id, True))
        else:
            arguments = Arguments([], json.loads(text), "[]", text, limit_key, unique_key)
            row = NewRow(database, builder, arguments, key, {**builder.own_columns(arguments), **own})
            holder = holder_of(row)
            sent = insert_once(row) if holder is None else EnqueueResult(holder.pk, is_new=False)
            tasks.append((sent.id, not sent.is_new))
    return _Sent(*zip(*tasks, strict=True))


def _insert_rows(database: str, builder: CallBuilder, own: Mapping[str, Any], calls: _Calls) -> Iterable[UUID]:
    """Insert the rows of calls, and return the ids of those whose unique key was free.

    Of calls with unique keys it leaves out those whose key is taken. If they replace the rows that hold the keys, it
    locks these, where the database has locks.
    """
    from ..models import Task as TaskRow

    columns = {"limit_key": calls.limit_keys, "unique_key": calls.unique_keys}
    texts = {name: keys for name, keys in columns.items() if any(keys)}
    values = {**builder.columns, **own, **{name: Statement(f"sent.{name}") for name in ("id", "kwargs", *texts)}}
    if "limit_key" in texts:
        is_blocked = False if builder.is_deferred else Statement("(sent.limit_key IS NOT NULL)")
        values |= {"blocked": is_blocked, "deferred": is_blocked or True}
    source, unique = sent_rows(database, calls.ids, calls.kwargs, texts), builder.task.unique
    if unique is None:
        insert_values(TaskRow, values, database, source=source).run(database)
        return calls.ids
    on_conflict = DO_NOTHING
    if unique.on_conflict == "replace" and postgres.can_listen(database):
        on_conflict = postgres.or_lock(database, TaskRow, "horsies_live_task_has_its_key_alone")
    returning = columns_of(TaskRow, ["id"], database)
    insert = insert_values(TaskRow, values, database, source=source, returning=returning, on_conflict=on_conflict)
    return [key if isinstance(key, UUID) else UUID(key) for (key,) in insert.rows(database)]
