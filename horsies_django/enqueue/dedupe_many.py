"""``send_many()`` for tasks with ``unique``.

Keys are processed in sorted order, and each row is inserted or locked before the next key. So two senders of the same
keys can't deadlock: one waits for the other.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db import transaction
from django.db.models import Q

from ..core.dry_run import is_dry_run
from ..core.ids import uuid7
from ..core.options import Options
from ..db import notifications, postgres
from ..db.now import Now
from .call_builder import Arguments, CallBuilder, task_ready_of
from .dedupe import insert_once, resolve_conflict
from .insert import build_insert, check_call, inject_headers, pending_insert_of
from .insert_many import check_for_many
from .pending_insert import EnqueueResult, PendingInsert, release_after_commit
from .task import HorsiesTask

#: Maximum calls that are decoded at a time, and maximum rows of one INSERT.
_CALLS_AHEAD: Final = 10_000
_ROWS: Final = 1_000


class _KeyedCall(NamedTuple):
    """A checked call in a compact form, sortable by key, then by position."""

    key: str
    place: int
    id: UUID
    text: str
    limit_key: str | None


def insert_many_once(
    options: Options, task: HorsiesTask[..., Any], calls: Iterable[Mapping[str, Any]]
) -> list[EnqueueResult]:
    """Insert one row for each dict of keyword arguments, or resolve its conflict; all of them or none.

    Calls with the same key are processed in their order. Raises ValueError if the task has a ``unique_key`` or a
    ``task_id``, and the errors of :func:`~horsies_django.enqueue.insert.insert`.
    """
    check_for_many(task)
    builder, database = CallBuilder.of(task, options), options.database
    own = inject_headers(options, builder)
    if is_dry_run():
        return [pending_insert_of(database, builder, (), kwargs, own=own).dry_run() for kwargs in calls]
    waiting = iter(sorted(_check_calls(builder, calls)))
    sent: dict[int, EnqueueResult] = {}
    with transaction.atomic(using=database):
        while chunk := list(itertools.islice(waiting, _CALLS_AHEAD)):
            inserts = [_pending_insert(database, builder, call, own) for call in chunk]
            sent |= zip((call.place for call in chunk), _insert(database, inserts), strict=True)
        wake = task_ready_of(builder.columns)
        notifications.wake_after_commit(database, wake.queue_name, later=wake.later, is_async=wake.is_async)
    return [sent[place] for place in range(len(sent))]


def _check_calls(builder: CallBuilder, calls: Iterable[Mapping[str, Any]]) -> Iterator[_KeyedCall]:
    for place, kwargs in enumerate(calls):
        arguments, key = check_call(builder, (), kwargs)
        yield _KeyedCall(str(key), place, uuid7(), arguments.kwargs_text, arguments.limit_key)


def _pending_insert(database: str, builder: CallBuilder, call: _KeyedCall, own: Mapping[str, Any]) -> PendingInsert:
    arguments = Arguments([], json.loads(call.text), "[]", call.text, call.limit_key)
    return build_insert(database, builder, arguments, call.key, own={**own, "id": call.id})


def _insert(database: str, inserts: Sequence[PendingInsert]) -> Iterator[EnqueueResult]:
    """Insert rows in the order of their keys, or resolve their conflicts."""
    _insert_free(database, inserts)
    new, others = _inserted_ids(database, inserts), _ids_of_holders(database, inserts)
    blocked = [
        pending.values["limit_key"] for pending in inserts if pending.id in new and pending.values.get("blocked")
    ]
    release_after_commit(database, blocked, frees_places=False)
    for pending in inserts:
        if pending.id in new:
            yield EnqueueResult(pending.id)
        elif key := others.get(pending.values["unique_key"]):
            yield EnqueueResult(key, is_new=False)
        else:
            yield resolve_conflict(pending) or insert_once(pending)


def _insert_free(database: str, inserts: Sequence[PendingInsert]) -> None:
    """Insert the first row of each key that is free. With ``on_conflict="replace"``, lock the rows that hold keys."""
    from ..models import Task

    firsts = [next(same) for _, same in itertools.groupby(inserts, key=lambda pending: pending.values["unique_key"])]
    for start in range(0, len(firsts), _ROWS):
        rows = [Task(**pending.values) for pending in firsts[start : start + _ROWS]]
        if postgres.can_listen(database) and _changes_existing(firsts[0]):
            postgres.insert_or_lock(database, rows, "horsies_live_task_has_its_key_alone")
        else:
            Task.objects.using(database).bulk_create(rows, ignore_conflicts=True)


def _changes_existing(pending: PendingInsert) -> bool:
    return pending.unique is not None and pending.unique.on_conflict == "replace"


def _inserted_ids(database: str, inserts: Sequence[PendingInsert]) -> set[UUID]:
    """Return the ids of the calls that were inserted."""
    from ..models import Task

    keys = [pending.id for pending in inserts]
    parts = (keys[first : first + _ROWS] for first in range(0, len(keys), _ROWS))
    return {
        key for part in parts for key in Task.objects.using(database).filter(pk__in=part).values_list("pk", flat=True)
    }


def _ids_of_holders(database: str, inserts: Sequence[PendingInsert]) -> dict[str, UUID]:
    """Return the ids of the tasks that hold keys, by key, for calls with ``on_conflict="skip"``."""
    from ..models import Task

    keys = list(
        {str(d.values["unique_key"]) for d in inserts if d.unique is not None and d.unique.on_conflict == "skip"}
    )
    is_valid = Q(unique_expires_at__isnull=True) | Q(unique_expires_at__gt=Now())
    found: dict[str, UUID] = {}
    for first in range(0, len(keys), _ROWS):
        holders: Any = Task.objects.using(database).holding_unique_key(*keys[first : first + _ROWS]).filter(is_valid)
        found.update(holders.values_list("unique_key", "pk"))
    return found
