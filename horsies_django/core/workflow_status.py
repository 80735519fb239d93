"""The states of workflows and of their nodes, and the options with fixed values."""

from __future__ import annotations

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class WorkflowStatus(TextChoices):
    """The state of a workflow. The stored text equals the name."""

    PENDING = "PENDING", _("Pending")
    RUNNING = "RUNNING", _("Running")
    PAUSED = "PAUSED", _("Paused")
    COMPLETED = "COMPLETED", _("Completed")
    FAILED = "FAILED", _("Failed")
    CANCELLED = "CANCELLED", _("Cancelled")
    EXPIRED = "EXPIRED", _("Expired")

    @property
    def is_terminal(self) -> bool:
        """Whether a workflow in this state has ended."""
        return self in WORKFLOW_TERMINAL_STATES


#: The four states in which a workflow has ended.
WORKFLOW_TERMINAL_STATES: frozenset[WorkflowStatus] = frozenset(
    {WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED, WorkflowStatus.EXPIRED}
)


class WorkflowTaskStatus(TextChoices):
    """The state of a node of a workflow. The stored text equals the name."""

    PENDING = "PENDING", _("Pending")
    READY = "READY", _("Ready")
    ENQUEUED = "ENQUEUED", _("Enqueued")
    RUNNING = "RUNNING", _("Running")
    COMPLETED = "COMPLETED", _("Completed")
    FAILED = "FAILED", _("Failed")
    SKIPPED = "SKIPPED", _("Skipped")

    @property
    def is_terminal(self) -> bool:
        """Whether a node in this state has ended."""
        return self in WORKFLOW_TASK_TERMINAL_STATES


#: The three states in which a node has ended.
WORKFLOW_TASK_TERMINAL_STATES: frozenset[WorkflowTaskStatus] = frozenset(
    {WorkflowTaskStatus.COMPLETED, WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED}
)


class OnError(TextChoices):
    """What the first failed node does to its workflow."""

    FAIL = "FAIL", _("Finish the other nodes, then fail")
    PAUSE = "PAUSE", _("Pause immediately")


class Join(TextChoices):
    """How many of the nodes that a node waits for must complete before it runs."""

    ALL = "all", _("All")
    ANY = "any", _("Any")
    QUORUM = "quorum", _("Quorum")


class NodeKind(TextChoices):
    """What a node does once it is ready."""

    TASK = "task", _("Task")
    MAP = "map", _("Map")
    SUBWORKFLOW = "subworkflow", _("Subworkflow")
    SLEEP = "sleep", _("Sleep")
    EVENT = "event", _("Event")
