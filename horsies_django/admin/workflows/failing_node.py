"""The node that made a workflow fail, as its page says it first: its error in prose, and its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db.models import QuerySet
from django.utils.safestring import SafeString

from ...core.mask import MASKED
from ...core.workflow_status import NodeKind, WorkflowStatus, WorkflowTaskStatus
from ...models import TaskAttempt, Workflow, WorkflowTask
from ...ops.payload_view.contents import decode_text_columns, with_text_columns
from ...workflows.engine.retry_nodes import RETRYABLE
from ..formatting import as_json, cut, text_block
from ..graph.boxes import GraphNode
from .masking import mask_of_node
from .node_rows import node_rows
from .node_table import can_retry

#: How many maps and subworkflows are looked into, one in the other. Takes one statement each.
MAX_DEPTH: Final = 3

#: Characters of a message on the page.
MAX_MESSAGE: Final = 2_000

_FAILED: Final = WorkflowTaskStatus.FAILED


@dataclass(frozen=True, slots=True)
class NodeError:
    """The error of a node in prose: its code, the class of its exception, its message, its data, its traceback."""

    code: str
    exception_class: str = ""
    message: str = ""
    data: SafeString | str = ""
    traceback: SafeString | str = ""


class OuterNode(NamedTuple):
    """A failed map or the failed node of a subworkflow, because of something in it."""

    key: int
    position: int
    node_id: str
    kind: str
    workflow: Workflow


@dataclass(frozen=True, slots=True)
class FailingNode:
    """A failed node. ``inside`` are the nodes around it, from the outermost."""

    node: WorkflowTask
    error: NodeError
    inside: tuple[OuterNode, ...] = ()

    @property
    def workflow(self) -> Workflow:
        """The workflow that the node belongs to: the page's own, or a subworkflow."""
        return self.node.workflow

    @property
    def task_id(self) -> UUID | None:
        """Its task, if it has one of its own."""
        return self.node.task_id if self.node.kind == NodeKind.TASK else None

    @property
    def can_retry(self) -> bool:
        """Whether it can be retried now. Only a damaged row has a negative position."""
        row = {"status": self.node.status, "error_code": self.node.error_code}
        return (
            self.workflow.status in (*RETRYABLE, WorkflowStatus.RUNNING)
            and can_retry(row)
            and self.node.task_index >= 0
        )


def failing_node(workflow: Workflow, nodes: Sequence[GraphNode]) -> FailingNode | None:
    """Return the node that made a workflow fail, or the first one that failed so far; None if none did.

    For a map it is the first item that failed, for a subworkflow the node that made that fail. ``nodes`` are those of
    the workflow's graph. Takes one statement, and one more for each subworkflow or map in a subworkflow.
    """
    if workflow.status == WorkflowStatus.COMPLETED:
        return None
    named = workflow.error.get("node_id") if isinstance(workflow.error, dict) else None
    index = workflow.failed_index
    known = next((node for node in nodes if (node.node_id == named if named else node.position == index)), None)
    if known is None:
        return None if index is None else _found(_read(_failed(workflow).filter(task_index=index)), workflow)
    inside: list[OuterNode] = []
    node: WorkflowTask | None = None
    outer = OuterNode(known.key, known.position, known.node_id, known.kind, workflow)
    while len(inside) < MAX_DEPTH and (deeper := _inside(outer)) is not None:
        inside.append(outer)
        node = deeper
        outer = OuterNode(node.pk, node.task_index, node.node_id, node.kind, node.workflow)
    if node is None:
        return _found(_read(_failed(workflow).filter(task_index=known.position)), workflow)
    return _found(node, node.workflow, tuple(inside))


def _found(node: WorkflowTask | None, workflow: Workflow, inside: tuple[OuterNode, ...] = ()) -> FailingNode | None:
    if node is None:
        return None
    node.workflow = workflow
    return FailingNode(node, node_error(node), inside)


def _failed(workflow: Workflow) -> QuerySet[WorkflowTask]:
    return node_rows(workflow).filter(status=_FAILED)


def _inside(outer: OuterNode) -> WorkflowTask | None:
    """Return the first failed item of a map, or the node that made a subworkflow fail; None for other nodes."""
    if outer.kind == NodeKind.MAP:
        item = _read(_failed(outer.workflow).filter(map_index=outer.position))
        if item is not None:
            item.workflow = outer.workflow
        return item
    if outer.kind == NodeKind.SUBWORKFLOW:
        rows = WorkflowTask.objects.using(outer.workflow._state.db).filter(
            workflow__parent=outer.key, workflow__is_replaced=False, status=_FAILED
        )
        return _read(rows.select_related("workflow").defer(*(f"workflow__{name}" for name in _UNUSED_OF_WORKFLOW)))
    return None


def _read(rows: QuerySet[WorkflowTask]) -> WorkflowTask | None:
    # Ordered by its position: by primary key PostgreSQL would scan the table.
    found = with_text_columns(rows, "result").defer("result", *_UNUSED).order_by("task_index").first()
    if found is not None:
        decode_text_columns(found, "result")
    node: WorkflowTask | None = found
    return node


_UNUSED_OF_WORKFLOW: Final = ("result", "error", "success_policy")

_UNUSED: Final = ("kwargs", "metadata", "waits_for", "dependents", "args_from", "values_from", "ctx_from")


def node_error(node: WorkflowTask) -> NodeError:
    """Return the error of a failed node from its result."""
    stored = node.result.get("err") if isinstance(node.result, dict) else None
    error: Mapping[str, Any] = stored if isinstance(stored, dict) else {}
    return _in_prose(error, node.error_code or "", _masked_data(node, error))


def attempt_error(attempt: TaskAttempt) -> NodeError:
    """Return the error of an attempt of a node's task."""
    stored = {
        "error_code": attempt.error_code,
        "message": attempt.error_message,
        "exception": {"type": attempt.exception_class, "traceback": attempt.traceback},
    }
    return _in_prose(stored, "", "")


def _masked_data(node: WorkflowTask, error: Mapping[str, Any]) -> SafeString | str:
    """Return the data of an error as JSON, masked under each name that leads to it."""
    if (value := error.get("data")) is None:
        return ""
    mask = mask_of_node(node)
    for name, around in (("result", node.result), ("err", error)):
        if mask.apply(name, around) is not around:
            return as_json(MASKED)
    return as_json(mask.apply("data", value), mask)


def workflow_error(workflow: Workflow) -> NodeError | None:
    """Return the error of a workflow that no failed node explains; what replaces it if it can't be read."""
    error = workflow.error
    if isinstance(error, dict):
        return _in_prose(error, "", "")
    return NodeError("", message=str(error)) if isinstance(error, str) else None


def _in_prose(error: Mapping[str, Any], code: str, data: SafeString | str) -> NodeError:
    exception = error.get("exception")
    exception = exception if isinstance(exception, dict) else {}
    traceback = str(exception.get("traceback") or "")
    message = str(error.get("message") or exception.get("message") or "")
    return NodeError(
        code=cut(str(error.get("error_code") or code)),
        exception_class=cut(str(exception.get("type") or "").removeprefix("builtins.")),
        message=message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…",
        data=data,
        traceback=text_block(traceback, end=True) if traceback else "",
    )
