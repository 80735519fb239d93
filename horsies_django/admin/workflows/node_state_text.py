"""Explain why a workflow node has not started or not ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

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
        return _("Would begin, but the workflow is paused.")
    return _("Is about to begin.")


def _pending(workflow: Workflow, node: Mapping[str, Any]) -> str:
    parts = [_join(node)] if node["open_deps"] else []
    if node["open_ctx"]:
        count = node["open_ctx"]
        parts.append(
            ngettext("Waits for %d node for its context.", "Waits for %d nodes for its context.", count) % count
        )
    if workflow.status == WorkflowStatus.PAUSED:
        parts.append(_("The workflow is paused."))
    if workflow.status in WORKFLOW_TERMINAL_STATES:
        parts.append(_("The workflow has ended."))
    return " ".join(parts)


def _join(node: Mapping[str, Any]) -> str:
    left: int = node["open_deps"]
    if node["join"] == Join.ANY:
        return ngettext("Waits for %d node to complete.", "Waits for one of %d nodes to complete.", left) % left
    if node["join"] == Join.QUORUM:
        numbers = {"ok": node["ok_deps"], "wanted": node["min_success"] or 0, "left": left}
        return _("Waits for %(wanted)d to complete: %(ok)d have, %(left)d are open.") % numbers
    return ngettext("Waits for the end of %d node.", "Waits for the end of %d nodes.", left) % left


def _enqueued(workflow: Workflow, node: Mapping[str, Any]) -> str:
    if workflow.status == WorkflowStatus.PAUSED and node["task__blocked"]:
        return _("Would begin, but the workflow is paused.")
    if node["kind"] == NodeKind.SLEEP:
        return _("Sleeps until %s.") % format_time(node["until"], exactly=False)
    if (node["run_when"] or node["skip_when"]) and not node["is_decided"]:
        return _("A worker is to ask its condition.")
    if again := _retry_text(workflow, node):
        return again
    if node["kind"] == NodeKind.SUBWORKFLOW:
        return _("A worker is to build its subworkflow.")
    return _task_wait_text(node)


def _running(workflow: Workflow, node: Mapping[str, Any]) -> str:
    if node["kind"] == NodeKind.EVENT:
        waits = _("Waits for the event “%s”.") % (node["event_name"] or "")
        until = _("Until %s.") % format_time(node["until"], exactly=False) if node["until"] else ""
        return f"{waits} {until}".strip()
    if node["kind"] == NodeKind.MAP:
        return _("Its items run.")
    if node["kind"] == NodeKind.SUBWORKFLOW:
        return _("Its subworkflow runs.")
    if node["task__status"] == TaskStatus.PENDING:
        return _retry_text(workflow, node) or _task_wait_text(node)
    return ""


def _retry_text(workflow: Any, node: Mapping[str, Any]) -> str:
    """Return when its task will be retried; empty if that time has come."""
    due = node["task__next_retry_at"]
    if due is None or node["task__status"] != TaskStatus.PENDING or due <= workflow.now:
        return ""
    return _("Its task is tried again at %s.") % format_time(due, exactly=False)


def _task_wait_text(node: Mapping[str, Any]) -> str:
    return _("Its task waits for a place.") if node["task__blocked"] else _("Its task waits for a worker.")
