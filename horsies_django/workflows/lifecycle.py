"""The transitions of workflows and nodes: every change of status that the engine may make.

The engine takes the states of each update from here. docs/workflows-semantics.md says what makes each change and which
columns it writes; a test compares both with the changes that the database sees.
"""

from __future__ import annotations

from typing import Final

from ..core.lifecycle import transition
from ..core.workflow_status import WORKFLOW_TERMINAL_STATES, WorkflowStatus, WorkflowTaskStatus

_LIVE: Final = "RUNNING PAUSED"
_WAITING: Final = "PENDING READY"
_STARTED: Final = "ENQUEUED RUNNING"
_OPEN: Final = f"{_WAITING} {_STARTED}"
_UNSUCCESSFUL: Final = " ".join(WORKFLOW_TERMINAL_STATES - {WorkflowStatus.COMPLETED})

# Workflows.

START_WORKFLOW: Final = transition("", WorkflowStatus.RUNNING)
START_PAUSED: Final = transition("", WorkflowStatus.PAUSED)
PAUSE_WORKFLOW: Final = transition("RUNNING", WorkflowStatus.PAUSED)
RESUME_WORKFLOW: Final = transition("PAUSED", WorkflowStatus.RUNNING)
COMPLETE_WORKFLOW: Final = transition("RUNNING", WorkflowStatus.COMPLETED)
FAIL_WORKFLOW: Final = transition("RUNNING", WorkflowStatus.FAILED)
CANCEL_WORKFLOW: Final = transition(_LIVE, WorkflowStatus.CANCELLED)
EXPIRE_WORKFLOW: Final = transition(_LIVE, WorkflowStatus.EXPIRED)
EXPIRE_PAUSED: Final = transition("PAUSED", WorkflowStatus.EXPIRED)
FAIL_UNREADABLE: Final = transition(_LIVE, WorkflowStatus.FAILED)
RETRY_WORKFLOW: Final = transition(f"PAUSED {_UNSUCCESSFUL}", WorkflowStatus.RUNNING)

# Nodes.

ADD_NODE: Final = transition("", WorkflowTaskStatus.PENDING)
ADD_CALL: Final = transition("", WorkflowTaskStatus.READY)
ADD_ITEM: Final = transition("", WorkflowTaskStatus.ENQUEUED)
ENQUEUE_NODE: Final = transition(_WAITING, WorkflowTaskStatus.ENQUEUED)
START_NODE: Final = transition(_WAITING, WorkflowTaskStatus.RUNNING)
MARK_RUNNING: Final = transition("ENQUEUED", WorkflowTaskStatus.RUNNING)
REBUILD: Final = transition(_STARTED, WorkflowTaskStatus.ENQUEUED)
RETURN_TO_READY: Final = transition(_STARTED, WorkflowTaskStatus.READY)
ALLOW_NODE: Final = transition(_STARTED, WorkflowTaskStatus.READY)
COMPLETE_NODE: Final = transition(_STARTED, WorkflowTaskStatus.COMPLETED)
FAIL_NODE: Final = transition(_STARTED, WorkflowTaskStatus.FAILED)
COMPLETE_AT_ONCE: Final = transition(_WAITING, WorkflowTaskStatus.COMPLETED)
FAIL_AT_ONCE: Final = transition(_WAITING, WorkflowTaskStatus.FAILED)
SKIP_UPSTREAM: Final = transition("PENDING", WorkflowTaskStatus.SKIPPED)
SKIP_AT_ONCE: Final = transition(_WAITING, WorkflowTaskStatus.SKIPPED)
SKIP_BY_CONDITION: Final = transition(_STARTED, WorkflowTaskStatus.SKIPPED)
SKIP_STOPPED: Final = transition(_OPEN, WorkflowTaskStatus.SKIPPED)
SKIP_UNREADABLE: Final = transition(_OPEN, WorkflowTaskStatus.SKIPPED)
RETRY_NODE: Final = transition("FAILED SKIPPED", WorkflowTaskStatus.PENDING)
RETRY_ITEM: Final = transition("FAILED SKIPPED", WorkflowTaskStatus.READY)
RETRY_RUNNING: Final = transition("FAILED SKIPPED", WorkflowTaskStatus.RUNNING)

#: The transitions that end a node whose result the engine writes, rather than that of its task.
NODE_ENDS: Final = (
    COMPLETE_NODE,
    FAIL_NODE,
    COMPLETE_AT_ONCE,
    FAIL_AT_ONCE,
    SKIP_UPSTREAM,
    SKIP_AT_ONCE,
    SKIP_BY_CONDITION,
    SKIP_STOPPED,
)
