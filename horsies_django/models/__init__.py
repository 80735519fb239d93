"""The tables of the queue and of workflows, the transitions of tasks, the claim, and the limits."""

from .attempt import TaskAttempt
from .error_group import ErrorGroup
from .heartbeat import Heartbeat
from .lease import Lease
from .limit import Limit
from .queue import Queue
from .rollup import Rollup, Watermark
from .schedule import Schedule
from .task import Overview, Task
from .task_item import TaskItem
from .task_output import TaskOutput
from .task_step import TaskStep
from .worker import Worker
from .workflow import Workflow, WorkflowEvent
from .workflow_task import WorkflowTask

__all__ = [
    "ErrorGroup",
    "Heartbeat",
    "Lease",
    "Limit",
    "Overview",
    "Queue",
    "Rollup",
    "Schedule",
    "Task",
    "TaskAttempt",
    "TaskItem",
    "TaskOutput",
    "TaskStep",
    "Watermark",
    "Worker",
    "Workflow",
    "WorkflowEvent",
    "WorkflowTask",
]
