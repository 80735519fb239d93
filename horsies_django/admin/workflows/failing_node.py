"""The node that made a workflow fail, and its error in prose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.db.models import Q, QuerySet
from django.utils.safestring import SafeString

from ...core.workflow_status import NodeKind, WorkflowStatus, WorkflowTaskStatus
from ...models import TaskAttempt, Workflow, WorkflowTask
from ...ops.payload_view.contents import decode_text_columns, error_data, with_text_columns
from ...workflows.engine.retry_nodes import RETRYABLE
from ..formatting import as_json, cut, text_block
from .masking import mask_of_node
from .nodes import node_rows

#: How many maps and subworkflows are looked into, one in the other. Takes one statement each.
MAX_DEPTH: Final = 3

#: Characters of a message on the page.
MAX_MESSAGE: Final = 2_000

#: Large columns that the error does not need.
_UNUSED: Final = ("kwargs", "metadata", "waits_for", "dependents", "args_from", "values_from", "ctx_from")
_UNUSED_OF_WORKFLOW: Final = ("workflow__result", "workflow__error", "workflow__success_policy")


def can_retry_nodes(workflow: Workflow) -> bool:
    """Return whether the state of a workflow allows its failed nodes to be retried."""
    return workflow.status in (*RETRYABLE, WorkflowStatus.RUNNING)


def failing_nodes(workflow: Workflow) -> list[WorkflowTask]:
    """Return the node that made a workflow fail, or the first one that failed so far; an empty list if none did.

    For a map it is the first item that failed, for a subworkflow the node that made that fail: it is the last one, and
    before it are the maps and nodes of subworkflows around it, from the outermost. Takes one statement for each.
    """
    name = workflow.error.get("node_id") if isinstance(workflow.error, dict) else None
    if workflow.status == WorkflowStatus.COMPLETED or (name is None and workflow.failed_index is None):
        return []
    is_it = Q(task_index=workflow.failed_index) if name is None else Q(node_id=name)
    node, nodes = _first_failed(node_rows(workflow).filter(is_it)), list[WorkflowTask]()
    while node is not None:
        nodes.append(node)
        node = _failed_in(node) if len(nodes) <= MAX_DEPTH else None
    return nodes


def _failed_in(node: WorkflowTask) -> WorkflowTask | None:
    """Return the first failed item of a map, or the first failed node of a subworkflow; None for other nodes."""
    if node.kind == NodeKind.MAP:
        return _first_failed(node_rows(node.workflow).filter(map_index=node.task_index))
    if node.kind == NodeKind.SUBWORKFLOW:
        rows = WorkflowTask.objects.using(node._state.db)
        return _first_failed(rows.filter(workflow__parent=node.pk, workflow__is_replaced=False))
    return None


def _first_failed(rows: QuerySet[WorkflowTask]) -> WorkflowTask | None:
    failed = rows.filter(status=WorkflowTaskStatus.FAILED).select_related("workflow")
    # Ordered by its position: by primary key PostgreSQL would scan the table.
    readable = with_text_columns(failed, "result").defer("result", *_UNUSED, *_UNUSED_OF_WORKFLOW)
    node: WorkflowTask | None = readable.order_by("task_index").first()
    if node is not None:
        decode_text_columns(node, "result")
    return node


def node_error(node: WorkflowTask) -> dict[str, Any]:
    """Return the error of a failed node from its result."""
    stored = node.result.get("err") if isinstance(node.result, dict) else None
    error: Mapping[str, Any] = stored if isinstance(stored, dict) else {}
    mask = mask_of_node(node)
    data = None if error.get("data") is None else error_data(node.result, mask)
    return _in_prose({"error_code": node.error_code, **error}, "" if data is None else as_json(data, mask))


def attempt_error(attempt: TaskAttempt) -> dict[str, Any]:
    """Return the error of an attempt of a node's task."""
    exception = {"type": attempt.exception_class, "traceback": attempt.traceback}
    return _in_prose({"error_code": attempt.error_code, "message": attempt.error_message, "exception": exception})


def workflow_error(workflow: Workflow) -> dict[str, Any] | None:
    """Return the error of a workflow that no failed node explains; what replaces it if it can't be read."""
    error = workflow.error
    return _in_prose(error if isinstance(error, dict) else {"message": error}) if error else None


def _in_prose(error: Mapping[str, Any], data: SafeString | str = "") -> dict[str, Any]:
    """Return the code, the class of the exception, the message, the data and the traceback of an error."""
    exception = error.get("exception") or {}
    traceback = str(exception.get("traceback") or "")
    message = str(error.get("message") or exception.get("message") or "")
    return {
        "code": cut(str(error.get("error_code") or "")),
        "exception_class": cut(str(exception.get("type") or "").removeprefix("builtins.")),
        "message": message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…",
        "data": data,
        "traceback": text_block(traceback, end=True) if traceback else "",
    }
