"""Inserts calls as rows, one at a time or many."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeAlias
from uuid import UUID

from django.db import transaction

from ..core import headers
from ..core.dry_run import is_dry_run
from ..core.ids import uuid7, uuid7s
from ..core.options import Options
from ..db import notifications, postgres
from ..db.inserts import Insert, SqlFragment
from . import grouping, limits
from .call_builder import Arguments, CallBuilder, task_ready_of
from .dedupe import insert_once
from .pending_insert import EnqueueResult, PendingInsert, release_after_commit
from .task import HorsiesTask
from .unique_keys import unique_columns, unique_key_of

#: Rows of one INSERT of ``send_many()``.
ROWS_PER_INSERT: Final = 1_000

#: The characters of arguments after which an INSERT takes no more rows.
TEXT_PER_INSERT: Final = 4_000_000

#: A call of ``send_many()``: the text of its keyword arguments, its limit key, and the arguments as values where the
#: INSERT needs them. The garbage collector stops tracking a plain tuple of texts; it would walk over anything else
#: again and again, which cost a third of the time of a large send.
_BulkCall: TypeAlias = tuple[str, str | None, dict[str, Any] | None]

#: ``send_many()`` checks this many calls, or this many characters of arguments, before it inserts any, so that most
#: errors cost the database nothing. It keeps no more calls in memory; after a later error it rolls back.
CALLS_AHEAD: Final = 10_000
TEXT_AHEAD: Final = 10 * TEXT_PER_INSERT


def insert(
    options: Options,
    task: HorsiesTask[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    own: Mapping[str, Any] | None = None,
) -> EnqueueResult:
    """Insert one call of a task that is known to be valid. See :func:`insert_call`."""
    return insert_call(options, CallBuilder.of(task, options), args, kwargs, own=own)


def insert_call(
    options: Options,
    calls: CallBuilder,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    with_row: bool = False,
    own: Mapping[str, Any] | None = None,
) -> EnqueueResult:
    """Insert one call in the current transaction, unless its task exists already.

    ``own`` sets columns for this call only; they override those that all calls of the task share.

    A task with the same ``task_id`` or unique key may take the place of a new one. A call with ``gather`` joins the
    open group of its key (see :mod:`~.grouping`), or joins it when its ``run_after`` has come. Raises PayloadMismatch
    if its ``task_id`` belongs to a different call, UniqueConflict, and the errors of :meth:`Target.arguments`,
    :func:`grouping.check_grouped_call` and :func:`headers.inject`.
    """
    task = calls.task
    if options.middleware:
        own = {**inject_headers(options, calls), **(own or {})}
    if task.gather is not None:
        if task.run_after is None:
            return _join_group(options, calls, args, kwargs, with_row=with_row, own=own)
        own = {**(own or {}), **grouping.DELAYED_COLUMNS}
    pending = pending_insert_of(options.database, calls, args, kwargs, with_row=with_row, own=own)
    if is_dry_run():
        return pending.dry_run()
    if pending.values["unique_key"] is None and task.task_id is None:
        return pending.insert()
    return insert_once(pending)


def pending_insert_of(
    database: str,
    calls: CallBuilder,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    with_row: bool = False,
    own: Mapping[str, Any] | None = None,
) -> PendingInsert:
    """Check a call and return its row. Raises as above."""
    arguments, key = check_call(calls, args, kwargs)
    return build_insert(database, calls, arguments, key, with_row=with_row, own=own)


def check_call(calls: CallBuilder, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Arguments, str | None]:
    """Check a call; return its arguments and, if its task is unique, its key. Raises as above."""
    task = calls.task
    arguments = _checker_of(calls)(args, kwargs)
    if task.unique is None:
        return arguments, None
    return arguments, task.unique_key or unique_key_of(task, calls, arguments, args, kwargs)


def _checker_of(calls: CallBuilder) -> Callable[[Sequence[Any], Mapping[str, Any]], Arguments]:
    """Return the function that checks the arguments of this task's calls."""
    if calls.task.gather is not None:
        return lambda args, kwargs: grouping.check_grouped_call(calls, calls.task, args, kwargs)[0]
    return calls.limited if calls.limit_terms else calls.arguments


def build_insert(
    database: str,
    calls: CallBuilder,
    arguments: Arguments,
    key: str | None,
    *,
    with_row: bool = False,
    own: Mapping[str, Any] | None = None,
) -> PendingInsert:
    """Return the row of a checked call."""
    task = calls.task
    values = {"id": task.task_id or uuid7(), **calls.columns, "args": arguments.args, "kwargs": arguments.kwargs}
    if own:
        values |= own
    if arguments.limit_key is not None:
        values |= limits.blocking_columns(arguments.limit_key, values)
    if task.unique is not None:
        values |= {"unique_key": key, **unique_columns(task.unique, task.run_after)}
    return PendingInsert(
        database,
        calls,
        values,
        arguments,
        with_row,
        has_own=bool(own) or arguments.limit_key is not None,
        has_given_id=task.task_id is not None,
    )


def inject_headers(options: Options, calls: CallBuilder) -> dict[str, Any]:
    """Return the metadata column with the middleware's headers; no column if there are none."""
    if not options.middleware:
        return {}
    metadata = headers.inject(options, calls.columns["metadata"])
    return {} if metadata is None else {"metadata": metadata}


