"""The errors of workflows: in their definitions, with codes and hints, and the codes of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from .workflow_status import WorkflowStatus


class DefinitionErrorCode(StrEnum):
    """The codes of errors in definitions, each with a hint how to fix it.

    Up to 032 they are those of horsies; from 040 they are our own.
    """

    hint: str

    def __new__(cls, code: str, hint: str) -> Self:
        """Return the member of this code."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.hint = hint
        return member

    NO_NAME = "HRS-001", "Give the workflow a name: Workflow('import', …)."
    NO_NODES = "HRS-002", "Give it nodes: task.node()(…), or a flow of them, a >> b."
    INVALID_NODE_ID = "HRS-003", "Give another node_id, or none to get a generated one."
    DUPLICATE_NODE_ID = "HRS-004", "Give each node an id of its own."
    NO_ROOT = "HRS-005", "Let at least one node wait for nothing."
    INVALID_DEPENDENCY = "HRS-006", "Put the node into the workflow too, or don't wait for it."
    CYCLE = "HRS-007", "Remove one of these dependencies."
    INVALID_ARGS_FROM = "HRS-008", "Pass the node as a plain argument: then it is waited for too."
    INVALID_CTX_FROM = "HRS-009", "Put the node into waits_for too."
    CTX_PARAM_MISSING = "HRS-010", "Give the function a parameter named workflow_ctx."
    INVALID_OUTPUT = "HRS-011", "Name a node of this workflow, or omit output to get all last results."
    INVALID_SUCCESS_POLICY = "HRS-012", "SuccessPolicy([SuccessCase(required=[node, …]), …])"
    INVALID_JOIN = "HRS-013", "join is Join.ALL, Join.ANY, or Join.QUORUM with min_success."
    INVALID_QUEUE = "HRS-014", "Use a name of QUEUES, or add the name there."
    INVALID_PRIORITY = "HRS-015", "Use a whole number from -100 to 100."
    NO_DEFINITION_KEY = "HRS-016", "Give the class a Meta with definition_key = 'app.name'."
    DUPLICATE_DEFINITION_KEY = "HRS-017", "Give each definition a key of its own."
    UNREGISTERED_SUBWORKFLOW = "HRS-018", "A subworkflow is a WorkflowDefinition with a definition_key."
    UNKNOWN_PARAMETER = "HRS-019", "Give the function such a parameter, or remove the argument."
    MISSING_PARAMETER = "HRS-020", "Give a value, give a node, or give the parameter a default."
    GIVEN_TWICE = "HRS-021", "Give each parameter once."
    PARAMS_WITHOUT_BUILD_WITH = "HRS-022", "Override build_with, with these parameters."
    INVALID_BUILD_WITH = "HRS-023", "Write a classmethod whose parameters can be given by name."
    SOURCE_TYPE = "HRS-024", "args_from gives a TaskResult; values_from and plain nodes give the ok value."
    OUTPUT_TYPE = "HRS-025", "Make the output's type the one that the definition names."
    POSITIONAL_ARGUMENTS = "HRS-026", "Give the arguments of a node by name."
    BUILDER_WITHOUT_CASES = "HRS-027", "@workflow_builder(cases=[{'day': '2026-01-01'}])"
    INVALID_CASE = "HRS-028", "A case is a dict of arguments that the builder takes."
    BUILDER_FAILED = "HRS-029", "A builder takes plain values and returns a Workflow."
    UNDECORATED_BUILDER = "HRS-030", "Put @workflow_builder above it, or a leading underscore before its name."
    NOT_SERIALIZABLE = "HRS-031", "Pass values that JSON can hold; store large ones and pass their keys."
    INVALID_WORKFLOW_ID = "HRS-032", "Give a UUID, or its text."
    INVALID_OPTION = "HRS-040", "See the page on workflows."
    INVALID_CONDITION = "HRS-041", "Use a module's function that takes the WorkflowContext and returns a bool."
    INVALID_MAP = "HRS-042", "task.map(over=a node that returns a list, param='the parameter for one item')"
    INVALID_SLEEP = "HRS-043", "sleep() takes seconds, a timedelta, or an aware datetime."
    INVALID_EVENT = "HRS-044", "wait_for_event('approved', timeout=3600)"
    INVALID_BACKEND = "HRS-045", "A workflow and its tasks are in one database, in backends of this package."
    ARGUMENT_TYPE = "HRS-046", "Pass a value of the parameter's type, or widen its hint."
    CONTAINS_ITSELF = "HRS-047", "Remove the node, or give it an argument that ends the recursion."


@dataclass(frozen=True, slots=True)
class DefinitionError:
    """One error in a definition; ``node`` is None if it is not at a node.

    ``problem`` names the value and what is allowed.
    """

    code: DefinitionErrorCode
    workflow: str
    node: str | None
    problem: str

    @property
    def hint(self) -> str:
        """How to fix the error."""
        return self.code.hint

    def __str__(self) -> str:
        where = f"workflow {self.workflow!r}" + (f", node {self.node!r}" if self.node is not None else "")
        return f"{self.code} {where}: {self.problem}"


#: A code and a problem, found before the workflow is known.
NodeError = tuple[DefinitionErrorCode, str]


class ErrorList(list[DefinitionError]):
    """The errors of one workflow, in the order in which they were found."""

    def __init__(self, workflow: str) -> None:
        super().__init__()
        self.workflow = workflow

    def add(self, code: DefinitionErrorCode, problem: str, node: str | None = None) -> None:
        """Add an error."""
        self.append(DefinitionError(code, self.workflow, node, problem))


def shown(value: object) -> str:
    """Return the repr of a value, cut to 100 characters, for an error message."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"


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
