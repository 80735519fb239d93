"""Limiting: nodes whose task has limits by key, which wait at the gates of their keys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from django.db.models import F, Value

from ...core.ids import uuid7s
from ...core.limit_terms import Terms, declared
from ...models import release_blocked
from .context import EngineContext
from .nodes import where_in

_BLOCKED: Final[Mapping[str, Any]] = {"limit_key": F("limit_key"), "gated": Value(True), "deferred": Value(True)}


def enqueue_limited(turn: EngineContext, limit_keys: Mapping[int, str | None]) -> None:
    """PENDING, READY → ENQUEUED for the nodes with these keys, whose tasks are let in as there is room for them."""
    if not limit_keys:
        return
    turn.enqueue("limited", dict(zip(limit_keys, uuid7s(len(limit_keys)), strict=True)), _BLOCKED)
    if turn.caller_notifies:
        turn.limit_keys.update(key for key in limit_keys.values() if key is not None)
        return
    nodes = turn.nodes.filter(where_in(turn.database, limit_keys)).order_by()
    release_after_commit(turn.database, list(nodes.values_list("limit_key", "task_name").distinct()))


def insert_limited_tasks(turn: EngineContext, said: Mapping[UUID, tuple[str | None, str | None]]) -> None:
    """Make the tasks of nodes that were inserted as ENQUEUED: by task, a limit key and the path of the task."""
    if not said:
        return
    turn.queries.insert_tasks(_BLOCKED, said)
    if turn.caller_notifies:
        turn.limit_keys.update(limit_key for limit_key, _ in said.values() if limit_key is not None)
    else:
        release_after_commit(turn.database, set(said.values()))


def release_after_commit(database: str, said: Iterable[tuple[str | None, str | None]]) -> None:
    """Look at these gates once the current transaction has committed: limit keys, each with the path of its task.

    What the code says of them now counts from then on, also for nodes that begin later.
    """
    by_terms: dict[Terms, list[str]] = defaultdict(list)
    for limit_key, path in said:
        if limit_key is not None and path is not None:
            by_terms[declared(path)].append(limit_key)
    for terms, limit_keys in by_terms.items():
        # Of one whose code says nothing of a limit, or is not here, what is known of the limit stays.
        release_blocked.admit_after_commit(database, limit_keys, terms or None)
