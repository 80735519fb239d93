"""The states of a task and of the records of its steps, and the kinds of these and of output."""

from __future__ import annotations

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class TaskStatus(TextChoices):
    """The state of a task. The stored text equals the name."""

    PENDING = "PENDING", _("Pending")
    CLAIMED = "CLAIMED", _("Claimed")
    RUNNING = "RUNNING", _("Running")
    COMPLETED = "COMPLETED", _("Completed")
    FAILED = "FAILED", _("Failed")
    CANCELLED = "CANCELLED", _("Cancelled")
    EXPIRED = "EXPIRED", _("Expired")

    @property
    def is_terminal(self) -> bool:
        """Whether a task in this state has ended."""
        return self in TASK_TERMINAL_STATES


#: The four states in which a task has ended.
TASK_TERMINAL_STATES: frozenset[TaskStatus] = frozenset(
    {TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.EXPIRED}
)

#: The three states in which a task is live.
TASK_LIVE_STATES: frozenset[TaskStatus] = frozenset(TaskStatus) - TASK_TERMINAL_STATES

#: The states from which ``retry()`` works.
TASK_RETRYABLE_STATES: frozenset[TaskStatus] = TASK_TERMINAL_STATES - {TaskStatus.COMPLETED}


class AttemptOutcome(TextChoices):
    """How an attempt ended."""

    COMPLETED = "COMPLETED", _("Completed")
    FAILED = "FAILED", _("Failed")
    WORKER_FAILURE = "WORKER_FAILURE", _("Worker failure")


class BeatRole(TextChoices):
    """The state of a task for which a worker sends heartbeats."""

    CLAIMER = "claimer", _("Claimer")
    RUNNER = "runner", _("Runner")


class StepKind(TextChoices):
    """What a record of a task keeps."""

    STEP = "step", _("Step")
    BATCHES = "batches", _("Batches")
    EVENT = "event", _("Event")
    WAIT = "wait", _("Wait")
    SLEEP = "sleep", _("Sleep")
    PATCH = "patch", _("Patch")


class StepStatus(TextChoices):
    """The state of a record. A task has not begun a step that has no record."""

    WAITING = "WAITING", _("Waiting")
    RUNNING = "RUNNING", _("Running")
    UNREAD = "UNREAD", _("Unread")
    COMPLETED = "COMPLETED", _("Completed")
    FAILED = "FAILED", _("Failed")


class OutputKind(TextChoices):
    """Where a chunk of output comes from."""

    OUTPUT = "output", _("Output")
    LOG = "log", _("Log")
