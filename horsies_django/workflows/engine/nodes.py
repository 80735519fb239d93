"""Nodes, as much of them as it takes to decide what becomes of them, and their ends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from uuid import UUID

from django.db import connections, models
from django.db.models import Q

from ...expressions import IsAmong, json_array, spelled
from ...models import WorkflowTask
from ..codes import WorkflowCode
from ..states import Join, NodeKind, WorkflowTaskStatus

#: The states of a node that has a task, or a child, that is to end.
BEGUN: Final = (WorkflowTaskStatus.ENQUEUED, WorkflowTaskStatus.RUNNING)

#: The states of a node that has not ended.
OPEN: Final = (WorkflowTaskStatus.PENDING, WorkflowTaskStatus.READY, *BEGUN)

#: Whether a node's conditions are still to be looked at.
IS_UNDECIDED: Final = models.ExpressionWrapper(
    Q(is_decided=False) & (Q(run_when__isnull=False) | Q(skip_when__isnull=False)), models.BooleanField()
)

#: Whether its own condition has skipped a node.
IS_NEUTRAL: Final = models.ExpressionWrapper(
    Q(status=WorkflowTaskStatus.SKIPPED, error_code=str(WorkflowCode.CONDITION_NOT_MET)), models.BooleanField()
)

NodeRows = models.QuerySet[WorkflowTask]


class Settled(NamedTuple):
    """A node that has ended. ``is_neutral``: its own condition has skipped it, which is no failure (P-05)."""

    pk: int
    workflow_id: UUID
    task_index: int
    status: WorkflowTaskStatus
    dependents: Sequence[int]
    map_index: int | None
    is_neutral: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A node that has not ended."""

    pk: int
    workflow_id: UUID
    task_index: int
    kind: str
    status: str
    join: str
    min_success: int | None
    allow_failed_deps: bool
    ctx_from: Sequence[int] | None
    dependents: Sequence[int]
    map_index: int | None
    is_undecided: bool
    is_neutral: bool
    open_deps: int
    ok_deps: int
    bad_deps: int
    open_ctx: int
    queue_name: str
    is_async: bool
    limit_key: str | None

    def after(self, ends: Iterable[Settled]) -> Node:
        """Return it after some of what it waits for has ended."""
        closed = list(ends)
        ctx = set(self.ctx_from or ())
        return replace(
            self,
            open_deps=self.open_deps - len(closed),
            ok_deps=self.ok_deps + sum(end.status == WorkflowTaskStatus.COMPLETED for end in closed),
            bad_deps=self.bad_deps + sum(is_bad(end) for end in closed),
            open_ctx=self.open_ctx - sum(end.task_index in ctx for end in closed),
        )

    @property
    def verdict(self) -> WorkflowTaskStatus:
        """READY or SKIPPED once that can be said, PENDING until then (W-20 … W-24)."""
        if self.join == Join.ANY:
            wanted = 1
        elif self.join == Join.QUORUM:
            wanted = self.min_success or 1
        else:
            wanted = 0
        if wanted:
            is_ready, is_lost = self.ok_deps >= wanted, self.ok_deps + self.open_deps < wanted
        else:
            is_done = self.open_deps == 0
            is_ready = is_done and (self.bad_deps == 0 or self.allow_failed_deps)
            is_lost = is_done and not is_ready
        if is_lost:
            return WorkflowTaskStatus.SKIPPED
        return WorkflowTaskStatus.READY if is_ready and self.open_ctx == 0 else WorkflowTaskStatus.PENDING

    def settled(self, status: WorkflowTaskStatus, *, is_neutral: bool = False) -> Settled:
        """Return its end."""
        return Settled(self.pk, self.workflow_id, self.task_index, status, self.dependents, self.map_index, is_neutral)


#: What a :class:`Node` is read from.
COLUMNS: Final = (
    "pk",
    "workflow_id",
    "task_index",
    "kind",
    "status",
    "join",
    "min_success",
    "allow_failed_deps",
    "ctx_from",
    "dependents",
    "map_index",
    IS_UNDECIDED,
    IS_NEUTRAL,
    "open_deps",
    "ok_deps",
    "bad_deps",
    "open_ctx",
    "queue_name",
    "is_async",
    "limit_key",
)


def read(rows: NodeRows) -> list[Node]:
    """Read nodes."""
    return [Node(*row) for row in rows.values_list(*COLUMNS)]


def among(database: str, keys: Collection[UUID] | Collection[int], column: str = "pk") -> Q:
    """Whether a key is one of these, however many: with ``__in`` each is a parameter, of which SQLite takes 32,766."""
    if not keys:
        return Q(pk__in=())
    connection = connections[database]
    return Q(IsAmong(json_array(spelled(keys, connection), connection), column))


def is_bad(end: Settled) -> bool:
    """Whether an end keeps what waits for it from running, unless that allows it."""
    return end.status != WorkflowTaskStatus.COMPLETED and not end.is_neutral


def is_item_of(end: Settled, node: Node) -> bool:
    """Whether an end is that of an item of a map."""
    return node.kind == NodeKind.MAP and end.map_index == node.task_index
