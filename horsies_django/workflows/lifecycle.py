"""The tables of the lives of workflows and of nodes: every change of state, whose doing it is, and what it writes.

The documentation prints them, and a test holds them against what the engine does to the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from ..core.workflow_status import WORKFLOW_TERMINAL_STATES, WorkflowStatus, WorkflowTaskStatus

S = TypeVar("S", WorkflowStatus, WorkflowTaskStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Generic[S]):
    """One change of state. ``guard`` is what has to be true beside "still in one of the states it comes from"."""

    sources: tuple[S, ...]
    target: S
    who: str
    guard: str = ""
    writes: str

    def __str__(self) -> str:
        return f"{', '.join(self.sources) or '–'} → {self.target}"


def _workflow(sources: str, target: WorkflowStatus, who: str, writes: str, guard: str = "") -> Change[WorkflowStatus]:
    return Change(
        sources=tuple(map(WorkflowStatus, sources.split())), target=target, who=who, guard=guard, writes=writes
    )


def _node(
    sources: str, target: WorkflowTaskStatus, who: str, writes: str, guard: str = ""
) -> Change[WorkflowTaskStatus]:
    return Change(
        sources=tuple(map(WorkflowTaskStatus, sources.split())), target=target, who=who, guard=guard, writes=writes
    )


_LIVE: Final = "RUNNING PAUSED"

#: Every change of a workflow, in the order of its life.
WORKFLOW_CHANGES: Final = (
    _workflow("", WorkflowStatus.RUNNING, "`start()`, or the node of a subworkflow", "all nodes", "unique key free"),
    _workflow("", WorkflowStatus.PAUSED, "the node of a subworkflow", "all nodes", "the workflow above is PAUSED"),
    _workflow(
        "RUNNING",
        WorkflowStatus.PAUSED,
        "`pause()` of it or of one above; a node that FAILED, with `on_error` PAUSE",
        "`paused_at`",
    ),
    _workflow(
        "PAUSED",
        WorkflowStatus.RUNNING,
        "`resume()` of it or of one above",
        "`paused_at` cleared",
        "the workflow above is RUNNING",
    ),
    _workflow(
        "RUNNING",
        WorkflowStatus.COMPLETED,
        "the end of its last open node",
        "`result`, `completed_at`",
        "no node FAILED; with a success policy: one of its cases is met",
    ),
    _workflow(
        "RUNNING", WorkflowStatus.FAILED, "the same", "`error`, `completed_at`", "otherwise; or there are no nodes"
    ),
    _workflow(_LIVE, WorkflowStatus.CANCELLED, "`cancel()` of it or of one above", "`cancelled_at`"),
    _workflow(
        _LIVE,
        WorkflowStatus.EXPIRED,
        "reaper",
        "`cancelled_at`",
        "its `good_until`, or that of one above, has passed",
    ),
    _workflow(
        "PAUSED",
        WorkflowStatus.EXPIRED,
        "reaper",
        "the same; `error`",
        "it, or one above, was paused longer than `paused_workflow_auto_cancel_after`",
    ),
    _workflow(
        _LIVE,
        WorkflowStatus.FAILED,
        "reaper, of all in its tree",
        "`error` with `WORKER_ROW_UNREADABLE`, `completed_at`, columns brought back into their range",
        "it can't be brought up to date, or expired, for what its rows hold",
    ),
    _workflow(
        " ".join(["PAUSED", *sorted(WORKFLOW_TERMINAL_STATES - {WorkflowStatus.COMPLETED})]),
        WorkflowStatus.RUNNING,
        "`retry()` of it, of one above, or of one below",
        "result, error, times of ending and a passed `good_until` cleared",
        "a node FAILED or SKIPPED, but by its own condition; none above is PAUSED or COMPLETED; unique key free",
    ),
)

#: Every change of a node, in the order of its life.
NODE_CHANGES: Final = (
    _node("", WorkflowTaskStatus.PENDING, "start of the workflow", "how many it waits for"),
    _node("", WorkflowTaskStatus.ENQUEUED, "a map, for each item", "`task`, `started_at`"),
    _node(
        "PENDING READY",
        WorkflowTaskStatus.ENQUEUED,
        "start of the workflow, end of what it waits for, `resume()`",
        "`task`, `started_at`",
        "the workflow is RUNNING, `join` says so, the nodes of `workflow_ctx_from` have ended",
    ),
    _node(
        "PENDING READY",
        WorkflowTaskStatus.RUNNING,
        "the same, of a node that waits for an event, and of a map",
        "`started_at`",
        "the same",
    ),
    _node(
        "ENQUEUED",
        WorkflowTaskStatus.RUNNING,
        "worker; the task that has built its subworkflow",
        "",
        "its body has run for 20 ms, or its subworkflow is there",
    ),
    _node(
        "RUNNING",
        WorkflowTaskStatus.ENQUEUED,
        "end of its subworkflow",
        "a new `task`, which builds another; the failed one is `is_replaced`",
        "that is FAILED, and the node's retry policy covers it",
    ),
    _node(
        "ENQUEUED RUNNING",
        WorkflowTaskStatus.READY,
        "`pause()`, also of one above; what would be tried again in a PAUSED workflow",
        "`task` cleared",
        "its task is PENDING",
    ),
    _node(
        "ENQUEUED RUNNING",
        WorkflowTaskStatus.READY,
        "the task that asked its conditions",
        "`task` cleared; they are not asked again",
        "the conditions want it to run",
    ),
    _node(
        "ENQUEUED RUNNING",
        WorkflowTaskStatus.COMPLETED,
        "end of its task, subworkflow, last item or time; the event",
        "`result`, `completed_at`",
        "all of it COMPLETED",
    ),
    _node(
        "ENQUEUED RUNNING",
        WorkflowTaskStatus.FAILED,
        "end of its task, subworkflow or last item; the time-out of an event",
        "`result`, `error_code`, `completed_at`",
        "any of it did not complete, and no retry is due",
    ),
    _node(
        "PENDING READY",
        WorkflowTaskStatus.COMPLETED,
        "as if it began: a map over an empty list",
        "`result`, `completed_at`",
        "as to begin",
    ),
    _node(
        "PENDING READY",
        WorkflowTaskStatus.FAILED,
        "as if it began: a map over what is no list",
        "`MAP_NOT_A_LIST`, `completed_at`",
        "as to begin",
    ),
    _node(
        "PENDING",
        WorkflowTaskStatus.SKIPPED,
        "end of what it waits for, `resume()`",
        "`UPSTREAM_SKIPPED`, `completed_at`",
        "the workflow is RUNNING, `join` can't be met any more",
    ),
    _node(
        "PENDING READY",
        WorkflowTaskStatus.SKIPPED,
        "as if it began: a map over a node that its own condition has skipped",
        "`CONDITION_NOT_MET`, `completed_at`",
        "as to begin",
    ),
    _node(
        "ENQUEUED RUNNING",
        WorkflowTaskStatus.SKIPPED,
        "the task that asked its conditions",
        "`CONDITION_NOT_MET`, `completed_at`",
        "the conditions do not want it to run",
    ),
    _node(
        "PENDING READY ENQUEUED RUNNING",
        WorkflowTaskStatus.SKIPPED,
        "`cancel()`; reaper, of an expired workflow; what would be tried again in one that has ended",
        "`WORKFLOW_CANCELLED` or `WORKFLOW_EXPIRED`, `completed_at`",
        "its task has not begun; or it has none, and no subworkflow",
    ),
    _node(
        "PENDING READY ENQUEUED RUNNING",
        WorkflowTaskStatus.SKIPPED,
        "reaper, of a workflow that can't be brought up to date",
        "`WORKER_ROW_UNREADABLE`, `completed_at`, columns brought back into their range",
    ),
    _node(
        "FAILED SKIPPED",
        WorkflowTaskStatus.PENDING,
        "`retry()`",
        "result, error, times, `task` and a passed `good_until` cleared",
        "not skipped by its own condition; if the workflow is RUNNING, what waits for it is still PENDING",
    ),
    _node("FAILED SKIPPED", WorkflowTaskStatus.READY, "`retry()`: an item of a map", "the same", "the same"),
    _node(
        "FAILED SKIPPED",
        WorkflowTaskStatus.RUNNING,
        "`retry()`, also of its subworkflow: a map some of whose items run again, a node whose subworkflow goes on",
        "the same",
        "the same",
    ),
)


def as_markdown(changes: Sequence[Change[WorkflowStatus]] | Sequence[Change[WorkflowTaskStatus]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield "| from → to | whose doing | guard, beside “still in that state” | writes |"
    yield "|---|---|---|---|"
    for change in changes:
        yield f"| {change} | {change.who} | {change.guard} | {change.writes} |"


if __name__ == "__main__":
    for table in (WORKFLOW_CHANGES, NODE_CHANGES):
        print("\n".join(as_markdown(table)), end="\n\n")  # noqa: T201  # the tables are what it was asked for
