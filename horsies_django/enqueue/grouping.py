"""Gathering: calls with one key become the items of one task, which is due later.

A key has one open group in a queue at most: a task that was never claimed. Whoever adds a call holds the row's lock, so
the size is exact; the first claim closes the group for good, and the next call opens another one.
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
from django.db.models.functions import Cast, Least, Now

from ..core.compat import FrameworkTask, InvalidTask
from ..core.dry_run import is_dry
from ..core.grouping_policy import Gather
from ..core.ids import uuid7
from ..core.mask import keyed_hash
from ..core.options import Options
from ..core.retry import RetryPolicy
from ..core.serialization import decode_call
from ..db.expressions import NowPlus
from ..db.inserts import Insert, can_leave_out, columns_of
from ..db.notifications import wake_after_commit
from .call_builder import Arguments, CallBuilder, parameters_of
from .task import HorsiesTask

if TYPE_CHECKING:
    from .context import TaskRun

#: Nothing of a call has run before it has joined, so that is no double if a worker dies over it.
_RETRY: Final = RetryPolicy.fixed([1.0] * 10, auto_retry_for=["*"])

#: The columns of a call that is sent for later: until it joins, a task with its own arguments and no items.
DELAYED_COLUMNS: Final[Mapping[str, Any]] = {
    "has_inputs": True,
    "is_async": False,
    "max_retries": _RETRY.max_retries,
    "retry_policy": _RETRY.as_json(),
}

#: What of a send is about one task alone.
_NOT_SHARED: Final = ("unique_key", "task_id", "good_until")


@dataclass(frozen=True, slots=True)
class GroupedCall:
    """The task that a call has joined, and whether it is new with it."""

    id: UUID
    is_new: bool


def join(
    options: Options,
    task: HorsiesTask[..., Any],
    calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]],
    own: Mapping[str, Any] | None = None,
) -> list[GroupedCall]:
    """Add calls to the open groups of their keys, all of them or none, and return the task of each.

    ``own`` are columns of the tasks that are new. Raises InvalidTask for an option that is for one call alone,
    TypeError for positional arguments, ValueError for a call without a key, and what can't be stored.
    """
    gather = task.gather
    assert gather is not None  # or who asks?
    checks, by_key = CallBuilder.of(task, options), dict[str, list[int]]()
    given: list[Arguments] = []
    for args, kwargs in calls:
        arguments, key = check_call(checks, task, args, kwargs)
        given.append(arguments)
        by_key.setdefault(key, []).append(len(given) - 1)
    if is_dry():
        return [GroupedCall(uuid7(), is_new=False) for _ in given]
    found: dict[int, GroupedCall] = {}
    group = _Group(options.database, task.task_name, gather, {**checks.columns, **(own or {})})
    with transaction.atomic(using=options.database):
        for key in sorted(by_key):  # in one order, or two might wait for each other
            places = by_key[key]
            joined = group.add(key, [given[place].kwargs for place in places])
            found |= dict(zip(places, joined, strict=True))
    return [found[place] for place in range(len(given))]


def check_call(
    calls: CallBuilder, task: HorsiesTask[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Arguments, str]:
    """Return a call as an item has it, and the key of its group. Raises as :func:`join`."""
    assert task.gather is not None  # or who asks?
    for name in _NOT_SHARED:
        if (value := getattr(task, name)) is not None:
            raise InvalidTask(f"{name} is {value!r}; allowed: None, for the calls of {task.task_name} are gathered.")
    if args:
        raise TypeError(f"{task.task_name} takes keyword arguments only, for its calls are gathered.")
    item, key = calls.item(kwargs), _key(calls, task.gather, kwargs)
    if task.run_after is not None:
        _check_key_is_stable(key, calls, task.gather, item)
    return item, key


def _key(calls: CallBuilder, gather: Gather, kwargs: Mapping[str, Any]) -> str:
    """Return the key of a call; a keyed hash of it where it could tell what is sensitive of the arguments."""
    key = gather.key(kwargs)
    return f"#{keyed_hash('gather', key)}" if calls.mask.is_told_by(gather.by, kwargs) else key


def _check_key_is_stable(key: str, calls: CallBuilder, gather: Gather, item: Arguments) -> None:
    """Raise ValueError for the key of a call for later that would be another, or none, when the call joins."""
    kwargs = decode_call([], json.loads(item.kwargs_text), typed=calls.columns["typed_payload"])[1]
    problem = f"Gather: the key of a call for later is {key!r}, and once the call is stored it"
    try:
        stored = _key(calls, gather, kwargs)
    except Exception as error:  # of a project's own callable
        raise ValueError(f"{problem} can't be told: {error!r}; allowed: a key that stays the same.") from error
    if stored != key:
        raise ValueError(f"{problem} is {stored!r}; allowed: a key that stays the same.")


@dataclass(frozen=True, slots=True)
class _Group:
    """The groups of one task."""

    database: str
    task_name: str
    gather: Gather
    columns: Mapping[str, Any]

    def add(self, key: str, calls: Sequence[dict[str, Any]]) -> list[GroupedCall]:
        """Put calls into the open group of a key, and into new ones once that is full."""
        joined: list[GroupedCall] = []
        # It has no end but its own: each turn that gets nowhere is one in which another sender got on.
        while rest := calls[len(joined) :]:
            joined += self._append(key, rest) or self._open(key, rest)
        return joined

    def _append(self, key: str, calls: Sequence[dict[str, Any]]) -> list[GroupedCall]:
        """Add calls to the group that is open, as many as it has room for; none if there is no such group."""
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
        """Open a group with calls, as many as it has room for; with none if another has opened one by now."""
        from ..models.task_item import append_items

        task_id, calls = uuid7(), calls[: self.gather.max_size]
        is_full = len(calls) == self.gather.max_size
        waits = [seconds for seconds in (self.gather.age, self.gather.silence) if seconds is not None]
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

        # Where an INSERT can't leave out a row there is no partial index either, so nothing is in its way.
        found = columns_of(Task, ["id"], self.database)
        insert = Insert(Task, values, self.database, returning=found, if_free=can_leave_out(self.database))
        return insert.run(self.database) is not None

    def _extend_deadline(self) -> dict[str, Any]:
        """What the latest call writes of when a group is due: never later than its first one allows."""
        if (silence := self.gather.silence) is None:
            return {}
        if (age := self.gather.age) is None:
            return {"enqueued_at": NowPlus(silence), "deferred": True}
        last = models.ExpressionWrapper(F("sent_at") + timedelta(seconds=age), models.DateTimeField())
        is_later = When(sent_at__gt=NowPlus(-age), then=Value(True))
        return {"enqueued_at": Least(NowPlus(silence), last), "deferred": Case(is_later, default=Value(False))}


#: What closes a group: it is due, and no call is added any more.
_GROUP_CLOSED: Final[dict[str, Any]] = {"group_key": None, "enqueued_at": Now(), "deferred": False}


def arguments(run: TaskRun, task: FrameworkTask[..., Any]) -> dict[str, Any]:
    """Return the argument of a body whose calls were gathered: the list of them, in the order they came in.

    Nothing, if none were: then it is a call that was sent for later, and has to join now.
    """
    from ..models import TaskItem

    items = TaskItem.objects.using(run.database).filter(task=run.task_id).order_by("position")
    texts = items.values_list(Cast("kwargs", TextField()), flat=True)
    calls = [decode_call([], json.loads(text), typed=run.is_typed)[1] for text in texts]
    return {parameters_of(task.func, task.takes_context).own[0]: calls} if calls else {}
