"""Inserts the calls of ``send_many()``."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from django.db import connections, transaction

from ..core.dry_run import is_dry_run
from ..core.ids import uuid7s
from ..core.options import Options
from ..core.serialization import dumps
from ..db import notifications
from ..db.inserts import insert_values
from ..db.postgres import pipeline
from ..db.sent_rows import sent_rows
from ..db.statements import Statement
from . import grouping, limits
from .call_builder import CallBuilder, task_ready_of
from .insert import checker_of, inject_headers
from .pending_insert import release_after_commit
from .task import HorsiesTask

H = TypeVar("H")

#: Rows of one INSERT.
ROWS_PER_INSERT: Final = 1_000

#: The characters of arguments after which an INSERT takes no more rows.
TEXT_PER_INSERT: Final = 4_000_000

#: This many calls, or this many characters of arguments, are checked before any is inserted, so that most errors cost
#: the database nothing. No more calls are kept in memory; a later error rolls back.
CALLS_AHEAD: Final = 10_000
TEXT_AHEAD: Final = 10 * TEXT_PER_INSERT


class _Calls(NamedTuple):
    """Checked calls: the JSON texts of their keyword arguments, and their limit keys if the task has limits.

    Plain texts, because the garbage collector walks over anything else again and again, which cost a third of the time
    of a large send.
    """

    kwargs: list[str]
    limit_keys: list[str | None]

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.kwargs)

    def batches(self) -> Iterator[_Calls]:
        """Yield the calls of each INSERT."""
        start = 0
        while texts := self.kwargs[start : start + ROWS_PER_INSERT]:
            if sum(map(len, texts)) >= TEXT_PER_INSERT:
                ends = itertools.accumulate(map(len, texts))
                texts = texts[: 1 + sum(end < TEXT_PER_INSERT for end in ends)]
            yield _Calls(texts, self.limit_keys[start : start + len(texts)])
            start += len(texts)


class _CheckedCalls:
    """Checks calls as they are taken. Raises the errors of :meth:`Target.arguments`."""

    def __init__(self, builder: CallBuilder, calls: Iterable[Mapping[str, Any]], database: str) -> None:
        self._calls = iter(calls)
        self._check = checker_of(builder)
        self._is_limited = builder.is_limited
        self._keeps_texts = connections[database].vendor == "postgresql"
        # On SQLite, queries compare the texts of Django's JSONField.
        write = dumps if self._keeps_texts else json.dumps
        is_plain = builder.task.gather is None and not self._is_limited
        self._plain_text = functools.partial(builder.plain_text, write=write) if is_plain else None
        self._next = _Calls([], [])

    def has_more(self) -> bool:
        """Whether there is another call. It is checked already."""
        if not self._next.kwargs:
            self._next = self.take(1, 1)
        return bool(self._next.kwargs)

    def take(self, limit: int, max_text: int) -> _Calls:
        """Take the next calls: at most ``limit``, and none after their texts have ``max_text`` characters."""
        taken, self._next = self._next, _Calls([], [])
        keep, plain_text, missing = taken.kwargs.append, self._plain_text, limit - len(taken.kwargs)
        for call in itertools.islice(self._calls, missing):
            text = (plain_text(call) if plain_text else None) or self._checked_text(call, taken.limit_keys)
            keep(text)
            max_text -= len(text)
            if max_text <= 0:
                break
        return taken

    def _checked_text(self, call: Mapping[str, Any], limit_keys: list[str | None]) -> str:
        arguments = self._check((), call)
        if self._is_limited:
            limit_keys.append(arguments.limit_key)
        return arguments.kwargs_text if self._keeps_texts else json.dumps(arguments.kwargs)


def insert_many(
    options: Options,
    task: HorsiesTask[..., Any],
    calls: Iterable[Mapping[str, Any]],
    handle_of: Callable[[UUID], H],
) -> list[H]:
    """Insert one row for each dict of keyword arguments, all of them or none, and return their handles.

    Calls with ``gather`` get the handles of the tasks that they join. Raises ValueError if the task has a
    ``unique_key`` or a ``task_id``, and the errors of :meth:`Target.arguments`.
    """
    builder, database = CallBuilder.of(task, options), options.database
    columns = inject_headers(options, builder)
    if task.gather is not None and task.run_after is not None:
        columns |= grouping.DELAYED_COLUMNS
    elif task.gather is not None:
        given = [((), kwargs) for kwargs in calls]
        return [handle_of(joined.id) for joined in grouping.join(options, task, given, columns)]
    check_for_many(task)
    checked = _CheckedCalls(builder, calls, database)
    if not (ahead := checked.take(CALLS_AHEAD, TEXT_AHEAD)):
        return []
    is_all = not checked.has_more()
    if is_dry_run():
        count = len(ahead.kwargs) + sum(len(chunk.kwargs) for chunk in _chunks(checked))
        return list(map(handle_of, uuid7s(count)))
    columns, handles, keys = {**builder.columns, **columns}, list[H](), set[str | None]()
    with _all_or_none(database, ahead, is_all=is_all):
        for chunk in itertools.chain([ahead], _chunks(checked)):
            handles += _insert_rows(database, columns, chunk, handle_of)
            keys.update(chunk.limit_keys)
        if keys and not limits.is_deferred(columns):
            release_after_commit(database, keys, frees_places=False)
        wake = task_ready_of(columns)
        notifications.wake_after_commit(database, wake.queue_name, later=wake.later, is_async=wake.is_async)
    return handles


def check_for_many(task: HorsiesTask[..., Any]) -> None:
    """Raise ValueError for an option that only fits a single call."""
    for name in ("unique_key", "task_id"):
        if (value := getattr(task, name)) is not None:
            raise ValueError(f"send_many() can't give {str(value)!r} to every call: {name} is for one call.")


def _chunks(checked: _CheckedCalls) -> Iterator[_Calls]:
    while chunk := checked.take(CALLS_AHEAD, TEXT_AHEAD):
        yield chunk


def _all_or_none(database: str, ahead: _Calls, *, is_all: bool) -> AbstractContextManager[Any]:
    if is_all and len(list(itertools.islice(ahead.batches(), 2))) == 1:
        return transaction.mark_for_rollback_on_error(using=database)  # one INSERT is its own transaction
    # With a savepoint, an error in a later call leaves the caller's own work in the transaction intact.
    return transaction.atomic(using=database, savepoint=not is_all)


def _insert_rows(database: str, columns: Mapping[str, Any], calls: _Calls, handle_of: Callable[[UUID], H]) -> list[H]:
    from ..models import Task as TaskRow

    values = {**columns, "id": Statement("sent.id"), "kwargs": Statement("sent.kwargs")}
    is_limited = any(limit_key is not None for limit_key in calls.limit_keys)
    if is_limited:
        is_blocked = False if limits.is_deferred(columns) else Statement("(sent.limit_key IS NOT NULL)")
        values |= {"limit_key": Statement("sent.limit_key"), "blocked": is_blocked, "deferred": is_blocked or True}
    handles: list[H] = []
    with pipeline(connections[database]):  # the server runs one INSERT while this process makes the next
        for batch in calls.batches():
            ids = uuid7s(len(batch.kwargs))
            source = sent_rows(database, ids, batch.kwargs, batch.limit_keys if is_limited else None)
            insert_values(TaskRow, values, database, source=source).run(database)
            handles += map(handle_of, ids)
    return handles
