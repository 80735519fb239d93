"""A task queue and workflow engine that is nothing but a Django app, in the project's own database."""

from .batches.batch import Batch
from .batches.handle import BatchHandle, BatchProgress
from .context import TaskContext
from .exceptions import Discard, InvalidWorkflow, Retry, Snooze, TaskFailed, UniqueConflict, WaitTimeout
from .gather import Gather
from .handle import Progress, TaskHandle, TaskInfo
from .recovery import reclaim, recover_stuck_workflows
from .registry import register_type
from .results import ContractCode, OperationalCode, OutcomeCode, RetrievalCode, TaskError, TaskResult
from .retries import RetryPolicy
from .schedules.declaring import schedule
from .schedules.patterns import Cron, Daily, Every, Hourly, Monthly, Weekly
from .states import TASK_TERMINAL_STATES, TaskStatus
from .tasks import HorsiesTask, register_task, task
from .unique import Unique
from .workflows.builders import workflow_builder
from .workflows.conditions import register_condition
from .workflows.context import SubWorkflowSummary, WorkflowContext, WorkflowMeta
from .workflows.definition import WorkflowDefinition
from .workflows.flow import together
from .workflows.handle import WorkflowHandle
from .workflows.making import sleep, wait_for_event
from .workflows.nodes import EventNode, MapNode, Node, NodeKey, SleepNode, SubWorkflowNode, TaskNode
from .workflows.policies import SuccessCase, SuccessPolicy
from .workflows.states import (
    WORKFLOW_TASK_TERMINAL_STATES,
    WORKFLOW_TERMINAL_STATES,
    Join,
    OnError,
    WorkflowStatus,
    WorkflowTaskStatus,
)
from .workflows.workflow import Workflow

__version__ = "0.1.0"

__all__ = [
    "TASK_TERMINAL_STATES",
    "WORKFLOW_TASK_TERMINAL_STATES",
    "WORKFLOW_TERMINAL_STATES",
    "Batch",
    "BatchHandle",
    "BatchProgress",
    "ContractCode",
    "Cron",
    "Daily",
    "Discard",
    "EventNode",
    "Every",
    "Gather",
    "HorsiesTask",
    "Hourly",
    "InvalidWorkflow",
    "Join",
    "MapNode",
    "Monthly",
    "Node",
    "NodeKey",
    "OnError",
    "OperationalCode",
    "OutcomeCode",
    "Progress",
    "RetrievalCode",
    "Retry",
    "RetryPolicy",
    "SleepNode",
    "Snooze",
    "SubWorkflowNode",
    "SubWorkflowSummary",
    "SuccessCase",
    "SuccessPolicy",
    "TaskContext",
    "TaskError",
    "TaskFailed",
    "TaskHandle",
    "TaskInfo",
    "TaskNode",
    "TaskResult",
    "TaskStatus",
    "Unique",
    "UniqueConflict",
    "WaitTimeout",
    "Weekly",
    "Workflow",
    "WorkflowContext",
    "WorkflowDefinition",
    "WorkflowHandle",
    "WorkflowMeta",
    "WorkflowStatus",
    "WorkflowTaskStatus",
    "reclaim",
    "recover_stuck_workflows",
    "register_condition",
    "register_task",
    "register_type",
    "schedule",
    "sleep",
    "task",
    "together",
    "wait_for_event",
    "workflow_builder",
]
