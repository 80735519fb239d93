"""Deduplication: resolves the conflict of a call with the task that has its ``task_id`` or unique key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

from django.db.models import BooleanField, Case, DateTimeField, F, Q, Value, When
from django.db.models.functions import Least

from ..core.exceptions import PayloadMismatch, UniqueConflict
from ..core.registry import registry
from ..core.status import TaskStatus
from ..core.unique import Unique, UniqueUntil
from ..db.expressions import NowPlus
from ..db.now import Now

if TYPE_CHECKING:
    from ..models import Task as TaskRow
    from ..models.transitions import TaskQuerySet
    from .insert import NewRow

#: The columns that must be equal in two sends with the same ``task_id``.
_PAYLOAD: Final = ("task_name", "args", "kwargs", "queue_name", "priority", "good_until", "run_after")

#: The columns that ``on_conflict="replace"`` leaves unchanged.
_REPLAYED: Final = frozenset({"id", "unique_key", "unique_until", "unique_expires_at"})

#: The columns of a call without a concurrency limit. If the task was blocked, it can run from now on.
_UNLIMITED: Final[Mapping[str, Any]] = {
    "limit_key": None,
    "blocked": False,
    "released_at": Case(When(blocked=True, then=Now()), default=F("released_at"), output_field=DateTimeField()),
}

#: The columns that ``on_conflict="replace"`` resets, since they belong to the replaced arguments.
_NEW_TASK: Final[Mapping[str, Any]] = {
    "retry_count": 0,
    **dict.fromkeys(("next_retry_at", "progress", "checkpoint", "about_model", "about_id")),
}


def holder_of(row: NewRow) -> TaskRow | None:
    """Return the task that takes the place of a row; None if the row can be inserted by now.

    With ``on_conflict="replace"`` that task has the row's columns. Raises PayloadMismatch and UniqueConflict.
    """
    from ..models import Task

    rows, task = Task.objects.using(row.database), row.calls.task
    if task.task_id is not None and (same := rows.filter(pk=row.id).first()):
        _check_same_call(row, same)
        return same
    key = row.arguments.unique_key or task.unique_key
    if key is None:
        return None
    is_over = Case(When(unique_expires_at__lte=Now(), then=True), default=False, output_field=BooleanField())
    holder: Any = rows.holding_unique_key(key).annotate(is_over=is_over).first()
    if holder is None:
        return None
    held = rows.holding_unique_key(key).filter(pk=holder.pk)
    if holder.is_over:
        _release_keys(held.filter(unique_expires_at__lte=Now()))
        return None
    if task.unique is None or task.unique.on_conflict == "skip":
        return cast("TaskRow", holder)
    if task.unique.on_conflict == "raise":
        raise UniqueConflict(holder.pk, holder.status, str(holder.unique_key))
    if holder.status == TaskStatus.PENDING:
        return _replace(row, task.unique, holder, held.filter(status=TaskStatus.PENDING))
    if holder.unique_until == UniqueUntil.STARTED:
        # A worker has claimed it and read its arguments, so it counts as started.
        _release_keys(held.filter(status=TaskStatus.CLAIMED))
        return None
    raise UniqueConflict(holder.pk, holder.status, str(holder.unique_key), ": only one that waits can be replaced")


def _check_same_call(row: NewRow, same: TaskRow) -> None:
    """Raise PayloadMismatch if the task with the call's ``task_id`` is that of another call."""
    values = row.values
    if same.task_name in registry.names_of(values["task_name"]):
        values["task_name"] = same.task_name  # the row is from before the task was renamed
    if differing := [name for name in _PAYLOAD if not _is_same(values.get(name), getattr(same, name))]:
        raise PayloadMismatch(same.pk, differing)


def ids_of_holders(database: str, keys: Sequence[str | None]) -> Mapping[str | None, UUID]:
    """Return the ids of the tasks that hold unique keys, by key."""
    from ..models import Task

    is_valid = Q(unique_expires_at__isnull=True) | Q(unique_expires_at__gt=Now())
    holders: Any = Task.objects.using(database).holding_unique_key(*{str(key) for key in keys}).filter(is_valid)
    return dict(holders.values_list("unique_key", "pk"))


def _release_keys(rows: TaskQuerySet) -> None:
    rows.update(unique_until=UniqueUntil.RELEASED.value)


def _replace(row: NewRow, unique: Unique, holder: TaskRow, rows: TaskQuerySet) -> TaskRow | None:
    """Give a pending task the arguments, options and time of this call; return None if it is no longer pending."""
    from ..models import release_blocked

    values = {name: value for name, value in row.values.items() if name not in _REPLAYED}
    values = values if "limit_key" in values else {**_UNLIMITED, **values}
    if not rows.update(**{**_NEW_TASK, **values, **_time_columns(values, unique)}):
        return None
    release_blocked.release_after_commit(row.database, [holder.limit_key, row.arguments.limit_key])
    row.calls.wake_after_commit(row.database)
    if row.needs_result:
        holder.refresh_from_db()
    return holder


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
