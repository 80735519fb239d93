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

from ..core.compat import FrameworkTask
from ..core.current_task import is_dry_run
from ..core.grouping_policy import Gather
from ..core.ids import uuid7
from ..core.options import Options
from ..core.parameters import parameters_of
from ..core.serialization import decode_call
from ..db.expressions import NowPlus
from ..db.inserts import DO_NOTHING, columns_of, insert_values
from ..db.notifications import wake_after_commit
from ..db.now import Now
from .call_builder import Arguments, CallBuilder
from .call_keys import grouped_call
from .task import HorsiesTask

if TYPE_CHECKING:
    from ..steps.task_run import TaskRun


@dataclass(frozen=True, slots=True)
class GroupedCall:
    """The task that a call has joined. ``is_new`` says that the call opened it."""

    id: UUID
    is_new: bool


def join(
    options: Options,
    builder: CallBuilder,
    calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]],
    own: Mapping[str, Any],
) -> list[GroupedCall]:
    """Add calls to the open groups of their keys, all of them or none, and return the task of each.

    ``own`` are columns for new tasks. Raises the errors of :func:`~.call_keys.grouped_call`.
    """
    checked: list[Arguments] = []
    places_by_key: dict[str, list[int]] = {}
    for args, kwargs in calls:
        arguments, key = grouped_call(builder, args, kwargs)
        places_by_key.setdefault(key, []).append(len(checked))
        checked.append(arguments)
    if is_dry_run():
        return [GroupedCall(uuid7(), is_new=False) for _ in checked]
    joined: dict[int, GroupedCall] = {}
    group = _Group(options.database, builder.task, {**builder.columns, **own})
    with transaction.atomic(using=options.database):
        for key in sorted(places_by_key):  # all senders lock in the same order, which prevents deadlocks
            places = places_by_key[key]
            joined |= zip(places, group.add(key, [checked[place].kwargs for place in places]), strict=True)
    return [joined[place] for place in range(len(checked))]


@dataclass(frozen=True, slots=True)
class _Group:
    """Adds calls to the groups of one task."""

    database: str
    task: HorsiesTask[..., Any]
    columns: Mapping[str, Any]

    @property
    def gather(self) -> Gather:
        """How the task groups its calls."""
        assert self.task.gather is not None
        return self.task.gather

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
        rows = Task.objects.using(self.database).open_group(self.task.task_name, queue, key)
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
        from ..models import Task
        from ..models.task_item import append_items

        task_id, calls = uuid7(), calls[: self.gather.max_size]
        is_full = len(calls) == self.gather.max_size
        waits = [
            seconds for seconds in (self.gather.max_delay_seconds, self.gather.quiet_seconds) if seconds is not None
        ]
        times = _GROUP_CLOSED if is_full else {"group_key": key, "deferred": True, "enqueued_at": NowPlus(min(waits))}
        values = {**self.columns, "id": task_id, "has_inputs": True, "item_count": len(calls), **times}
        returning = columns_of(Task, ["id"], self.database)
        insert = insert_values(Task, values, self.database, returning=returning, on_conflict=DO_NOTHING)
        if insert.first(self.database) is None:
            return []
        append_items(self.database, task_id, 0, calls)
        queue, is_async = self.columns["queue_name"], self.columns["is_async"]
        wake_after_commit(self.database, queue, later=not is_full, is_async=is_async)
        return [GroupedCall(task_id, is_new=place == 0) for place in range(len(calls))]

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
