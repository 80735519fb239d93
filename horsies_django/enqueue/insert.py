"""Inserts calls as rows, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core import headers
from ..core.around_send import around_send
from ..core.dry_run import is_dry_run
from ..core.ids import uuid7
from ..core.middleware import TaskSend
from ..core.options import Options
from . import grouping, limits
from .call_builder import Arguments, CallBuilder
from .dedupe import insert_once
from .pending_insert import EnqueueResult, PendingInsert
from .task import HorsiesTask
from .unique_keys import unique_columns, unique_key_of


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
    if not options.middleware:
        return _insert_call(options, calls, args, kwargs, with_row=with_row, own=own)
    send = TaskSend(task_name=calls.task.task_name, queue_name=calls.task.queue_name)
    with around_send(options, send):
        own = {**inject_headers(options, calls), **(own or {})}
        result = _insert_call(options, calls, args, kwargs, with_row=with_row, own=own)
        send.id, send.count, send.is_new = result.id, 1, result.is_new or result.is_grouped
    return result


def _insert_call(
    options: Options,
    calls: CallBuilder,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    with_row: bool,
    own: Mapping[str, Any] | None,
) -> EnqueueResult:
    task = calls.task
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
    arguments = checker_of(calls)(args, kwargs)
    if task.unique is None:
        return arguments, None
    return arguments, task.unique_key or unique_key_of(task, calls, arguments, args, kwargs)


def checker_of(calls: CallBuilder) -> Callable[[Sequence[Any], Mapping[str, Any]], Arguments]:
    """Return the function that checks the arguments of this task's calls."""
    if calls.task.gather is not None:
        return lambda args, kwargs: grouping.check_grouped_call(calls, calls.task, args, kwargs)[0]
    return calls.limited if calls.is_limited else calls.arguments


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
