"""The tables of the queue."""

from .attempt import TaskAttempt
from .heartbeat import Heartbeat
from .queue import Queue
from .task import Task
from .turn import Turn
from .worker import Worker
from .workflow import Workflow
from .workflow_event import WorkflowEvent
from .workflow_task import WorkflowTask

__all__ = [
    "Heartbeat",
    "Queue",
    "Task",
    "TaskAttempt",
    "Turn",
    "Worker",
    "Workflow",
    "WorkflowEvent",
    "WorkflowTask",
]
