"""What can be wrong with a workflow's definition."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class MistakeCode(StrEnum):
    """The kinds of mistakes. Up to 032 they are horsies' own; what horsies does not have begins at 040."""

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
        """What to do about it."""
        return HINTS[self]


HINTS: Final[dict[MistakeCode, str]] = {
    MistakeCode.NO_NAME: "Give the workflow a name: Workflow('import', …).",
    MistakeCode.NO_NODES: "Give it nodes: task.node()(…), or a flow of them, a >> b.",
    MistakeCode.INVALID_NODE_ID: "Give another node_id, or none for one of our making.",
    MistakeCode.DUPLICATE_NODE_ID: "Give each node an id of its own.",
    MistakeCode.NO_ROOT: "Let at least one node wait for nothing.",
    MistakeCode.INVALID_DEPENDENCY: "Put the node into the workflow too, or don't wait for it.",
    MistakeCode.CYCLE: "Take one of these orders away.",
    MistakeCode.INVALID_ARGS_FROM: "Pass the node as a plain argument: then it is waited for too.",
    MistakeCode.INVALID_CTX_FROM: "Put the node into waits_for too.",
    MistakeCode.CTX_PARAM_MISSING: "Give the function a parameter named workflow_ctx.",
    MistakeCode.INVALID_OUTPUT: "Name a node of this workflow, or leave output out for the results of all last nodes.",
    MistakeCode.INVALID_SUCCESS_POLICY: "SuccessPolicy([SuccessCase(required=[node, …]), …])",
    MistakeCode.INVALID_JOIN: "join is Join.ALL, Join.ANY, or Join.QUORUM with min_success.",
    MistakeCode.INVALID_QUEUE: "Use a name of QUEUES, or add the name there.",
    MistakeCode.INVALID_PRIORITY: "Use a whole number from -100 to 100.",
    MistakeCode.NO_DEFINITION_KEY: "Give the class a Meta with definition_key = 'app.name'.",
    MistakeCode.DUPLICATE_DEFINITION_KEY: "Give each definition a key of its own.",
    MistakeCode.UNREGISTERED_SUBWORKFLOW: "A subworkflow is a WorkflowDefinition with a definition_key.",
    MistakeCode.UNKNOWN_PARAMETER: "Give the function such a parameter, or take the argument away.",
    MistakeCode.MISSING_PARAMETER: "Give a value, give a node, or give the parameter a default.",
    MistakeCode.GIVEN_TWICE: "Give each parameter once.",
    MistakeCode.PARAMS_WITHOUT_BUILD_WITH: "Override build_with, with these parameters.",
    MistakeCode.INVALID_BUILD_WITH: "Write a classmethod whose parameters can be given by name.",
    MistakeCode.SOURCE_TYPE: "args_from gives a TaskResult; values_from, and a node as an argument, its ok value.",
    MistakeCode.OUTPUT_TYPE: "Make the output's type the one that the definition names.",
    MistakeCode.POSITIONAL_ARGUMENTS: "Give the arguments of a node by name.",
    MistakeCode.BUILDER_WITHOUT_CASES: "@workflow_builder(cases=[{'day': '2026-01-01'}])",
    MistakeCode.INVALID_CASE: "A case is a dict of arguments that the builder takes.",
    MistakeCode.BUILDER_FAILED: "A builder takes plain values and returns a Workflow.",
    MistakeCode.UNDECORATED_BUILDER: "Put @workflow_builder above it, or a leading underscore before its name.",
    MistakeCode.NOT_SERIALIZABLE: "Pass what JSON can hold; of what is large, the key under which it is stored.",
    MistakeCode.INVALID_WORKFLOW_ID: "Give a UUID, or its text.",
    MistakeCode.INVALID_OPTION: "See the page on workflows.",
    MistakeCode.INVALID_CONDITION: "Use a function of a module that takes the WorkflowContext and returns a bool.",
    MistakeCode.INVALID_MAP: "task.map(over=a node that returns a list, param='the parameter for one item')",
    MistakeCode.INVALID_SLEEP: "sleep() takes seconds, a timedelta, or an aware datetime.",
    MistakeCode.INVALID_EVENT: "wait_for_event('approved', timeout=3600)",
    MistakeCode.INVALID_BACKEND: "A workflow and its tasks are in one database, in backends of this package.",
    MistakeCode.ARGUMENT_TYPE: "Pass a value of the parameter's type, or widen its hint.",
    MistakeCode.CONTAINS_ITSELF: "Take the node away, or give it an argument with which it comes to an end.",
}


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake: of which kind, in which workflow, at which node if at one; ``problem`` says what is, and may be."""

    code: MistakeCode
    workflow: str
    node: str | None
    problem: str

    @property
    def hint(self) -> str:
        """What to do about it."""
        return self.code.hint

    def __str__(self) -> str:
        where = f"workflow {self.workflow!r}" + (f", node {self.node!r}" if self.node is not None else "")
        return f"{self.code} {where}: {self.problem}"


#: A mistake before it is known in which workflow.
Flaw = tuple[MistakeCode, str]


def shown(value: object) -> str:
    """Return a value as a mistake names it."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
