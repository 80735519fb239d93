"""Deduplication: inserts a call, or resolves its conflict with the task that has its ``task_id`` or unique key."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.db.models import BooleanField, Case, DateTimeField, F, Value, When
from django.db.models.functions import Least

from ..core.exceptions import PayloadMismatch, UniqueConflict
from ..core.registry import registry
from ..core.status import TaskStatus
from ..core.unique import Unique, UniqueUntil
from ..db import notifications
from ..db.expressions import NowPlus
from ..db.now import Now
from .pending_insert import EnqueueResult, PendingInsert, release_after_commit

if TYPE_CHECKING:
    from ..models import Task as TaskRow
    from ..models.transitions import TaskQuerySet

#: The columns that must be equal in two sends with the same ``task_id``.
_PAYLOAD: Final = ("task_name", "args", "kwargs", "queue_name", "priority", "good_until", "run_after")

#: Maximum retries of an INSERT because the task in conflict ended, or started, before it was locked.
_TRIES: Final = 50

#: The columns that ``on_conflict="replace"`` leaves unchanged.
_REPLAYED: Final = frozenset({"id", "unique_key", "unique_until", "unique_expires_at"})

#: The columns of a call without a concurrency limit. If the task was blocked, it can run from now on.
_UNLIMITED: Final[Mapping[str, Any]] = {
    "limit_key": None,
    "blocked": False,
    "released_at": Case(When(blocked=True, then=Now()), default=F("released_at"), output_field=DateTimeField()),
}

#: The columns that ``on_conflict="replace"`` resets, since they belong to the replaced arguments.
_NEW_TASK: Final[Mapping[str, Any]] = {"retry_count": 0, "next_retry_at": None, "progress": None, "checkpoint": None}


def insert_once(pending: PendingInsert) -> EnqueueResult:
    """Insert a row, or resolve the conflict if its ``task_id`` or unique key is taken.

    Raises PayloadMismatch and UniqueConflict.
    """
    for _ in range(_TRIES):
        if sent := pending.insert_if_free() or resolve_conflict(pending):
            return sent
    return pending.insert()  # raises the database's own error if the conflict persists


def resolve_conflict(pending: PendingInsert) -> EnqueueResult | None:
    """Return the task that takes the row's place; None if the row can be inserted by now. Raises as above."""
    from ..models import Task

    rows = Task.objects.using(pending.database)
    if same := rows.filter(pk=pending.id).first() if pending.has_given_id else None:
        sent = {**pending.values}
        if same.task_name in registry.names_of(sent["task_name"]):
            sent["task_name"] = same.task_name  # the row is from before the task was renamed
        differing = [name for name in _PAYLOAD if not _is_same(sent.get(name), getattr(same, name))]
        if differing:
            raise PayloadMismatch(same.pk, differing)
        return EnqueueResult(same.pk, same, is_new=False)
    key = pending.values["unique_key"]
    if key is None:
        return None
    is_over = Case(When(unique_expires_at__lte=Now(), then=True), default=False, output_field=BooleanField())
    holder: Any = rows.holding_unique_key(key).annotate(is_over=is_over).first()
    if holder is None:
        return None
    mine = rows.holding_unique_key(key).filter(pk=holder.pk)
    if holder.is_over:
        _release_keys(mine.filter(unique_expires_at__lte=Now()))
        return None
    return _resolve(pending, holder, mine)


def _resolve(pending: PendingInsert, holder: TaskRow, rows: TaskQuerySet) -> EnqueueResult | None:
    unique = pending.unique
    if unique is None or unique.on_conflict == "skip":
        return EnqueueResult(holder.pk, holder, is_new=False)
    if unique.on_conflict == "raise":
        raise UniqueConflict(holder.pk, holder.status, str(holder.unique_key))
    if holder.status == TaskStatus.PENDING:
        return _replace(pending, unique, holder, rows.filter(status=TaskStatus.PENDING))
    if holder.unique_until == UniqueUntil.STARTED:
        # A worker has claimed it and read its arguments, so it counts as started.
        _release_keys(rows.filter(status=TaskStatus.CLAIMED))
        return None
    raise UniqueConflict(holder.pk, holder.status, str(holder.unique_key), ": only one that waits can be replaced")


def _release_keys(rows: TaskQuerySet) -> None:
    rows.update(unique_until=UniqueUntil.RELEASED.value)


def _replace(pending: PendingInsert, unique: Unique, holder: TaskRow, rows: TaskQuerySet) -> EnqueueResult | None:
    """Give a pending task the arguments, options and time of this call; return None if it is no longer pending."""
    given = {name: value for name, value in pending.values.items() if name not in _REPLAYED}
    values = given if "limit_key" in given else {**_UNLIMITED, **given}
    if not rows.update(**_NEW_TASK, **values | _time_columns(values, unique)):
        return None
    keys = [holder.limit_key, pending.values.get("limit_key")]
    release_after_commit(pending.database, keys)
    wake = pending.task_ready
    notifications.wake_after_commit(pending.database, wake.queue_name, later=wake.later, is_async=wake.is_async)
    if pending.with_row:
        holder.refresh_from_db()
    return EnqueueResult(holder.pk, holder, is_new=False)


def _time_columns(values: Mapping[str, Any], unique: Unique) -> dict[str, Any]:
    """Return the columns that say when the call is due. A call that stays due keeps its place in the queue."""
    due = values.get("run_after")
    if unique.delay is not None and unique.limit is not None:
        due = Least(NowPlus(unique.delay.total_seconds()), F("sent_at") + Value(unique.limit))
    return {
        "run_after": due,
        "enqueued_at": Least(F("enqueued_at"), Now()) if due is None else due,
        "deferred": values.get("deferred", False),
    }


def _is_same(sent: Any, stored: Any) -> bool:
    """Whether a stored value equals the one that was sent, after the changes that databases make to values."""
    match sent:
        case NowPlus():
            return True  # a delay counts from the moment of each call
        case datetime():
            # Compare timestamps: a project without time zones reads naive datetimes.
            return isinstance(stored, datetime) and sent.timestamp() == stored.timestamp()
        case dict():
            same_names = isinstance(stored, dict) and sent.keys() == stored.keys()
            return same_names and all(_is_same(sent[name], stored[name]) for name in sent)
        case list():
            same_length = isinstance(stored, list) and len(sent) == len(stored)
            return same_length and all(map(_is_same, sent, stored))
        case float():
            # PostgreSQL stores 1e22 as digits and returns an int.
            return isinstance(stored, int | float) and not isinstance(stored, bool) and sent == float(str(stored))
    return isinstance(sent, bool) == isinstance(stored, bool) and bool(sent == stored)
