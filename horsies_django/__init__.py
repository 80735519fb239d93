"""A task queue and workflow engine as a plain Django app, in the project's own database."""

from .batches.batch import Batch
from .batches.handle import BatchHandle, BatchProgress
from .core.current_task import CurrentTask, current_task
from .core.grouping_policy import Gather
from .core.registry import register_type
from .core.retry import RetryPolicy
from .core.schedule_patterns import Cron, Daily, Every, Hourly, Monthly, Weekly
from .core.status import TASK_TERMINAL_STATES, TaskStatus
from .core.unique import Unique
from .core.version import __version__ as __version__
from .core.workflow_status import (
    WORKFLOW_TASK_TERMINAL_STATES,
    WORKFLOW_TERMINAL_STATES,
    Join,
    OnError,
    WorkflowStatus,
    WorkflowTaskStatus,
)
from .enqueue.context import TaskContext
from .enqueue.handle import Progress, TaskHandle, TaskInfo
from .enqueue.node_factories import sleep, wait_for_event
from .enqueue.nodes import (
    EventNode,
    MapNode,
    Node,
    NodeKey,
    SleepNode,
    SubWorkflowSummary,
    TaskNode,
    WorkflowContext,
    WorkflowMeta,
    together,
)
from .enqueue.task import HorsiesTask, register_task, task
from .exceptions import Discard, InvalidWorkflow, Retry, Snooze, TaskFailed, UniqueConflict, WaitTimeout
from .reaper.recovery import reclaim, recover_stuck_workflows
from .results import ContractCode, OperationalCode, OutcomeCode, RetrievalCode, TaskError, TaskResult
from .schedules.declaration import schedule
from .workflows.compile import SuccessCase, SuccessPolicy
from .workflows.conditions import register_condition
from .workflows.definition import WorkflowDefinition, workflow_builder
from .workflows.handle import WorkflowHandle
from .workflows.subworkflow_node import SubWorkflowNode
from .workflows.workflow import Workflow

__all__ = [
    "TASK_TERMINAL_STATES",
    "WORKFLOW_TASK_TERMINAL_STATES",
    "WORKFLOW_TERMINAL_STATES",
    "Batch",
    "BatchHandle",
    "BatchProgress",
    "ContractCode",
    "Cron",
    "CurrentTask",
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
    "current_task",
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
