"""The rows of workflows and nodes as the engine reads them, and the ends of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Self, TypeAlias
from uuid import UUID

from django.db import models
from django.db.models import Q
from django.db.models.functions import Cast

from ...core.results import TaskError
from ...core.serialization import dumps
from ...core.workflow_errors import WorkflowCode
from ...core.workflow_status import Join, NodeKind, WorkflowStatus, WorkflowTaskStatus
from ...models import Task, WorkflowTask
from ...models.claims import WORKFLOW_WAIT

#: The states of a node that has a task or a subworkflow in progress.
IN_PROGRESS: Final = (WorkflowTaskStatus.ENQUEUED, WorkflowTaskStatus.RUNNING)

#: The states of a node that has not ended.
OPEN: Final = (WorkflowTaskStatus.PENDING, WorkflowTaskStatus.READY, *IN_PROGRESS)

#: Whether the conditions of a node are still to be evaluated.
IS_UNDECIDED: Final = models.ExpressionWrapper(
    Q(is_decided=False) & (Q(run_when__isnull=False) | Q(skip_when__isnull=False)), models.BooleanField()
)

#: Whether a node was skipped by its own condition.
IS_NEUTRAL: Final = models.ExpressionWrapper(
    Q(status=WorkflowTaskStatus.SKIPPED, error_code=str(WorkflowCode.CONDITION_NOT_MET)), models.BooleanField()
)

#: Whether the workflow of an ended node can't complete: the node failed, or was skipped when the workflow was stopped.
IS_UNSUCCESSFUL: Final = Q(map_index__isnull=True) & (
    Q(status=WorkflowTaskStatus.FAILED)
    | Q(status=WorkflowTaskStatus.SKIPPED)
    & ~Q(error_code__in=[str(WorkflowCode.CONDITION_NOT_MET), str(WorkflowCode.UPSTREAM_SKIPPED)])
)

#: The id of a workflow and the index of one of its nodes.
Position: TypeAlias = tuple[UUID, int]

NodeRows = models.QuerySet[WorkflowTask]


class NodeEnd(NamedTuple):
    """The end of a node. ``is_neutral`` means that its own condition has skipped it, which is no failure."""

    pk: int
    workflow_id: UUID
    task_index: int
    dependents: Sequence[int]
    map_index: int | None
    status: WorkflowTaskStatus
    is_neutral: bool = False

    @property
    def position(self) -> Position:
        """The position of the node."""
        return self.workflow_id, self.task_index


class NodeResult(NamedTuple):
    """The end of a node, with its result as JSON text and its error code."""

    end: NodeEnd
    result: str
    code: str | None = None

    @classmethod
    def err(cls, end: NodeEnd, code: str, message: str, data: Any = None) -> Self:
        """Return the end of a node with an error."""
        return cls(end, dumps(err_result(code, message, data)), str(code))


def err_result(code: str, message: str, data: Any = None) -> dict[str, Any]:
    """Return an err result in its stored form."""
    return {"err": TaskError(error_code=str(code), message=message, data=data).as_json()}


@dataclass(frozen=True, slots=True)
class NodeState:
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
    failed_deps: int
    open_ctx: int
    queue_name: str
    is_async: bool
    limit_key: str | None
    over_index: int | None
    event_name: str | None
    event_timeout: float | None

    def with_ends(self, ends: Iterable[NodeEnd]) -> NodeState:
        """Return the node with its counters updated, after some of the nodes that it waits for have ended."""
        closed = list(ends)
        ctx = set(self.ctx_from or ())
        return replace(
            self,
            open_deps=self.open_deps - len(closed),
            ok_deps=self.ok_deps + sum(end.status == WorkflowTaskStatus.COMPLETED for end in closed),
            failed_deps=self.failed_deps + sum(blocks_dependents(end) for end in closed),
            open_ctx=self.open_ctx - sum(end.task_index in ctx for end in closed),
        )

    @property
    def next_status(self) -> WorkflowTaskStatus:
        """READY or SKIPPED once that is decided, PENDING until then."""
        wanted = 1 if self.join == Join.ANY else self.min_success  # only a quorum has one
        if wanted:
            is_ready, is_lost = self.ok_deps >= wanted, self.ok_deps + self.open_deps < wanted
        else:
            is_done = self.open_deps == 0
            is_ready = is_done and (self.failed_deps == 0 or self.allow_failed_deps)
            is_lost = is_done and not is_ready
        if is_lost:
            return WorkflowTaskStatus.SKIPPED
        return WorkflowTaskStatus.READY if is_ready and self.open_ctx == 0 else WorkflowTaskStatus.PENDING

    @property
    def position(self) -> Position:
        """The position of the node."""
        return self.workflow_id, self.task_index

    def end_as(self, status: WorkflowTaskStatus, *, is_neutral: bool = False) -> NodeEnd:
        """Return its end with this status."""
        return NodeEnd(self.pk, self.workflow_id, self.task_index, self.dependents, self.map_index, status, is_neutral)


class ParentNode(NamedTuple):
    """An open node that has a subworkflow."""

    pk: int
    workflow_id: UUID
    task_index: int
    dependents: Sequence[int]
    map_index: int | None
    node_id: str
    queue_name: str
    retry_policy: Any
    task_id: UUID | None
    rebuilds: int

    def end_as(self, status: WorkflowTaskStatus) -> NodeEnd:
        """Return its end with this status."""
        return NodeEnd(self.pk, self.workflow_id, self.task_index, self.dependents, self.map_index, status)


@dataclass(slots=True)
class NodeOutcome:
    """The position and the id of a node, its status, and its result as JSON text."""

    workflow_id: UUID
    task_index: int
    node_id: str
    status: str
    result: str | None


@dataclass(slots=True)
class WorkflowState:
    """The columns of a workflow that the engine decides by, and the result that it computes."""

    id: UUID
    status: str
    on_error: str
    node_count: int
    open_count: int
    failed_index: int | None
    output_index: int | None
    parent_id: int | None
    success_policy: Sequence[Mapping[str, Any]] | None
    name: str
    error: Mapping[str, Any] | None
    is_awaited: bool
    result: Any = None

    @property
    def output(self) -> str:
        """Its result or error, as JSON text."""
        return dumps(self.result if self.status == WorkflowStatus.COMPLETED else self.error)

    @property
    def is_running(self) -> bool:
        """Whether waiting nodes may start."""
        return self.status == WorkflowStatus.RUNNING

    @property
    def required(self) -> set[int]:
        """The indexes of the nodes that its success policy names."""
        return {index for case in self.success_policy or () for index in case["required"]}


def _columns(row: type, **expressions: Any) -> tuple[Any, ...]:
    """Return the columns of a class of rows: its fields, or the expressions that take their places."""
    return tuple(expressions.get(name, name) for name in row.__annotations__)


NODE_COLUMNS: Final = _columns(NodeState, is_undecided=IS_UNDECIDED, is_neutral=IS_NEUTRAL)
PARENT_COLUMNS: Final = _columns(ParentNode)
OUTCOME_COLUMNS: Final = _columns(NodeOutcome, result=Cast("result", models.TextField()))
WORKFLOW_COLUMNS: Final = _columns(WorkflowState)[:-1]

#: Whether a node waits for other nodes, or as a map for its items.
IS_WAITING: Final = Q(status=WorkflowTaskStatus.PENDING) | Q(kind=NodeKind.MAP, status=WorkflowTaskStatus.RUNNING)


def read_nodes(rows: NodeRows) -> list[NodeState]:
    """Read nodes."""
    return [NodeState(*row) for row in rows.values_list(*NODE_COLUMNS)]


def read_ends(rows: NodeRows, status: WorkflowTaskStatus) -> list[NodeEnd]:
    """Read nodes as ends with this status."""
    return [NodeEnd._make((*row, status, False)) for row in rows.values_list(*NodeEnd._fields[:5])]


def blocks_dependents(end: NodeEnd) -> bool:
    """Whether an end counts as a failed dependency of the nodes that wait for it."""
    return end.status != WorkflowTaskStatus.COMPLETED and not end.is_neutral


def wake_awaiting_after_commit(database: str, awaited: Iterable[UUID]) -> None:
    """Wake the tasks that wait for the ends of these workflows, once the current transaction has committed."""
    Task.objects.using(database).wake_waiting_after_commit([f"{WORKFLOW_WAIT}{key}" for key in awaited])


def is_item_of(end: NodeEnd, node: NodeState) -> bool:
    """Whether an end is that of an item of this map."""
    return node.kind == NodeKind.MAP and end.map_index == node.task_index
