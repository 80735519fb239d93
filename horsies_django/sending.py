"""How a call becomes a row."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.db import IntegrityError, transaction
from django.db.models import BooleanField, Case, DateTimeField, Value, When
from django.db.models.functions import Now
from django.db.models.lookups import GreaterThan

from . import hints
from .conf import Options
from .exceptions import PayloadMismatch
from .expressions import FromNow
from .retention import stored_retention
from .serializers import check_size, dumps, encode
from .states import TASK_LIVE_STATES
from .tasks import HorsiesTask
from .waking import wake_after_commit

if TYPE_CHECKING:
    from .models import Task as TaskRow

#: Rows of one INSERT of ``send_many()``.
ROWS_PER_INSERT: Final = 1_000

#: What has to be the same in two sends with one ``task_id``.
_PAYLOAD: Final = ("task_name", "args", "kwargs", "queue_name", "priority", "good_until", "run_after")


#: Times that an INSERT is tried against tasks that hold its ``unique_key`` and end before they can be looked at.
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Sent:
    """The row of a call, and whether it is new.

    The task with the same ``task_id``, or a live one with the same ``unique_key``, stands in for a new one.
    """

    row: TaskRow
    is_new: bool = True


def insert(options: Options, task: HorsiesTask[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sent:
    """Insert one call in the current transaction, unless its task is there already.

    Raises PayloadMismatch if there is another call under its ``task_id``.
    """
    row = build(options, task, args, kwargs)
    database = options.database
    if task.unique_key is None and task.task_id is None:
        row.save(force_insert=True, using=database)
        sent = Sent(row)
    else:
        sent = _insert_once(row, database)
    if sent.is_new:
        wake_after_commit(database, task.queue_name, later=bool(row.deferred))
    return sent


def insert_many(options: Options, task: HorsiesTask[..., Any], calls: Iterable[Mapping[str, Any]]) -> list[TaskRow]:
    """Insert one row for each dict of keyword arguments; all of them or none.

    Raises ValueError with a ``unique_key`` or a ``task_id``.
    """
    from .models import Task as TaskRow

    for name in ("unique_key", "task_id"):
        if (value := getattr(task, name)) is not None:
            raise ValueError(f"send_many() can't give {str(value)!r} to every call: {name} is for one.")
    rows = [build(options, task, (), kwargs) for kwargs in calls]
    if rows:
        database = options.database
        TaskRow.objects.using(database).bulk_create(rows, batch_size=ROWS_PER_INSERT)
        wake_after_commit(database, task.queue_name, later=bool(rows[0].deferred))
    return rows


def build(options: Options, task: HorsiesTask[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskRow:
    """Return the row of a call, not yet saved.

    Raises TypeError for arguments that the function does not take or that its type hints rule out, and TypeError or
    ValueError for a value that can't be stored; each names the parameter. Raises ValueError for more bytes than
    ``max_payload_bytes``.
    """
    from .models import Task as TaskRow

    rich = options.serializer == "rich"
    path = task.module_path
    names = _check_arguments(task, args, kwargs)
    if mismatches := "; ".join(hints.mismatches(task.func, names, args, kwargs)):
        raise TypeError(f"{path}: {mismatches}.")
    policy = task.stored_policy()
    payload = _Payload(rich)
    row = TaskRow(
        task_name=path,
        queue_name=task.queue_name,
        backend=task.backend,
        priority=int(task.priority),
        args=[payload.encoded(value, name) for name, value in zip(names, args, strict=True)],
        kwargs={
            encode(name, rich=False, where=f"argument name {name!r}"): payload.encoded(value, name)
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
    payload.check_size(options.max_payload_bytes, path)
    if task.task_id is not None:
        row.pk = task.task_id
    if task.run_after is not None:
        _defer(row, task.run_after)
    return row


class _Payload:
    """The arguments of a call on their way to JSON."""

    def __init__(self, rich: bool) -> None:
        self._rich = rich
        self._texts: list[str] = []

    def encoded(self, value: Any, name: str) -> Any:
        where = f"argument {name!r}"
        try:
            encoded = encode(value, rich=self._rich, where=where)
            # How deep JSON may be is for its own encoder to say.
            self._texts += (name, dumps(encoded))
        except RecursionError:
            raise ValueError(f"Unsupported value: {where} is nested too deeply.") from None
        except ValueError as error:
            if where in str(error):
                raise
            raise ValueError(f"Unsupported value: {where} can't be written as JSON: {error}") from error
        return encoded

    def check_size(self, limit: int | None, path: str) -> None:
        check_size("".join(self._texts), limit, f"the payload of {path}")


def _defer(row: TaskRow, run_after: datetime | timedelta) -> None:
    if isinstance(run_after, timedelta):
        row.enqueued_at = row.run_after = FromNow(run_after.total_seconds())
        row.deferred = run_after > timedelta()
    else:
        row.enqueued_at = row.run_after = run_after
        # Whether it is due already is for the database's clock to say.
        is_later = GreaterThan(Value(run_after, DateTimeField()), Now())
        row.deferred = Case(When(is_later, then=True), default=False, output_field=BooleanField())


def _insert_once(row: TaskRow, database: str) -> Sent:
    """Insert a row unless its ``task_id`` or its ``unique_key`` is taken."""
    tries = _TRIES
    while True:
        try:
            with transaction.atomic(using=database):
                row.save(force_insert=True, using=database)
            return Sent(row)
        except IntegrityError:
            if earlier := _earlier(row, database):
                return Sent(earlier, is_new=False)
            # The holder ended between the two statements; or it is something else, which this raises in the end.
            tries -= 1
            if not tries:
                raise


def _earlier(row: TaskRow, database: str) -> TaskRow | None:
    """Return the task that stands where ``row`` can't go. Raises PayloadMismatch if it is another call by that id."""
    rows = type(row).objects.using(database)
    if same := rows.filter(pk=row.pk).first():
        if differing := [name for name in _PAYLOAD if not _is_same(getattr(row, name), getattr(same, name))]:
            raise PayloadMismatch(row.pk, differing)
        return same
    if row.unique_key is None:
        return None
    return rows.filter(unique_key=row.unique_key, status__in=TASK_LIVE_STATES).first()


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
