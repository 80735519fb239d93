"""The transitions of tasks: every change of status that exists.

The querysets in ``models/transitions.py`` take the states of each update from here. docs/states.md says what makes each
change, its guard and which columns it writes; a test compares the two.
"""

from __future__ import annotations

from typing import Final

from .status import TASK_RETRYABLE_STATES, TaskStatus
from .transition import transition

SEND: Final = transition("", TaskStatus.PENDING)
CLAIM: Final = transition("PENDING", TaskStatus.CLAIMED)
CLAIM_AND_START: Final = transition("PENDING", TaskStatus.RUNNING)
START: Final = transition("CLAIMED", TaskStatus.RUNNING)
EXPIRE_CLAIMED: Final = transition("CLAIMED", TaskStatus.EXPIRED)
SUSPEND: Final = transition("CLAIMED", TaskStatus.PENDING)
RELEASE: Final = transition("CLAIMED", TaskStatus.PENDING)
REQUEUE: Final = transition("CLAIMED", TaskStatus.PENDING)
REVERT_START: Final = transition("RUNNING", TaskStatus.PENDING)
COMPLETE: Final = transition("RUNNING", TaskStatus.COMPLETED)
FAIL: Final = transition("RUNNING", TaskStatus.FAILED)
FAIL_UNREADABLE: Final = transition("PENDING CLAIMED RUNNING", TaskStatus.FAILED)
RETRY_LATER: Final = transition("RUNNING", TaskStatus.PENDING)
SNOOZE: Final = transition("RUNNING", TaskStatus.PENDING)
RELEASE_UNKNOWN: Final = transition("RUNNING", TaskStatus.PENDING)
EXPIRE: Final = transition("PENDING", TaskStatus.EXPIRED)
CANCEL: Final = transition("PENDING CLAIMED", TaskStatus.CANCELLED)
CANCEL_RUNNING: Final = transition("RUNNING", TaskStatus.CANCELLED)
RETRY_ENDED: Final = transition(" ".join(TASK_RETRYABLE_STATES), TaskStatus.PENDING)
