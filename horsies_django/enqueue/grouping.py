"""Grouping (``gather=``): calls with the same key become the items of one task, which is due later.

A key has at most one open group in a queue: a task that was never claimed. A sender locks its row to add a call, so the
size is exact. The first claim closes the group for good, and the next call opens another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.db import models, transaction
from django.db.models import Case, F, TextField, Value, When
from django.db.models.functions import Cast, Least

from ..core.compat import FrameworkTask, InvalidTask
from ..core.dry_run import is_dry_run
from ..core.grouping_policy import Gather
from ..core.ids import uuid7
from ..core.mask import keyed_hash
from ..core.options import Options
from ..core.retry import RetryPolicy
from ..core.serialization import decode_call
from ..db.expressions import NowPlus
from ..db.inserts import can_leave_out, columns_of, insert_values
from ..db.notifications import wake_after_commit
from ..db.now import Now
from .call_builder import Arguments, CallBuilder, parameters_of
from .task import HorsiesTask

if TYPE_CHECKING:
    from .task_run import TaskRun

#: The retry policy of a delayed call. Before it joins a group nothing of it has run, so a retry is always safe.
_RETRY: Final = RetryPolicy.fixed([1.0] * 10, auto_retry_for=["*"])

#: The columns of a delayed call: until it joins a group, it is a task with its own arguments and no items.
DELAYED_COLUMNS: Final[Mapping[str, Any]] = {
    "has_inputs": True,
    "is_async": False,
    "max_retries": _RETRY.max_retries,
    "retry_policy": _RETRY.as_json(),
}

#: The options of a send that only fit a task of its own.
_NOT_SHARED: Final = ("unique_key", "task_id", "good_until")


@dataclass(frozen=True, slots=True)
class GroupedCall:
    """The task that a call has joined. ``is_new`` says that the call opened it."""

    id: UUID
    is_new: bool


def join(
    options: Options,
    task: HorsiesTask[..., Any],
    calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]],
    own: Mapping[str, Any] | None = None,
) -> list[GroupedCall]:
    """Add calls to the open groups of their keys, all of them or none, and return the task of each.

    ``own`` are columns for new tasks. Raises InvalidTask for an option of a single call, TypeError for positional
    arguments, ValueError for a call without a key, and TypeError or ValueError for a value that can't be stored.
    """
    gather = task.gather
    assert gather is not None  # the callers check
    checks, by_key = CallBuilder.of(task, options), dict[str, list[int]]()
    given: list[Arguments] = []
    for args, kwargs in calls:
        arguments, key = check_grouped_call(checks, task, args, kwargs)
        given.append(arguments)
        by_key.setdefault(key, []).append(len(given) - 1)
    if is_dry_run():
        return [GroupedCall(uuid7(), is_new=False) for _ in given]
    found: dict[int, GroupedCall] = {}
    group = _Group(options.database, task.task_name, gather, {**checks.columns, **(own or {})})
    with transaction.atomic(using=options.database):
        for key in sorted(by_key):  # all senders lock in the same order, which prevents deadlocks
            places = by_key[key]
            joined = group.add(key, [given[place].kwargs for place in places])
            found |= dict(zip(places, joined, strict=True))
    return [found[place] for place in range(len(given))]


def check_grouped_call(
    calls: CallBuilder, task: HorsiesTask[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Arguments, str]:
    """Return a call's arguments as an item, and the key of its group. Raises the errors of :func:`join`."""
    assert task.gather is not None  # the callers check
    for name in _NOT_SHARED:
        if (value := getattr(task, name)) is not None:
            raise InvalidTask(f"{name} is {value!r}; allowed: None, since {task.task_name} groups its calls.")
    if args:
        raise TypeError(f"{task.task_name} groups its calls; allowed: keyword arguments only.")
    item, key = calls.item(kwargs), _key(calls, task.gather, kwargs)
    if task.run_after is not None:
        _check_key_is_stable(key, calls, task.gather, item)
    return item, key


def _key(calls: CallBuilder, gather: Gather, kwargs: Mapping[str, Any]) -> str:
    """Return the key of a call; a keyed hash of it if it could reveal sensitive arguments."""
    key = gather.key(kwargs)
    return f"#{keyed_hash('gather', key)}" if calls.mask.is_revealed_by(gather.by, kwargs) else key


def _check_key_is_stable(key: str, calls: CallBuilder, gather: Gather, item: Arguments) -> None:
    """Raise ValueError if the key of a delayed call would change, or fail, when the call joins its group."""
    kwargs = decode_call([], json.loads(item.kwargs_text), typed=calls.columns["typed_payload"])[1]
    problem = f"Gather: the key of a call for later is {key!r}, and once the call is stored it"
    try:
        stored = _key(calls, gather, kwargs)
    except Exception as error:  # raised by the project's own callable
        raise ValueError(f"{problem} can't be computed: {error!r}; allowed: a key that stays the same.") from error
    if stored != key:
        raise ValueError(f"{problem} is {stored!r}; allowed: a key that stays the same.")


