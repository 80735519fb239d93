"""Many calls of a task that is unique, as one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from . import waking
from .calls import Calls
from .conf import Options
from .conflicts import insert_once
from .drafts import Draft, Sent, admit_after_commit, wake_of
from .dry import is_dry
from .sending import check_for_many, draft_of, travelling
from .tasks import HorsiesTask

#: Calls that are in memory at a time, and rows of one INSERT.
_AHEAD: Final = 10_000
_ROWS: Final = 1_000


def insert_many_once(options: Options, task: HorsiesTask[..., Any], calls: Iterable[Mapping[str, Any]]) -> list[Sent]:
    """Insert one row for each dict of keyword arguments, unless its place is taken; all of it or nothing.

    The calls count in their order. Raises ValueError with a ``unique_key`` or a ``task_id``, and what
    :func:`~horsies_django.sending.insert` raises.
    """
    check_for_many(task)
    own = travelling(options, task)
    drafts = (draft_of(options, task, (), kwargs, own=own) for kwargs in calls)
    if is_dry():
        return [draft.imagined() for draft in drafts]
    sent: list[Sent] = []
    with transaction.atomic(using=options.database):
        while some := list(itertools.islice(drafts, _AHEAD)):
            sent += _insert(options.database, some)
        wake = wake_of(Calls.of(task, options).columns)
        waking.wake_after_commit(options.database, wake.queue_name, later=wake.later, is_async=wake.is_async)
    return sent


def _insert(database: str, drafts: Sequence[Draft]) -> Iterator[Sent]:
    from .models import Task

    # In the order of their keys: two that insert the same ones must not wait for each other.
    rows = [Task(**draft.values) for draft in sorted(drafts, key=lambda draft: str(draft.values["unique_key"]))]
    for first in range(0, len(rows), _ROWS):
        Task.objects.using(database).bulk_create(rows[first : first + _ROWS], ignore_conflicts=True)
    new, others = _new(database, drafts), _others(database, drafts)
    gated = [draft.values["limit_key"] for draft in drafts if draft.id in new and draft.values.get("gated")]
    admit_after_commit(database, gated, drafts[0].limit)
    for draft in drafts:
        if draft.id in new:
            yield Sent(draft.id)
        elif key := others.get(draft.values["unique_key"]):
            yield Sent(key, is_new=False)
        else:
            yield insert_once(draft)


def _new(database: str, drafts: Sequence[Draft]) -> set[UUID]:
    """The ids of those that are rows now."""
    from .models import Task

    keys = [draft.id for draft in drafts]
    parts = (keys[first : first + _ROWS] for first in range(0, len(keys), _ROWS))
    return {
        key for part in parts for key in Task.objects.using(database).filter(pk__in=part).values_list("pk", flat=True)
    }


def _others(database: str, drafts: Sequence[Draft]) -> dict[str, UUID]:
    """The tasks that stand in for calls, by their keys, where that is all there is to it."""
    from .models import Task

    keys = list(
        {str(d.values["unique_key"]) for d in drafts if d.unique is not None and d.unique.on_conflict == "skip"}
    )
    counts = Q(unique_expires_at__isnull=True) | Q(unique_expires_at__gt=Now())
    found: dict[str, UUID] = {}
    for first in range(0, len(keys), _ROWS):
        holders = Task.objects.using(database).holding(*keys[first : first + _ROWS]).filter(counts)
        found.update(holders.values_list("unique_key", "pk"))
    return found
