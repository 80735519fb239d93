"""One node in detail: a description first, then the columns of its row; and the node that made a workflow fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from django.db.models import JSONField, Q, QuerySet
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from ...core.numbers import fill_numbers
from ...core.workflow_status import Join, NodeKind, WorkflowStatus, WorkflowTaskStatus
from ...models import TaskAttempt, Workflow, WorkflowTask
from ...ops.diagnosis.reason import and_more
from ...ops.diagnosis.waiting import reasons_of, reasons_of_node
from ...ops.payload_view.contents import PARTS, decode_text_columns, error_data, with_text_columns
from ...workflows.engine.retry_nodes import RETRYABLE
from ..formatting import as_json, cut, format_time, text_block
from ..status_text import status_badge
from .masking import mask_of_node
from .nodes import NodeLine, node_rows

#: JSON columns may be huge or deeply nested, so they are read as text.
_JSON: Final = tuple(field.name for field in WorkflowTask._meta.concrete_fields if isinstance(field, JSONField))

#: Columns that the description covers, so they are not listed again.
_SHOWN_ELSEWHERE: Final = frozenset({"workflow", "node_id", "kwargs", "result"})


def find_node(workflow: Workflow, place: int | None) -> WorkflowTask | None:
    """Return the node that the page shows in detail, if any."""
    if place is None:
        return None
    rows = node_rows(workflow).filter(task_index=place).order_by("task_index")
    small = with_text_columns(rows, *_JSON).select_related("task").defer(*_JSON, *(f"task__{name}" for name in PARTS))
    node: WorkflowTask | None = small.first()
    if node is not None:
        node.workflow = workflow
        decode_text_columns(node, *_JSON)
    return node


def node_detail(node: WorkflowTask, line: NodeLine, *, is_on_top: bool = False) -> dict[str, Any]:
    """Return a node's description, its error, its large values, and its non-empty columns, given its line in the table.

    ``is_on_top``: the top of the page already shows its error. Takes one statement if its task waits for a retry, and
    those of :func:`~horsies_django.ops.diagnosis.reasons_of` if its task has not ended.
    """
    has_error = node.error_code is not None
    attempt = _failed_attempt(node) if line.error_code and not has_error else None
    error = node_error(node) if has_error and not is_on_top else None
    return {
        "words": [(name, value) for name, value in _words(node, line) if value],
        "error": error if attempt is None else attempt_error(attempt),
        "error_heading": _("Error") if attempt is None else _("Error of attempt %d") % attempt.attempt,
        "values": [
            (name, _shown(node, column, getattr(node, column)))
            for name, column in ((_("Arguments"), "kwargs"), (_("Result"), "result"))
            if getattr(node, column) and not (column == "result" and has_error)
        ],
        "row": [
            (field.name, _shown(node, field.name, value))
            for field in node._meta.concrete_fields
            if field.name not in _SHOWN_ELSEWHERE
            and (value := getattr(node, field.attname)) not in (None, "", [], {})
            and value is not False
        ],
    }


def _words(node: WorkflowTask, line: NodeLine) -> Iterator[tuple[str, Any]]:
    yield _("State"), status_badge(node)
    yield _("Details"), _describe_work(line)
    yield _("Why it has not finished"), format_html_join(mark_safe("<br>"), "{}", zip(_reasons(node)))
    yield _("Waits for"), _sources(line)
    yield _("Starts"), _condition(node)
    yield _("Attempts"), line.attempts
    yield _("Started"), format_time(node.started_at, exactly=False) if node.started_at else ""
    yield _("Finished"), format_time(node.completed_at, exactly=False) if node.completed_at else ""
    yield _("Time"), line.time if node.completed_at else ""


def _reasons(node: WorkflowTask) -> list[str]:
    """Return why the node has not started, or else why its task is not running."""
    reasons = reasons_of_node(node)
    if not reasons and node.completed_at is None and node.task is not None:
        reasons = reasons_of(node.task, getattr(node.workflow, "now", None))
    return [
        f"{reason.words} ({format_time(reason.when, exactly=False)})" if reason.when else reason.words
        for reason in reasons
    ]


def _describe_work(line: NodeLine) -> SafeString | str:
    """Name its task, subworkflow or event, with a link to it."""
    words = line.name or line.kind
    shown: SafeString | str = format_html('<a href="{}">{}</a>', line.address, words) if line.address else words
    return format_html("{} ({})", shown, line.kind) if line.name and line.kind else shown


def _sources(line: NodeLine) -> SafeString:
    links = format_html_join(", ", '<a href="?node={}#node">{}</a>', line.waits_for)
    if not line.more:
        return links
    return format_html("{} {}", links, and_more(line.more))


def _condition(node: WorkflowTask) -> str:
    """Describe the node's start condition, if it is not that all its dependencies have ended."""
    parts = []
    if node.join == Join.ANY:
        parts.append(_("when one of these has completed"))
    elif node.join == Join.QUORUM:
        parts.append(fill_numbers(_("when %d of these have completed"), node.min_success or 1))
    elif node.allow_failed_deps:
        parts.append(_("also after failed or skipped nodes"))
    if node.run_when:
        parts.append(_("if %s returns true") % node.run_when)
    if node.skip_when:
        parts.append(_("unless %s returns true") % node.skip_when)
    return "; ".join(parts)


def _failed_attempt(node: WorkflowTask) -> TaskAttempt | None:
    """Return the last attempt of its task if it ended with an error."""
    attempts = TaskAttempt.objects.using(node._state.db).filter(task=node.task_id)
    last: TaskAttempt | None = attempts.order_by("-attempt").first()
    return last if last is not None and last.error_code else None


def _shown(node: WorkflowTask, name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return format_time(value, exactly=False)
    if not isinstance(value, dict | list):
        return str(value)
    mask = mask_of_node(node)
    return as_json(mask.apply(name, value), mask)


# The node that failed.

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