def _join_group(
    options: Options,
    calls: CallBuilder,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    with_row: bool,
    own: Mapping[str, Any] | None,
) -> EnqueueResult:
    from ..models import Task as TaskRow

    (joined,) = grouping.join(options, calls.task, [(args, kwargs)], own)
    row = None
    if is_dry_run():
        nothing = Arguments([], {}, "[]", "{}")
        row = (
            PendingInsert(options.database, calls, {"id": joined.id, **calls.columns}, nothing, with_row).dry_run().row
        )
    elif with_row:
        row = TaskRow.objects.using(options.database).get(pk=joined.id)
    return EnqueueResult(joined.id, row, joined.is_new, is_grouped=True)


def insert_many(options: Options, task: HorsiesTask[..., Any], calls: Iterable[Mapping[str, Any]]) -> list[UUID]:
    """Insert one row for each dict of keyword arguments, all of them or none, and return their ids.

    Calls with ``gather`` get the ids of the tasks that they join. Raises ValueError if the task has a ``unique_key`` or
    a ``task_id``, and the errors of :meth:`Target.arguments`.
    """
    checks, database = CallBuilder.of(task, options), options.database
    columns = inject_headers(options, checks)
    if task.gather is not None and task.run_after is not None:
        columns |= grouping.DELAYED_COLUMNS
    elif task.gather is not None:
        given = [((), kwargs) for kwargs in calls]
        return [joined.id for joined in grouping.join(options, task, given, columns)]
    check_for_many(task)
    limit, check = checks.limit_terms, _checker_of(checks)
    checked = _bulk_calls((check((), kwargs) for kwargs in calls), keep_values=not postgres.can_listen(database))
    ahead = _take_batch(checked, CALLS_AHEAD, TEXT_AHEAD)
    if not ahead:
        return []
    further = list(itertools.islice(checked, 1))
    if is_dry_run():
        return uuid7s(len(ahead) + len(further) + sum(1 for _ in checked))
    columns, ids, keys = {**checks.columns, **columns}, list[UUID](), set[str | None]()
    with _all_or_none(database, ahead, is_all=not further):
        rest = itertools.chain(further, checked)
        while ahead:
            ids += _insert_rows(database, columns, ahead)
            keys |= {limit_key for _, limit_key, _ in ahead} if limit else set()
            ahead = _take_batch(rest, CALLS_AHEAD, TEXT_AHEAD)
        if keys and not limits.is_deferred(columns):
            release_after_commit(database, keys, limit)
        wake = task_ready_of(columns)
        notifications.wake_after_commit(database, wake.queue_name, later=wake.later, is_async=wake.is_async)
    return ids


def check_for_many(task: HorsiesTask[..., Any]) -> None:
    """Raise ValueError for an option that only fits a single call."""
    for name in ("unique_key", "task_id"):
        if (value := getattr(task, name)) is not None:
            raise ValueError(f"send_many() can't give {str(value)!r} to every call: {name} is for one call.")


def _bulk_calls(checked: Iterable[Arguments], *, keep_values: bool) -> Iterator[_BulkCall]:
    for arguments in checked:
        yield arguments.kwargs_text, arguments.limit_key, arguments.kwargs if keep_values else None


def _take_batch(calls: Iterable[_BulkCall], limit: int, max_text: int) -> list[_BulkCall]:
    """Take the next calls: at most ``limit``, and none after their texts have ``max_text`` characters."""
    taken: list[_BulkCall] = []
    for call in calls:
        taken.append(call)
        max_text -= len(call[0])
        if len(taken) == limit or max_text <= 0:
            break
    return taken


def _batches(calls: Iterable[_BulkCall]) -> Iterator[list[_BulkCall]]:
    """Yield the calls of each INSERT."""
    rest = iter(calls)
    while batch := _take_batch(rest, ROWS_PER_INSERT, TEXT_PER_INSERT):
        yield batch


def _all_or_none(database: str, ahead: Sequence[_BulkCall], *, is_all: bool) -> AbstractContextManager[Any]:
    if is_all and len(list(itertools.islice(_batches(ahead), 2))) == 1:
        return transaction.mark_for_rollback_on_error(using=database)  # one INSERT is its own transaction
    # With a savepoint, an error in a later call leaves the caller's own work in the transaction intact.
    return transaction.atomic(using=database, savepoint=not is_all)


def _insert_rows(database: str, columns: Mapping[str, Any], calls: Sequence[_BulkCall]) -> list[UUID]:
    from ..models import Task as TaskRow

    ids = uuid7s(len(calls))
    if not postgres.can_listen(database):
        rows = [
            TaskRow(id=key, kwargs=kwargs, **{**columns, **limits.blocking_columns(limit_key, columns)})
            for key, (_, limit_key, kwargs) in zip(ids, calls, strict=True)
        ]
        TaskRow.objects.using(database).bulk_create(rows, batch_size=ROWS_PER_INSERT)
        return ids
    keys = iter(ids)
    values = {**columns, "id": SqlFragment("sent.id"), "kwargs": SqlFragment("sent.kwargs")}
    is_limited = any(limit_key is not None for _, limit_key, _ in calls)
    if is_limited:
        is_blocked = False if limits.is_deferred(columns) else SqlFragment("(sent.limit_key IS NOT NULL)")
        values |= {"limit_key": SqlFragment("sent.limit_key"), "blocked": is_blocked, "deferred": is_blocked or True}
    for batch in _batches(calls):
        batch_ids = itertools.islice(keys, len(batch))
        limit_keys = [limit_key for _, limit_key, _ in batch] if is_limited else None
        source = postgres.sent_rows(batch_ids, [text for text, _, _ in batch], limit_keys)
        Insert(TaskRow, values, database, source=source).run(database)
    return ids
