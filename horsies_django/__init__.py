"""A task queue and workflow engine that is nothing but a Django app, in the project's own database."""

from .handle import TaskHandle, TaskInfo
from .results import ContractCode, OperationalCode, OutcomeCode, RetrievalCode, TaskError, TaskResult
from .retries import RetryPolicy
from .states import TASK_TERMINAL_STATES, TaskStatus
from .tasks import HorsiesTask, task

__version__ = "0.1.0"

__all__ = [
    "TASK_TERMINAL_STATES",
    "ContractCode",
    "HorsiesTask",
    "OperationalCode",
    "OutcomeCode",
    "RetrievalCode",
    "RetryPolicy",
    "TaskError",
    "TaskHandle",
    "TaskInfo",
    "TaskResult",
    "TaskStatus",
    "task",
]
