"""The errors in a workflow's definition, with their codes and hints."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class DefinitionErrorCode(StrEnum):
    """The codes of errors in definitions. Up to 032 they are those of horsies; from 040 they are our own."""

    NO_NAME = "HRS-001"
    NO_NODES = "HRS-002"
    INVALID_NODE_ID = "HRS-003"
    DUPLICATE_NODE_ID = "HRS-004"
    NO_ROOT = "HRS-005"
    INVALID_DEPENDENCY = "HRS-006"
    CYCLE = "HRS-007"
    INVALID_ARGS_FROM = "HRS-008"
    INVALID_CTX_FROM = "HRS-009"
    CTX_PARAM_MISSING = "HRS-010"
    INVALID_OUTPUT = "HRS-011"
    INVALID_SUCCESS_POLICY = "HRS-012"
    INVALID_JOIN = "HRS-013"
    INVALID_QUEUE = "HRS-014"
    INVALID_PRIORITY = "HRS-015"
    NO_DEFINITION_KEY = "HRS-016"
    DUPLICATE_DEFINITION_KEY = "HRS-017"
    UNREGISTERED_SUBWORKFLOW = "HRS-018"
    UNKNOWN_PARAMETER = "HRS-019"
    MISSING_PARAMETER = "HRS-020"
    GIVEN_TWICE = "HRS-021"
    PARAMS_WITHOUT_BUILD_WITH = "HRS-022"
    INVALID_BUILD_WITH = "HRS-023"
    SOURCE_TYPE = "HRS-024"
    OUTPUT_TYPE = "HRS-025"
    POSITIONAL_ARGUMENTS = "HRS-026"
    BUILDER_WITHOUT_CASES = "HRS-027"
    INVALID_CASE = "HRS-028"
    BUILDER_FAILED = "HRS-029"
    UNDECORATED_BUILDER = "HRS-030"
    NOT_SERIALIZABLE = "HRS-031"
    INVALID_WORKFLOW_ID = "HRS-032"
    INVALID_OPTION = "HRS-040"
    INVALID_CONDITION = "HRS-041"
    INVALID_MAP = "HRS-042"
    INVALID_SLEEP = "HRS-043"
    INVALID_EVENT = "HRS-044"
    INVALID_BACKEND = "HRS-045"
    ARGUMENT_TYPE = "HRS-046"
    CONTAINS_ITSELF = "HRS-047"

    @property
    def hint(self) -> str:
        """How to fix the error."""
        return HINTS[self]


HINTS: Final[dict[DefinitionErrorCode, str]] = {
    DefinitionErrorCode.NO_NAME: "Give the workflow a name: Workflow('import', …).",
    DefinitionErrorCode.NO_NODES: "Give it nodes: task.node()(…), or a flow of them, a >> b.",
    DefinitionErrorCode.INVALID_NODE_ID: "Give another node_id, or none to get a generated one.",
    DefinitionErrorCode.DUPLICATE_NODE_ID: "Give each node an id of its own.",
    DefinitionErrorCode.NO_ROOT: "Let at least one node wait for nothing.",
    DefinitionErrorCode.INVALID_DEPENDENCY: "Put the node into the workflow too, or don't wait for it.",
    DefinitionErrorCode.CYCLE: "Remove one of these dependencies.",
    DefinitionErrorCode.INVALID_ARGS_FROM: "Pass the node as a plain argument: then it is waited for too.",
    DefinitionErrorCode.INVALID_CTX_FROM: "Put the node into waits_for too.",
    DefinitionErrorCode.CTX_PARAM_MISSING: "Give the function a parameter named workflow_ctx.",
    DefinitionErrorCode.INVALID_OUTPUT: "Name a node of this workflow, or omit output to get all last results.",
    DefinitionErrorCode.INVALID_SUCCESS_POLICY: "SuccessPolicy([SuccessCase(required=[node, …]), …])",
    DefinitionErrorCode.INVALID_JOIN: "join is Join.ALL, Join.ANY, or Join.QUORUM with min_success.",
    DefinitionErrorCode.INVALID_QUEUE: "Use a name of QUEUES, or add the name there.",
    DefinitionErrorCode.INVALID_PRIORITY: "Use a whole number from -100 to 100.",
    DefinitionErrorCode.NO_DEFINITION_KEY: "Give the class a Meta with definition_key = 'app.name'.",
    DefinitionErrorCode.DUPLICATE_DEFINITION_KEY: "Give each definition a key of its own.",
    DefinitionErrorCode.UNREGISTERED_SUBWORKFLOW: "A subworkflow is a WorkflowDefinition with a definition_key.",
    DefinitionErrorCode.UNKNOWN_PARAMETER: "Give the function such a parameter, or remove the argument.",
    DefinitionErrorCode.MISSING_PARAMETER: "Give a value, give a node, or give the parameter a default.",
    DefinitionErrorCode.GIVEN_TWICE: "Give each parameter once.",
    DefinitionErrorCode.PARAMS_WITHOUT_BUILD_WITH: "Override build_with, with these parameters.",
    DefinitionErrorCode.INVALID_BUILD_WITH: "Write a classmethod whose parameters can be given by name.",
    DefinitionErrorCode.SOURCE_TYPE: "args_from gives a TaskResult; values_from and plain nodes give the ok value.",
    DefinitionErrorCode.OUTPUT_TYPE: "Make the output's type the one that the definition names.",
    DefinitionErrorCode.POSITIONAL_ARGUMENTS: "Give the arguments of a node by name.",
    DefinitionErrorCode.BUILDER_WITHOUT_CASES: "@workflow_builder(cases=[{'day': '2026-01-01'}])",
    DefinitionErrorCode.INVALID_CASE: "A case is a dict of arguments that the builder takes.",
    DefinitionErrorCode.BUILDER_FAILED: "A builder takes plain values and returns a Workflow.",
    DefinitionErrorCode.UNDECORATED_BUILDER: "Put @workflow_builder above it, or a leading underscore before its name.",
    DefinitionErrorCode.NOT_SERIALIZABLE: "Pass values that JSON can hold; store large ones and pass their keys.",
    DefinitionErrorCode.INVALID_WORKFLOW_ID: "Give a UUID, or its text.",
    DefinitionErrorCode.INVALID_OPTION: "See the page on workflows.",
    DefinitionErrorCode.INVALID_CONDITION: "Use a module's function that takes the WorkflowContext and returns a bool.",
    DefinitionErrorCode.INVALID_MAP: "task.map(over=a node that returns a list, param='the parameter for one item')",
    DefinitionErrorCode.INVALID_SLEEP: "sleep() takes seconds, a timedelta, or an aware datetime.",
    DefinitionErrorCode.INVALID_EVENT: "wait_for_event('approved', timeout=3600)",
    DefinitionErrorCode.INVALID_BACKEND: "A workflow and its tasks are in one database, in backends of this package.",
    DefinitionErrorCode.ARGUMENT_TYPE: "Pass a value of the parameter's type, or widen its hint.",
    DefinitionErrorCode.CONTAINS_ITSELF: "Remove the node, or give it an argument that ends the recursion.",
}


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


def shown(value: object) -> str:
    """Return the repr of a value, cut to 100 characters, for an error message."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
