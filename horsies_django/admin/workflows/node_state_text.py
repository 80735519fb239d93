"""Explain why a workflow node has not started or not ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...core.numbers import fill_numbers
from ...core.status import TaskStatus
from ...core.workflow_status import WORKFLOW_TERMINAL_STATES, Join, NodeKind, WorkflowStatus, WorkflowTaskStatus
from ...models import Workflow
from ..formatting import format_time


def node_state_text(workflow: Workflow, node: Mapping[str, Any]) -> str:
    """Return what a node waits for; empty if it has ended. ``node`` has the columns of the node table."""
    describe = {
        WorkflowTaskStatus.PENDING: _pending,
        WorkflowTaskStatus.READY: _ready,
        WorkflowTaskStatus.ENQUEUED: _enqueued,
        WorkflowTaskStatus.RUNNING: _running,
    }.get(node["status"])
    return describe(workflow, node) if describe else ""


def _ready(workflow: Workflow, node: Mapping[str, Any]) -> str:
    if workflow.status == WorkflowStatus.PAUSED:
        return _("Ready to start, but the workflow is paused.")
    return _("About to start.")


def _pending(workflow: Workflow, node: Mapping[str, Any]) -> str:
    parts = [_join(node)] if node["open_deps"] else []
    if node["open_ctx"]:
        count = node["open_ctx"]
        parts.append(
            fill_numbers(
                ngettext(
                    "Waiting for %d node that provides context.", "Waiting for %d nodes that provide context.", count
                ),
                count,
            )
        )
    if workflow.status == WorkflowStatus.PAUSED:
        parts.append(_("The workflow is paused."))
    if workflow.status in WORKFLOW_TERMINAL_STATES:
        parts.append(_("The workflow has finished."))
    return " ".join(parts)


def _join(node: Mapping[str, Any]) -> str:
    left: int = node["open_deps"]
    if node["join"] == Join.ANY:
        words = ngettext("Waiting for %d node to complete.", "Waiting for one of %d nodes to complete.", left)
        return fill_numbers(words, left)
    if node["join"] == Join.QUORUM:
        numbers = {"ok": node["ok_deps"], "wanted": node["min_success"] or 0, "left": left}
        words = _("Waiting for %(wanted)d nodes to complete: %(ok)d completed, %(left)d unfinished.")
        return fill_numbers(words, numbers)
    return fill_numbers(ngettext("Waiting for %d node to finish.", "Waiting for %d nodes to finish.", left), left)


def _enqueued(workflow: Workflow, node: Mapping[str, Any]) -> str:
    if _is_suspended(node):
        return _task_wait_text(node)
    if node["kind"] == NodeKind.SLEEP:
        return _("Sleeping until %s.") % format_time(node["until"], exactly=False)
    if (node["run_when"] or node["skip_when"]) and not node["is_decided"]:
        return _("Waiting for a worker to check its condition.")
    if again := _retry_text(workflow, node):
        return again
    if node["kind"] == NodeKind.SUBWORKFLOW:
        return _("Waiting for a worker to build its subworkflow.")
    return _task_wait_text(node)


def _running(workflow: Workflow, node: Mapping[str, Any]) -> str:
    if node["kind"] == NodeKind.EVENT:
        waits = _("Waiting for the event “%s”.") % (node["event_name"] or "")
        until = _("Until %s.") % format_time(node["until"], exactly=False) if node["until"] else ""
        return f"{waits} {until}".strip()
    if node["kind"] == NodeKind.MAP:
        return _("Its items are running.")
    if node["kind"] == NodeKind.SUBWORKFLOW:
        return _("Its subworkflow is running.")
    if node["task__status"] == TaskStatus.PENDING:
        return _retry_text(workflow, node) or _task_wait_text(node)
    return ""


def _retry_text(workflow: Any, node: Mapping[str, Any]) -> str:
    """Return when its task will be retried; empty if that time has come."""
    due = node["task__next_retry_at"]
    if due is None or node["task__status"] != TaskStatus.PENDING or due <= workflow.now:
        return ""
    return _("Its task will be retried at %s.") % format_time(due, exactly=False)


def _is_suspended(node: Mapping[str, Any]) -> bool:
    return bool(node["task__blocked"]) and node["task__limit_key"] is None


def _task_wait_text(node: Mapping[str, Any]) -> str:
    if _is_suspended(node):
        return _("Ready to start, but the workflow is paused.")
    if node["is_queue_paused"] and not node["task__blocked"]:
        return _("Its task is waiting for its queue, which is paused.")
    return _("Its task is waiting for its limit.") if node["task__blocked"] else _("Its task is waiting for a worker.")
