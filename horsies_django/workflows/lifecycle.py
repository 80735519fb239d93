"""The tables of workflow and node transitions: every change of status, its actor, and the columns that it writes.

The engine takes the states of each update from here, docs/workflows-semantics.md prints the tables, and a test compares
them with the changes that the database sees.
"""

from __future__ import annotations

from typing import Final

from ..core.transition import as_markdown, transition
from ..core.workflow_status import WORKFLOW_TERMINAL_STATES, WorkflowStatus, WorkflowTaskStatus

_LIVE: Final = "RUNNING PAUSED"
_WAITING: Final = "PENDING READY"
_STARTED: Final = "ENQUEUED RUNNING"
_OPEN: Final = f"{_WAITING} {_STARTED}"
_UNSUCCESSFUL: Final = " ".join(WORKFLOW_TERMINAL_STATES - {WorkflowStatus.COMPLETED})

# Workflows.

START_WORKFLOW: Final = transition(
    "", WorkflowStatus.RUNNING, "`start()`, or the node of a subworkflow", "all nodes", "the unique key is free"
)
START_PAUSED: Final = transition(
    "", WorkflowStatus.PAUSED, "the node of a subworkflow", "all nodes", "the workflow above is PAUSED"
)
PAUSE_WORKFLOW: Final = transition(
    "RUNNING",
    WorkflowStatus.PAUSED,
    "`pause()` of it or of a workflow above; a FAILED node, if `on_error` is PAUSE",
    "`paused_at`",
)
RESUME_WORKFLOW: Final = transition(
    "PAUSED",
    WorkflowStatus.RUNNING,
    "`resume()` of it or of a workflow above",
    "`paused_at` cleared",
    "the workflow above is RUNNING",
)
COMPLETE_WORKFLOW: Final = transition(
    "RUNNING",
    WorkflowStatus.COMPLETED,
    "the end of its last open node",
    "`result`, `completed_at`",
    "no node is FAILED; with a success policy, one of its cases is met",
)
FAIL_WORKFLOW: Final = transition(
    "RUNNING",
    WorkflowStatus.FAILED,
    "the end of its last open node",
    "`error`, `completed_at`",
    "the guard of COMPLETED is not met, or there are no nodes",
)
CANCEL_WORKFLOW: Final = transition(
    _LIVE, WorkflowStatus.CANCELLED, "`cancel()` of it or of a workflow above", "`cancelled_at`"
)
EXPIRE_WORKFLOW: Final = transition(
    _LIVE,
    WorkflowStatus.EXPIRED,
    "reaper",
    "`cancelled_at`",
    "its `good_until`, or that of a workflow above, has passed",
)
EXPIRE_PAUSED: Final = transition(
    "PAUSED",
    WorkflowStatus.EXPIRED,
    "reaper",
    "`cancelled_at`, `error`",
    "it, or a workflow above, was paused for longer than `paused_workflow_auto_cancel_after`",
)
FAIL_UNREADABLE: Final = transition(
    _LIVE,
    WorkflowStatus.FAILED,
    "reaper, for every workflow of the tree",
    "`error` with `WORKER_ROW_UNREADABLE`, `completed_at`, columns brought back into range",
    "repair or expiry failed because of the contents of its rows",
)
RETRY_WORKFLOW: Final = transition(
    f"PAUSED {_UNSUCCESSFUL}",
    WorkflowStatus.RUNNING,
    "`retry()` of it, or of a workflow above or below",
    "result, error, end times and a passed `good_until` cleared",
    "a node is FAILED, or SKIPPED other than by its own condition; no workflow above is PAUSED or COMPLETED; the "
    "unique key is free",
)

#: Every transition of a workflow, in the order of its life.
WORKFLOW_TRANSITIONS: Final = (
    START_WORKFLOW,
    START_PAUSED,
    PAUSE_WORKFLOW,
    RESUME_WORKFLOW,
    COMPLETE_WORKFLOW,
    FAIL_WORKFLOW,
    CANCEL_WORKFLOW,
    EXPIRE_WORKFLOW,
    EXPIRE_PAUSED,
    FAIL_UNREADABLE,
    RETRY_WORKFLOW,
)

# Nodes.

