"""The table of a task's transitions: every change of status, its actor, and the columns that it writes.

The querysets in ``models/transitions.py`` take the states of each update from here; docs/states.md shows the table.
"""

from __future__ import annotations

from typing import Final

from .status import TASK_RETRYABLE_STATES, TaskStatus
from .transition import Transition, as_markdown, transition

SEND: Final = transition(
    "", TaskStatus.PENDING, "sender", "`sent_at`; `enqueued_at` = now or the time asked for", "unique key free"
)
CLAIM: Final = transition(
    "PENDING",
    TaskStatus.CLAIMED,
    "worker that prefetches",
    "`claimed_at`, worker, `claim` + 1",
    "due, `good_until` not passed, queue served and not paused",
)
CLAIM_AND_START: Final = transition(
    "PENDING", TaskStatus.RUNNING, "worker with a free slot", "the same, `started_at`, `attempt` + 1", "the same"
)
START: Final = transition(
    "CLAIMED",
    TaskStatus.RUNNING,
    "worker",
    "`started_at`, `attempt` + 1",
    "its own claim, `good_until` not passed",
)
EXPIRE_CLAIMED: Final = transition(
    "CLAIMED",
    TaskStatus.EXPIRED,
    "worker; `pause()` or `cancel()` of its workflow",
    "`TASK_EXPIRED`; the claim is kept; no attempt",
    "the worker's own claim, or the workflow's lock; `good_until` passed",
)
SUSPEND: Final = transition(
    "CLAIMED",
    TaskStatus.PENDING,
    "`pause()` of its workflow",
    "claim cleared; no attempt; no worker claims it until `resume()`",
    "`good_until` not passed",
)
RELEASE: Final = transition(
    "CLAIMED", TaskStatus.PENDING, "worker that stops, supervisor", "claim cleared; no attempt", "its own claim"
)
REQUEUE: Final = transition(
    "CLAIMED",
    TaskStatus.PENDING,
    "reaper",
    "the same",
    "no claimer beat within `claimed_stale_threshold_ms`",
)
REVERT_START: Final = transition(
    "RUNNING",
    TaskStatus.PENDING,
    "worker, or supervisor of a dead one",
    "claim cleared; `attempt` − 1; no attempt; a key held until the start is given back",
    "its own claim, and the body never began",
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
    "worker; supervisor or reaper of a dead or silent one",
    "`result`, `error_code`, `failed_at`, attempt",
    "its own claim, or no runner beat within `running_stale_threshold_ms`; no retry due",
)
FAIL_UNREADABLE: Final = transition(
    "PENDING CLAIMED RUNNING",
    TaskStatus.FAILED,
    "worker that claims it, or reaper",
    "`WORKER_ROW_UNREADABLE`, `failed_at`, columns brought back into their range; no attempt",
    "a column is out of its range, or can't be read",
)
RETRY_LATER: Final = transition(
    "RUNNING",
    TaskStatus.PENDING,
    "the same",
    "`retry_count` + 1, but for a stop that outlasts `--shutdown-timeout`; `next_retry_at` = `enqueued_at`, claim and "
    "start cleared, `error_code` of this attempt, attempt that will retry; the key as above",
    "the same; policy, retries left, next time before `good_until`",
)
SNOOZE: Final = transition(
    "RUNNING",
    TaskStatus.PENDING,
    "worker, where the body raised `Snooze`",
    "`enqueued_at`, claim and start cleared, `attempt` − 1; no attempt; the key as above",
    "its own claim",
)
RELEASE_UNKNOWN: Final = transition(
    "RUNNING",
    TaskStatus.PENDING,
    "worker that does not know the task, or a value of it",
    "the same, and `unknown_to`",
    "its own claim, the body never began, and another version of the code serves the queue",
)
EXPIRE: Final = transition(
    "PENDING",
    TaskStatus.EXPIRED,
    "reaper, or worker that hands it back",
    "`TASK_EXPIRED`; no attempt",
    "`good_until` passed",
)
CANCEL: Final = transition("PENDING CLAIMED", TaskStatus.CANCELLED, "anyone", "`TASK_CANCELLED`; no attempt")
CANCEL_RUNNING: Final = transition(
    "RUNNING",
    TaskStatus.CANCELLED,
    "anyone, when asked to include running ones",
    "the same; the body is asked to stop; a late result is dropped",
)
RETRY_ENDED: Final = transition(
    " ".join(TASK_RETRYABLE_STATES),
    TaskStatus.PENDING,
    "`retry()`",
    "retries 0, result and error cleared, a passed `good_until` cleared; attempts are kept; the key as above",
    "unique key free",
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
