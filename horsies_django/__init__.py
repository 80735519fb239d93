"""A task queue and workflow engine that is nothing but a Django app, in the project's own database."""

from .context import TaskContext
from .exceptions import Discard, Retry, Snooze
from .handle import Progress, TaskHandle, TaskInfo
from .recovery import reclaim
from .results import ContractCode, OperationalCode, OutcomeCode, RetrievalCode, TaskError, TaskResult
from .retries import RetryPolicy
from .states import TASK_TERMINAL_STATES, TaskStatus
from .tasks import HorsiesTask, task

__version__ = "0.1.0"

__all__ = [
    "TASK_TERMINAL_STATES",
    "ContractCode",
    "Discard",
    "HorsiesTask",
    "OperationalCode",
    "OutcomeCode",
    "Progress",
    "RetrievalCode",
    "Retry",
    "RetryPolicy",
    "Snooze",
    "TaskContext",
    "TaskError",
    "TaskHandle",
    "TaskInfo",
    "TaskResult",
    "TaskStatus",
    "reclaim",
    "task",
]
