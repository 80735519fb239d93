"""The error codes of workflows."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from ..core.workflow_status import WorkflowStatus


class WorkflowCode(StrEnum):
    """Error codes of workflows and nodes, where the code is not that of a task."""

    UPSTREAM_SKIPPED = "UPSTREAM_SKIPPED"
    CONDITION_NOT_MET = "CONDITION_NOT_MET"
    EVENT_TIMEOUT = "EVENT_TIMEOUT"
    MAP_ITEM_FAILED = "MAP_ITEM_FAILED"
    MAP_NOT_A_LIST = "MAP_NOT_A_LIST"
    SUBWORKFLOW_FAILED = "SUBWORKFLOW_FAILED"
    WORKFLOW_PAUSED = "WORKFLOW_PAUSED"
    WORKFLOW_FAILED = "WORKFLOW_FAILED"
    WORKFLOW_CANCELLED = "WORKFLOW_CANCELLED"
    WORKFLOW_EXPIRED = "WORKFLOW_EXPIRED"
    WORKFLOW_KEY_TAKEN = "WORKFLOW_KEY_TAKEN"
    WORKFLOW_TOO_DEEP = "WORKFLOW_TOO_DEEP"
    WORKFLOW_SUCCESS_CASE_NOT_MET = "WORKFLOW_SUCCESS_CASE_NOT_MET"


#: The code of a node that was skipped because its workflow was cancelled or expired.
STOPPED_BY: Final[Mapping[str, WorkflowCode]] = {
    WorkflowStatus.CANCELLED: WorkflowCode.WORKFLOW_CANCELLED,
    WorkflowStatus.EXPIRED: WorkflowCode.WORKFLOW_EXPIRED,
}
