"""A task queue and workflow engine as a plain Django app, in the project's own database."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from .core.current_task import CurrentTask, current_task
from .core.grouping_policy import Gather
from .core.registry import register_type
from .core.retry import RetryPolicy
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
from .enqueue.handle import Progress, StepInfo, TaskHandle, TaskInfo, asend_events, send_events
from .enqueue.task import HorsiesTask, register_task, task
from .exceptions import Discard, InvalidWorkflow, Retry, Snooze, TaskFailed, UniqueConflict, WaitTimeout
from .results import ContractCode, OperationalCode, OutcomeCode, RetrievalCode, TaskError, TaskResult

if TYPE_CHECKING:
    from .batches.batch import Batch, BatchHandle, BatchProgress
    from .core.schedule_patterns import Cron, Daily, Every, Hourly, Monthly, Weekly
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
    from .enqueue.output import OutputChunk
    from .reaper.recovery import reclaim, recover_stuck_workflows
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
    "OutputChunk",
    "Progress",
    "RetrievalCode",
    "Retry",
    "RetryPolicy",
    "SleepNode",
    "Snooze",
    "StepInfo",
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
    "asend_events",
    "current_task",
    "reclaim",
    "recover_stuck_workflows",
    "register_condition",
    "register_task",
    "register_type",
    "schedule",
    "send_events",
    "sleep",
    "task",
    "together",
    "wait_for_event",
    "workflow_builder",
]

#: The names that are imported when first used, by module: a process that only sends tasks needs none of them.
_WHEN_USED: Final = {
    "batches.batch": ["Batch", "BatchHandle", "BatchProgress"],
    "core.schedule_patterns": ["Cron", "Daily", "Every", "Hourly", "Monthly", "Weekly"],
    "enqueue.node_factories": ["sleep", "wait_for_event"],
    "enqueue.nodes": [
        "EventNode",
        "MapNode",
        "Node",
        "NodeKey",
        "SleepNode",
        "SubWorkflowSummary",
        "TaskNode",
        "WorkflowContext",
        "WorkflowMeta",
        "together",
    ],
    "enqueue.output": ["OutputChunk"],
    "reaper.recovery": ["reclaim", "recover_stuck_workflows"],
    "schedules.declaration": ["schedule"],
    "workflows.compile": ["SuccessCase", "SuccessPolicy"],
    "workflows.conditions": ["register_condition"],
    "workflows.definition": ["WorkflowDefinition", "workflow_builder"],
    "workflows.handle": ["WorkflowHandle"],
    "workflows.subworkflow_node": ["SubWorkflowNode"],
    "workflows.workflow": ["Workflow"],
}
_MODULES: Final = {name: module for module, names in _WHEN_USED.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
