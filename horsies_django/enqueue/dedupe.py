"""What becomes of a call whose place is taken: by its ``task_id`` or by its unique key."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.db.models import BooleanField, Case, F, Value, When
from django.db.models.functions import Least, Now

from ..core.exceptions import PayloadMismatch, UniqueConflict
from ..core.registry import registry
from ..core.status import TaskStatus
from ..core.unique import Unique, UniqueUntil
from ..db import notifications
from ..db.expressions import NowPlus
from .pending_insert import EnqueueResult, PendingInsert, release_after_commit

if TYPE_CHECKING:
    from ..models import Task as TaskRow
    from ..models.transitions import TaskQuerySet

#: What has to be the same in two sends with one ``task_id``.
_PAYLOAD: Final = ("task_name", "args", "kwargs", "queue_name", "priority", "good_until", "run_after")

#: Times that an INSERT is tried against tasks that hold its key and end, or begin, before they can be looked at.
_TRIES: Final = 50

#: What a call that replaces another leaves as it is.
_REPLAYED: Final = frozenset({"id", "unique_key", "unique_until", "unique_expires_at"})

#: What a call with no limit says of it.
_UNLIMITED: Final[Mapping[str, Any]] = {"limit_key": None, "blocked": False}

#: What was of the arguments that are replaced.
_NEW_TASK: Final[Mapping[str, Any]] = {"retry_count": 0, "next_retry_at": None, "progress": None, "checkpoint": None}


def insert_once(draft: PendingInsert) -> EnqueueResult:
    """Insert a row unless its ``task_id`` or its unique key is taken; then do what its ``unique`` says.

    Raises PayloadMismatch and UniqueConflict.
    """
    for _ in range(_TRIES):
        if sent := draft.insert_if_free() or resolve_conflict(draft):
            return sent
    return draft.insert()  # whatever it is that is in its way, this raises it


def resolve_conflict(draft: PendingInsert) -> EnqueueResult | None:
    """Return the task that stands where a row can't go; None if its place may be free by now. Raises as above."""
    from ..models import Task

    rows = Task.objects.using(draft.database)
    if same := rows.filter(pk=draft.id).first() if draft.has_given_id else None:
        sent = {**draft.values}
        if same.task_name in registry.names_of(sent["task_name"]):
            sent["task_name"] = same.task_name  # the row is from before the task was renamed
        differing = [name for name in _PAYLOAD if not _is_same(sent.get(name), getattr(same, name))]
        if differing:
            raise PayloadMismatch(same.pk, differing)
        return EnqueueResult(same.pk, same, is_new=False)
    key = draft.values["unique_key"]
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
    return _resolve(draft, holder, mine)


def _resolve(draft: PendingInsert, holder: TaskRow, rows: TaskQuerySet) -> EnqueueResult | None:
    unique = draft.unique
    if unique is None or unique.on_conflict == "skip":
        return EnqueueResult(holder.pk, holder, is_new=False)
    if unique.on_conflict == "raise":
        raise UniqueConflict(holder.pk, holder.status, str(holder.unique_key))
    if holder.status == TaskStatus.PENDING:
        return _replace(draft, unique, holder, rows.filter(status=TaskStatus.PENDING))
    if holder.unique_until == UniqueUntil.STARTED:
        # A worker has it, and has read its arguments: it is as good as begun.
        _release_keys(rows.filter(status=TaskStatus.CLAIMED))
        return None
    raise UniqueConflict(holder.pk, holder.status, str(holder.unique_key), ": only one that waits can be replaced")


def _release_keys(rows: TaskQuerySet) -> None:
    rows.update(unique_until=UniqueUntil.RELEASED.value)


def _replace(draft: PendingInsert, unique: Unique, holder: TaskRow, rows: TaskQuerySet) -> EnqueueResult | None:
    """Give a task that waits the arguments, options and time of this call; None if it waits no more."""
    given = {name: value for name, value in draft.values.items() if name not in _REPLAYED}
    values = {**_UNLIMITED, **given}
    if not rows.update(**_NEW_TASK, **values | _time_columns(values, unique)):
        return None
    release_after_commit(draft.database, [holder.limit_key, draft.values.get("limit_key")], draft.limit)
    wake = draft.task_ready
    notifications.wake_after_commit(draft.database, wake.queue_name, later=wake.later, is_async=wake.is_async)
    if draft.with_row:
        holder.refresh_from_db()
    return EnqueueResult(holder.pk, holder, is_new=False)


def _time_columns(values: Mapping[str, Any], unique: Unique) -> dict[str, Any]:
    """When it is due. One that is due at once, and was already, keeps its place among others."""
    due = values.get("run_after")
    if unique.delay is not None and unique.limit is not None:
        due = Least(NowPlus(unique.delay.total_seconds()), F("sent_at") + Value(unique.limit))
    return {
        "run_after": due,
        "enqueued_at": Least(F("enqueued_at"), Now()) if due is None else due,
        "deferred": values.get("deferred", False),
    }


def _is_same(sent: Any, stored: Any) -> bool:
    """Whether a stored value is what was sent, as far as any database keeps it."""
    match sent:
        case NowPlus():
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
