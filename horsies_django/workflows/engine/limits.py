"""Concurrency limits of nodes: a task with a limit key is blocked until the limit has room."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from django.db.models import F, Value

from ...core.ids import uuid7s
from ...core.limit_terms import LimitTerms, declared_terms
from ...models import release_blocked
from .context import EngineContext
from .nodes import where_in

_BLOCKED: Final[Mapping[str, Any]] = {"limit_key": F("limit_key"), "blocked": Value(True), "deferred": Value(True)}


def enqueue_limited(context: EngineContext, limit_keys: Mapping[int, str | None]) -> None:
    """PENDING, READY → ENQUEUED for the nodes with these keys, whose tasks are blocked until there is room."""
    if not limit_keys:
        return
    context.enqueue("limited", dict(zip(limit_keys, uuid7s(len(limit_keys)), strict=True)), _BLOCKED)
    if context.caller_notifies:
        context.limit_keys.update(key for key in limit_keys.values() if key is not None)
        return
    nodes = context.nodes.filter(where_in(context.database, limit_keys)).order_by()
    release_after_commit(context.database, list(nodes.values_list("limit_key", "task_name").distinct()))


def insert_limited_tasks(context: EngineContext, limits_of: Mapping[UUID, tuple[str | None, str | None]]) -> None:
    """Insert the tasks of nodes that were inserted as ENQUEUED; each has a limit key and the path of its task."""
    if not limits_of:
        return
    context.queries.insert_tasks(_BLOCKED, limits_of)
    if context.caller_notifies:
        context.limit_keys.update(limit_key for limit_key, _ in limits_of.values() if limit_key is not None)
    else:
        release_after_commit(context.database, set(limits_of.values()))


def release_after_commit(database: str, limits_of: Iterable[tuple[str | None, str | None]]) -> None:
    """Release blocked tasks of these limit keys, each with the path of its task, after the commit.

    The limits that the code declares now apply from then on, also to nodes that start later.
    """
    by_terms: dict[LimitTerms, list[str]] = defaultdict(list)
    for limit_key, path in limits_of:
        if limit_key is not None and path is not None:
            by_terms[declared_terms(path)].append(limit_key)
    for terms, limit_keys in by_terms.items():
        # Without a declared limit, or without the code, the stored limit stays.
        release_blocked.release_after_commit(database, limit_keys, terms or None)