@dataclass(frozen=True, slots=True)
class _Group:
    """Adds calls to the groups of one task."""

    database: str
    task_name: str
    gather: Gather
    columns: Mapping[str, Any]

    def add(self, key: str, calls: Sequence[dict[str, Any]]) -> list[GroupedCall]:
        """Add calls to the open group of a key, and to new groups once that is full."""
        joined: list[GroupedCall] = []
        # The loop ends: a round without progress means that another sender has made progress.
        while rest := calls[len(joined) :]:
            joined += self._append(key, rest) or self._open(key, rest)
        return joined

    def _append(self, key: str, calls: Sequence[dict[str, Any]]) -> list[GroupedCall]:
        """Add as many calls as fit to the open group; return an empty list if no group is open."""
        from ..models import Task
        from ..models.task_item import append_items

        queue, is_async = self.columns["queue_name"], self.columns["is_async"]
        rows = Task.objects.using(self.database).open_group(self.task_name, queue, key)
        locked: Any = rows.lock(skip=False).values_list("pk", "item_count").first()
        if locked is None:
            return []
        task_id, count = locked
        calls = calls[: max(0, self.gather.max_size - count)]
        append_items(self.database, task_id, count, calls)
        is_full = count + len(calls) >= self.gather.max_size
        rows.filter(pk=task_id).update(
            item_count=count + len(calls), **(_GROUP_CLOSED if is_full else self._extend_deadline())
        )
        if is_full:
            wake_after_commit(self.database, queue, is_async=is_async)
        return [GroupedCall(task_id, is_new=False)] * len(calls)

    def _open(self, key: str, calls: Sequence[dict[str, Any]]) -> list[GroupedCall]:
        """Open a group with as many calls as fit; return an empty list if another sender has just opened one."""
        from ..models.task_item import append_items

        task_id, calls = uuid7(), calls[: self.gather.max_size]
        is_full = len(calls) == self.gather.max_size
        waits = [
            seconds for seconds in (self.gather.max_delay_seconds, self.gather.quiet_seconds) if seconds is not None
        ]
        times = _GROUP_CLOSED if is_full else {"group_key": key, "deferred": True, "enqueued_at": NowPlus(min(waits))}
        values = {**self.columns, "id": task_id, "has_inputs": True, "item_count": len(calls), **times}
        if not self._is_inserted(values):
            return []
        append_items(self.database, task_id, 0, calls)
        queue, is_async = self.columns["queue_name"], self.columns["is_async"]
        wake_after_commit(self.database, queue, later=not is_full, is_async=is_async)
        return [GroupedCall(task_id, is_new=place == 0) for place in range(len(calls))]

    def _is_inserted(self, values: Mapping[str, Any]) -> bool:
        from ..models import Task

        # A database without ON CONFLICT DO NOTHING has no partial unique index either, so the INSERT can't conflict.
        columns = columns_of(Task, ["id"], self.database)
        insert = insert_values(Task, values, self.database, returning=columns, if_free=can_leave_out(self.database))
        return insert.first(self.database) is not None

    def _extend_deadline(self) -> dict[str, Any]:
        """Return the columns that move the deadline after a new call, but not beyond the group's maximum age."""
        if (silence := self.gather.quiet_seconds) is None:
            return {}
        if (age := self.gather.max_delay_seconds) is None:
            return {"enqueued_at": NowPlus(silence), "deferred": True}
        last = models.ExpressionWrapper(F("sent_at") + timedelta(seconds=age), models.DateTimeField())
        is_later = When(sent_at__gt=NowPlus(-age), then=Value(True))
        return {"enqueued_at": Least(NowPlus(silence), last), "deferred": Case(is_later, default=Value(False))}


#: The columns that close a group: it is due, and takes no more calls.
_GROUP_CLOSED: Final[dict[str, Any]] = {"group_key": None, "enqueued_at": Now(), "deferred": False}


def arguments(run: TaskRun, task: FrameworkTask[..., Any]) -> dict[str, Any]:
    """Return the argument of a grouped task: the list of its calls, in the order of their arrival.

    Returns an empty dict for a delayed call, which has no items and must join a group now.
    """
    from ..models import TaskItem

    items = TaskItem.objects.using(run.database).filter(task=run.task_id).order_by("position")
    texts = items.values_list(Cast("kwargs", TextField()), flat=True)
    calls = [decode_call([], json.loads(text), typed=run.is_typed)[1] for text in texts]
    return {parameters_of(task.func, task.takes_context).own[0]: calls} if calls else {}
