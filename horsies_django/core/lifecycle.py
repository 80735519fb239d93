"""The table of a task's transitions: every change of status, its actor, and the columns that it writes.

The querysets in ``models/transitions.py`` take the states of each update from here; docs/states.md shows the table.
"""

from __future__ import annotations

from typing import Final

from .status import TASK_RETRYABLE_STATES, TaskStatus
from .transition import Transition, as_markdown, transition

SEND: Final = transition(
    "", TaskStatus.PENDING, "sender", "`sent_at`; `enqueued_at` = now or the requested time", "the unique key is free"
)
CLAIM: Final = transition(
    "PENDING",
    TaskStatus.CLAIMED,
    "worker that prefetches",
    "`claimed_at`, worker, `claim` + 1",
    "the task is due, `good_until` has not passed, the worker serves the queue, the queue is not paused",
)
CLAIM_AND_START: Final = transition(
    "PENDING",
    TaskStatus.RUNNING,
    "worker with a free slot",
    "`claimed_at`, worker, `claim` + 1, `started_at`, `attempt` + 1",
    "as for PENDING → CLAIMED",
)
START: Final = transition(
    "CLAIMED",
    TaskStatus.RUNNING,
    "worker",
    "`started_at`, `attempt` + 1",
    "its own claim, and `good_until` has not passed",
)
EXPIRE_CLAIMED: Final = transition(
    "CLAIMED",
    TaskStatus.EXPIRED,
    "worker; `pause()` or `cancel()` of its workflow",
    "`TASK_EXPIRED`; the claim is kept; no attempt",
    "the worker's own claim, or the lock of the workflow; `good_until` has passed",
)
SUSPEND: Final = transition(
    "CLAIMED",
    TaskStatus.PENDING,
    "`pause()` of its workflow",
    "claim cleared; no attempt; no worker claims the task until `resume()`",
    "`good_until` has not passed",
)
RELEASE: Final = transition(
    "CLAIMED", TaskStatus.PENDING, "worker that stops, or supervisor", "claim cleared; no attempt", "its own claim"
)
REQUEUE: Final = transition(
    "CLAIMED",
    TaskStatus.PENDING,
    "reaper",
    "claim cleared; no attempt",
    "no heartbeat of the claimer within `claimed_stale_threshold_ms`",
)
REVERT_START: Final = transition(
    "RUNNING",
    TaskStatus.PENDING,
    "worker, or supervisor of a dead worker",
    "claim cleared; `attempt` − 1; no attempt; the unique key is restored if it is held until the start",
    "its own claim, and the body never started",
)
COMPLETE: Final = transition(
    "RUNNING",
    TaskStatus.COMPLETED,
    "worker",
    "`result`, `completed_at`, `error_code` cleared, attempt",
    "its own claim",
)
FAIL: Final = transition(
    "RUNNING",
    TaskStatus.FAILED,
    "worker; supervisor or reaper, for a dead or silent worker",
    "`result`, `error_code`, `failed_at`, attempt",
    "its own claim, or no heartbeat of the runner within `running_stale_threshold_ms`; no retry is due",
)
FAIL_UNREADABLE: Final = transition(
    "PENDING CLAIMED RUNNING",
    TaskStatus.FAILED,
    "worker that claims the task, or reaper",
    "`WORKER_ROW_UNREADABLE`, `failed_at`, columns brought back into range; no attempt",
    "a column is out of range, or can't be read",
)
RETRY_LATER: Final = transition(
    "RUNNING",
    TaskStatus.PENDING,
    "as for RUNNING → FAILED",
    "`retry_count` + 1, except after a stop that outlasts `--shutdown-timeout`, and after the first lost commits of an "
    "atomic task; `next_retry_at` = `enqueued_at`; claim and start cleared; `error_code` of this attempt; attempt that "
    "will retry; the unique key as above",
    "as for RUNNING → FAILED, but the policy covers the error, a retry is left, and it is due before `good_until`",
)
SNOOZE: Final = transition(
    "RUNNING",
    TaskStatus.PENDING,
    "worker, if the body raised `Snooze`",
    "`enqueued_at`; claim and start cleared; `attempt` − 1; no attempt; the unique key as above",
    "its own claim",
)
RELEASE_UNKNOWN: Final = transition(
    "RUNNING",
    TaskStatus.PENDING,
    "worker that does not know the task, or one of its values",
    "as after `Snooze`, and `unknown_to`",
    "its own claim, the body never started, and another version of the code serves the queue",
)
EXPIRE: Final = transition(
    "PENDING",
    TaskStatus.EXPIRED,
    "reaper, or worker that hands the task back",
    "`TASK_EXPIRED`; no attempt",
    "`good_until` has passed",
)
CANCEL: Final = transition("PENDING CLAIMED", TaskStatus.CANCELLED, "anyone", "`TASK_CANCELLED`; no attempt")
CANCEL_RUNNING: Final = transition(
    "RUNNING",
    TaskStatus.CANCELLED,
    "anyone, if running tasks are included",
    "`TASK_CANCELLED`; no attempt; the body is asked to stop; a late result is dropped",
)
RETRY_ENDED: Final = transition(
    " ".join(TASK_RETRYABLE_STATES),
    TaskStatus.PENDING,
    "`retry()`",
    "retries 0; result, error and a passed `good_until` cleared; attempts are kept; the unique key as above",
    "the unique key is free",
)

#: Every transition, in the order of a task's life.
TRANSITIONS: Final[tuple[Transition[TaskStatus], ...]] = (
    SEND,
    CLAIM,
    CLAIM_AND_START,
    START,
    EXPIRE_CLAIMED,
    SUSPEND,
    RELEASE,
    REQUEUE,
    REVERT_START,
    COMPLETE,
    FAIL,
    FAIL_UNREADABLE,
    RETRY_LATER,
    SNOOZE,
    RELEASE_UNKNOWN,
    EXPIRE,
    CANCEL,
    CANCEL_RUNNING,
    RETRY_ENDED,
)


if __name__ == "__main__":
    print("\n".join(as_markdown(TRANSITIONS)))  # noqa: T201  # printing the table is the purpose
