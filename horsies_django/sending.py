"""How a call becomes a row."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.db import IntegrityError, transaction
from django.utils import timezone

from .conf import Options
from .expressions import FromNow
from .retention import stored_retention
from .serializers import dumps, encode
from .states import TASK_LIVE_STATES
from .tasks import HorsiesTask
from .waking import wake_after_commit

if TYPE_CHECKING:
    from .models import Task as TaskRow

#: Rows of one INSERT of ``send_many()``.
ROWS_PER_INSERT: Final = 1_000


@dataclass(frozen=True, slots=True)
class Sent:
    """The row of a call, and whether it is new; a live task with the same ``unique_key`` stands in for a new one."""

    row: TaskRow
    is_new: bool = True


def insert(options: Options, task: HorsiesTask[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sent:
    """Insert one call in the current transaction, unless a live task holds the same ``unique_key``."""
    row = build(options, task, args, kwargs)
    database = options.database
    if task.unique_key is None:
        row.save(force_insert=True, using=database)
        sent = Sent(row)
    else:
        sent = _insert_unique(row, database)
    if sent.is_new:
        wake_after_commit(database, task.queue_name, later=row.deferred)
    return sent


def insert_many(options: Options, task: HorsiesTask[..., Any], calls: Iterable[Mapping[str, Any]]) -> list[TaskRow]:
    """Insert one row for each dict of keyword arguments; all of them or none. Raises ValueError with a unique key."""
    from .models import Task as TaskRow

    if task.unique_key is not None:
        raise ValueError(f"send_many() can't give {task.unique_key!r} to every call: unique_key is for one.")
    rows = [build(options, task, (), kwargs) for kwargs in calls]
    if rows:
        database = options.database
        TaskRow.objects.using(database).bulk_create(rows, batch_size=ROWS_PER_INSERT)
        wake_after_commit(database, task.queue_name, later=rows[0].deferred)
    return rows


def build(options: Options, task: HorsiesTask[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskRow:
    """Return the row of a call, not yet saved.

    Raises TypeError for arguments that the function does not take, and TypeError or ValueError for a value that can't
    be stored; each names the parameter.
    """
    from .models import Task as TaskRow

    rich = options.serializer == "rich"
    path = task.module_path
    names = _check_arguments(task, args, kwargs)
    policy = task.stored_policy()
    row = TaskRow(
        task_name=path,
        queue_name=task.queue_name,
        backend=task.backend,
        priority=int(task.priority),
        args=[_encoded(value, rich, name) for name, value in zip(names, args, strict=True)],
        kwargs={
            encode(name, rich=False, where=f"argument name {name!r}"): _encoded(value, rich, name)
            for name, value in kwargs.items()
        },
        rich=rich,
        is_async=inspect.iscoroutinefunction(task.func),
        max_retries=policy.max_retries if policy else 0,
        retry_policy=policy.as_json() if policy else None,
        timeout=task.timeout,
        retention=stored_retention(task.retention),
        unique_key=task.unique_key,
        good_until=task.good_until,
        metadata=None if task.metadata is None else encode(task.metadata, rich=False, where="metadata"),
    )
    if task.run_after is not None:
        _defer(row, task.run_after)
    return row


def _encoded(value: Any, rich: bool, name: str) -> Any:
    where = f"argument {name!r}"
    try:
        encoded = encode(value, rich=rich, where=where)
        dumps(encoded)  # how deep JSON may be is for its own encoder to say
    except RecursionError:
        raise ValueError(f"Unsupported value: {where} is nested too deeply.") from None
    except ValueError as error:
        if where in str(error):
            raise
        raise ValueError(f"Unsupported value: {where} can't be written as JSON: {error}") from error
    return encoded


def _defer(row: TaskRow, run_after: datetime | timedelta) -> None:
    if isinstance(run_after, timedelta):
        row.enqueued_at = row.run_after = FromNow(run_after.total_seconds())
        row.deferred = run_after > timedelta()
    else:
        row.enqueued_at = row.run_after = run_after
        # Only where the row is indexed hangs on this machine's clock; when it may run is the database's to say.
        row.deferred = run_after > (timezone.now() if timezone.is_aware(run_after) else datetime.now())  # noqa: DTZ005


def _insert_unique(row: TaskRow, database: str) -> Sent:
    try:
        with transaction.atomic(using=database):
            row.save(force_insert=True, using=database)
    except IntegrityError:
        rivals = type(row).objects.using(database).filter(unique_key=row.unique_key, status__in=TASK_LIVE_STATES)
        if holder := rivals.first():
            return Sent(holder, is_new=False)
        # The holder ended between the two statements; or it was something else, which this raises again.
        row.save(force_insert=True, using=database)
    return Sent(row)


@functools.cache
def _signature(func: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(func)


def _check_arguments(task: HorsiesTask[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Return the names of the parameters that take the positional arguments. Raises TypeError naming what is wrong."""
    signature = _signature(task.func)
    context = (None,) if task.takes_context else ()
    try:
        signature.bind(*context, *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{task.module_path}{signature}: {error}.") from None
    names: list[str] = []
    for parameter in list(signature.parameters.values())[len(context) :]:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{index}]" for index in range(len(args) - len(names))]
        if len(names) >= len(args):
            break
        names.append(parameter.name)
    return names[: len(args)]