ADD_NODE: Final = transition("", WorkflowTaskStatus.PENDING, "start of the workflow", "how many nodes it waits for")
ADD_CALL: Final = transition("", WorkflowTaskStatus.READY, "a batch, for each call", "the columns of the call")
ADD_ITEM: Final = transition("", WorkflowTaskStatus.ENQUEUED, "a map, for each item", "`task`, `started_at`")
ENQUEUE_NODE: Final = transition(
    _WAITING,
    WorkflowTaskStatus.ENQUEUED,
    "start of the workflow, end of the nodes that it waits for, `resume()`",
    "`task`, `started_at`",
    "the workflow is RUNNING, `join` is met, and the nodes of `workflow_ctx_from` have ended",
)
START_NODE: Final = transition(
    _WAITING,
    WorkflowTaskStatus.RUNNING,
    "as above, for a node that waits for an event, and for a map",
    "`started_at`",
    "as above",
)
MARK_RUNNING: Final = transition(
    "ENQUEUED",
    WorkflowTaskStatus.RUNNING,
    "worker; the task that has built its subworkflow; an event, once its timeout has a task",
    "",
    "its body has run for 20 ms, or its subworkflow exists",
)
REBUILD: Final = transition(
    _STARTED,
    WorkflowTaskStatus.ENQUEUED,
    "end of its subworkflow",
    "a new `task`, which builds another subworkflow; the failed subworkflow gets `is_replaced`",
    "the subworkflow is FAILED, and the node's retry policy covers it",
)
RETURN_TO_READY: Final = transition(
    _STARTED,
    WorkflowTaskStatus.READY,
    "`pause()` of its workflow or of one above; a retry that becomes due in a PAUSED workflow",
    "`task` cleared",
    "its task is PENDING",
)
ALLOW_NODE: Final = transition(
    _STARTED,
    WorkflowTaskStatus.READY,
    "the task that evaluated its conditions",
    "`task` cleared; they are not evaluated again",
    "the conditions allow it to run",
)
COMPLETE_NODE: Final = transition(
    _STARTED,
    WorkflowTaskStatus.COMPLETED,
    "end of its task, subworkflow, last item or time; the event",
    "`result`, `completed_at`",
    "every part of it is COMPLETED",
)
FAIL_NODE: Final = transition(
    _STARTED,
    WorkflowTaskStatus.FAILED,
    "end of its task, subworkflow or last item; the timeout of an event",
    "`result`, `error_code`, `completed_at`",
    "a part of it did not complete, and no retry is due",
)
COMPLETE_AT_ONCE: Final = transition(
    _WAITING,
    WorkflowTaskStatus.COMPLETED,
    "instead of its start, for a map over an empty list",
    "`result`, `completed_at`",
    "as for its start",
)
FAIL_AT_ONCE: Final = transition(
    _WAITING,
    WorkflowTaskStatus.FAILED,
    "instead of its start, for a map over a value that is not a list",
    "`MAP_NOT_A_LIST`, `completed_at`",
    "as for its start",
)
SKIP_UPSTREAM: Final = transition(
    "PENDING",
    WorkflowTaskStatus.SKIPPED,
    "end of the nodes that it waits for, `resume()`",
    "`UPSTREAM_SKIPPED`, `completed_at`",
    "the workflow is RUNNING, and `join` can't be met any more",
)
SKIP_AT_ONCE: Final = transition(
    _WAITING,
    WorkflowTaskStatus.SKIPPED,
    "instead of its start, for a map over a node that its own condition has skipped",
    "`CONDITION_NOT_MET`, `completed_at`",
    "as for its start",
)
SKIP_BY_CONDITION: Final = transition(
    _STARTED,
    WorkflowTaskStatus.SKIPPED,
    "the task that evaluated its conditions",
    "`CONDITION_NOT_MET`, `completed_at`",
    "the conditions do not allow it to run",
)
SKIP_STOPPED: Final = transition(
    _OPEN,
    WorkflowTaskStatus.SKIPPED,
    "`cancel()`; reaper, for an expired workflow; a retry that becomes due in a workflow that has ended",
    "`WORKFLOW_CANCELLED` or `WORKFLOW_EXPIRED`, `completed_at`",
    "its task has not started; or it has neither task nor subworkflow",
)
SKIP_UNREADABLE: Final = transition(
    _OPEN,
    WorkflowTaskStatus.SKIPPED,
    "reaper, for a workflow that it can't repair",
    "`WORKER_ROW_UNREADABLE`, `completed_at`, columns brought back into range",
)
RETRY_NODE: Final = transition(
    "FAILED SKIPPED",
    WorkflowTaskStatus.PENDING,
    "`retry()`",
    "result, error, times, `task` and a passed `good_until` cleared",
    "not skipped by its own condition; if the workflow is RUNNING, the nodes that wait for it are still PENDING",
)
RETRY_ITEM: Final = transition(
    "FAILED SKIPPED", WorkflowTaskStatus.READY, "`retry()`, for an item of a map", "as above", "as above"
)
RETRY_RUNNING: Final = transition(
    "FAILED SKIPPED",
    WorkflowTaskStatus.RUNNING,
    "`retry()`, also of its subworkflow, for a map with items that run again or a node whose subworkflow continues",
    "as above",
    "as above",
)

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

#: Every transition of a node, in the order of its life.
NODE_TRANSITIONS: Final = (
    ADD_NODE,
    ADD_CALL,
    ADD_ITEM,
    ENQUEUE_NODE,
    START_NODE,
    MARK_RUNNING,
    REBUILD,
    RETURN_TO_READY,
    ALLOW_NODE,
    COMPLETE_NODE,
    FAIL_NODE,
    COMPLETE_AT_ONCE,
    FAIL_AT_ONCE,
    SKIP_UPSTREAM,
    SKIP_AT_ONCE,
    SKIP_BY_CONDITION,
    SKIP_STOPPED,
    SKIP_UNREADABLE,
    RETRY_NODE,
    RETRY_ITEM,
    RETRY_RUNNING,
)


if __name__ == "__main__":
    for table in (WORKFLOW_TRANSITIONS, NODE_TRANSITIONS):
        print("\n".join(as_markdown(table)), end="\n\n")  # noqa: T201  # printing the tables is the purpose
