"""Concurrency limits of nodes: a task with a limit key is blocked until the limit has room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from django.db.models import F, Value

from ...core.ids import uuid7s
from ...core.limit_terms import declared_terms
from ...db.on_commit import on_commit_robust
from ...models import Limit
from ...models.release_blocked import release_after_commit
from .context import EngineContext

_BLOCKED: Final[Mapping[str, Any]] = {"limit_key": F("limit_key"), "blocked": Value(True), "deferred": Value(True)}


def enqueue_limited(context: EngineContext, limit_keys: Mapping[int, str | None]) -> None:
    """PENDING, READY → ENQUEUED for the nodes with these keys, whose tasks are blocked until there is room."""
    if not limit_keys:
        return
    context.enqueue("limited", dict(zip(limit_keys, uuid7s(len(limit_keys)), strict=True)), _BLOCKED)
    if context.caller_notifies:
        context.limit_keys.update(key for key in limit_keys.values() if key is not None)
        return
    release_after_commit(context.database, limit_keys.values(), frees_places=False)


def insert_limited_tasks(context: EngineContext, limit_keys: Mapping[UUID, str]) -> None:
    """Insert the tasks of nodes that were inserted as ENQUEUED; each has a limit key."""
    if not limit_keys:
        return
    context.queries.insert_tasks(_BLOCKED, limit_keys)
    if context.caller_notifies:
        context.limit_keys.update(limit_keys.values())
    else:
        release_after_commit(context.database, limit_keys.values(), frees_places=False)


def create_after_commit(database: str, nodes: Iterable[tuple[str | None, str | None]]) -> None:
    """Create the limits of nodes, each given by its limit key and the name of its task, after the commit.

    Nodes that start later are then limited by workers without the code of their tasks too.
    """
    declared = {key: declared_terms(name) for key, name in nodes if key is not None}
    new = [Limit(key=key, **terms._asdict()) for key, terms in sorted(declared.items()) if terms]
    if new:
        on_commit_robust(database, Limit.objects.using(database).bulk_create, new, ignore_conflicts=True)
