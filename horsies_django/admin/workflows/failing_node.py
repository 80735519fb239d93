"""The node that made a workflow fail, as its page says it first: its error in prose, and its task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from django.db.models import QuerySet
from django.utils.safestring import SafeString

from ...core.workflow_status import NodeKind, WorkflowStatus, WorkflowTaskStatus
from ...models import Workflow, WorkflowTask
from ...ops.payload_view.contents import decode_text_columns, with_text_columns
from ...workflows.engine.retry_nodes import RETRYABLE
from ..formatting import as_json, text_block
from .masking import mask_of_node
from .node_rows import node_rows
from .node_table import can_retry

#: How many maps and subworkflows are looked into, one in the other. Takes one statement each.
MAX_DEPTH: Final = 4

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


@dataclass(frozen=True, slots=True)
class FailingNode:
    """A failed node. ``inside`` are the nodes around it, from the outermost: maps and nodes of subworkflows."""

    node: WorkflowTask
    error: NodeError
    inside: tuple[WorkflowTask, ...] = ()

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
        """Whether it can be retried now."""
        row = {"status": self.node.status, "error_code": self.node.error_code}
        return self.workflow.status in (*RETRYABLE, WorkflowStatus.RUNNING) and can_retry(row)


def failing_node(workflow: Workflow) -> FailingNode | None:
    """Return the node that made a workflow fail, or the first one that failed so far; None if none did.

    For a map it is the first item that failed, for a subworkflow the node that made that fail.
    """
    if workflow.status == WorkflowStatus.COMPLETED:
        return None
    inside: list[WorkflowTask] = []
    node = _first(workflow)
    while node is not None and len(inside) < MAX_DEPTH and (deeper := _inside(node)) is not None:
        inside.append(node)
        node = deeper
    return None if node is None else FailingNode(node, node_error(node), tuple(inside))


def _first(workflow: Workflow) -> WorkflowTask | None:
    """Return the node that the workflow's error names, which a success policy may have chosen; else the first one."""
    named = workflow.error.get("node_id") if isinstance(workflow.error, dict) else None
    rows = node_rows(workflow)
    if isinstance(named, str) and "\0" not in named:
        rows = rows.filter(node_id=named)
    elif workflow.failed_index is not None:
        rows = rows.filter(task_index=workflow.failed_index)
    else:
        return None
    node = _read(rows.filter(status=_FAILED))
    if node is not None:
        node.workflow = workflow
    return node


def _inside(node: WorkflowTask) -> WorkflowTask | None:
    """Return the first failed item of a map, or the failed node of a subworkflow."""
    if node.kind == NodeKind.MAP:
        item = _read(node_rows(node.workflow).filter(map_index=node.task_index, status=_FAILED))
        if item is not None:
            item.workflow = node.workflow
        return item
    if node.kind == NodeKind.SUBWORKFLOW:
        rows = WorkflowTask.objects.using(node._state.db).filter(
            workflow__parent=node.pk, workflow__is_replaced=False, status=_FAILED
        )
        return _read(rows.select_related("workflow").defer("workflow__result", "workflow__success_policy"))
    return None


def _read(rows: QuerySet[WorkflowTask]) -> WorkflowTask | None:
    # Ordered by its position: by primary key PostgreSQL would scan the table.
    found = with_text_columns(rows, "result").defer("result", *_UNUSED).order_by("task_index").first()
    if found is not None:
        decode_text_columns(found, "result")
    node: WorkflowTask | None = found
    return node


_UNUSED: Final = ("kwargs", "metadata", "waits_for", "dependents", "args_from", "values_from", "ctx_from")


def node_error(node: WorkflowTask) -> NodeError:
    """Return the error of a failed node from its result."""
    stored = node.result.get("err") if isinstance(node.result, dict) else None
    error: Mapping[str, Any] = stored if isinstance(stored, dict) else {}
    mask = mask_of_node(node) if error.get("data") is not None else None
    data = mask.apply("result", {"err": {"data": error["data"]}}) if mask else None
    return _in_prose(error, node.error_code or "", as_json(_data_of(data), mask) if mask else "")


def workflow_error(workflow: Workflow) -> NodeError | None:
    """Return the error of a workflow that no failed node explains."""
    return _in_prose(workflow.error, "", "") if isinstance(workflow.error, dict) else None


def _data_of(masked: Any) -> Any:
    error = masked.get("err") if isinstance(masked, dict) else masked
    return error.get("data") if isinstance(error, dict) else error


def _in_prose(error: Mapping[str, Any], code: str, data: SafeString | str) -> NodeError:
    exception = error.get("exception")
    exception = exception if isinstance(exception, dict) else {}
    traceback = str(exception.get("traceback") or "")
    message = str(error.get("message") or exception.get("message") or "")
    return NodeError(
        code=str(error.get("error_code") or code),
        exception_class=str(exception.get("type") or "").removeprefix("builtins."),
        message=message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…",
        data=data,
        traceback=text_block(traceback, end=True) if traceback else "",
    )
