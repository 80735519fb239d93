"""Validates a workflow's definition as it is built, and reports all errors at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from ..core.compat import DEFAULT_TASK_BACKEND_ALIAS
from ..core.exceptions import InvalidWorkflow
from ..core.ids import parse_uuid
from ..core.serialization import clean_text
from ..core.workflow_errors import DefinitionError, DefinitionErrorCode, shown
from ..core.workflow_status import OnError
from ..enqueue.nodes import Node, NodeKey, TaskNode
from .blueprint import WorkflowBlueprint
from .compile import compile_nodes
from .errors import ErrorList
from .node_options import NodeOptionsResolver
from .success_policy import SuccessCase, SuccessPolicy
from .topology import Topology, build_topology, slug_of

NAME_LENGTH: Final = 255
_ON_ERROR: Final = {text: str(word) for word in OnError for text in (str(word), str(word).lower())}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowOptions:
    """The arguments of a workflow before validation."""

    name: Any
    nodes: Any
    on_error: Any = OnError.FAIL
    output: Any = None
    success_policy: Any = None
    good_until: datetime | None = None
    priority: int | None = None
    queue_name: str | None = None
    unique_key: str | None = None
    definition_key: str | None = None
    backend: str | None = None


@dataclass(frozen=True, slots=True)
class ValidWorkflow:
    """A workflow without errors: its topology and its blueprint."""

    topology: Topology
    blueprint: WorkflowBlueprint


def build(options: WorkflowOptions) -> ValidWorkflow:
    """Validate a workflow and return it. Raises InvalidWorkflow with all errors."""
    errors = ErrorList(options.name if isinstance(options.name, str) else shown(options.name))
    _check_texts(options, errors)
    topology = build_topology(slug_of(options.name), options.nodes, errors)
    alias = options.backend if options.backend is not None else _backend_of(topology)
    inherited = {name: getattr(options, name) for name in ("queue_name", "priority", "good_until")}
    resolver = NodeOptionsResolver(alias, {name: value for name, value in inherited.items() if value is not None})
    for code, problem in resolver.errors:
        errors.add(code, problem)
    blueprint = WorkflowBlueprint(
        name=options.name,
        definition_key=options.definition_key,
        on_error=_on_error(options.on_error, errors),
        output_index=_output(options.output, topology, errors),
        success_policy=_success_policy(options.success_policy, topology, errors),
        good_until=options.good_until,
        unique_key=options.unique_key,
        backend=alias,
        queue_name=options.queue_name,
        priority=options.priority,
        nodes=compile_nodes(topology, resolver, errors),
    )
    errors.raise_if_any()
    return ValidWorkflow(topology, blueprint)


def workflow_id(given: object, name: str) -> UUID | None:
    """Return the id for a workflow, None if none is given. Raises InvalidWorkflow for an invalid one."""
    try:
        return None if given is None else parse_uuid(given, "workflow_id")
    except ValueError as error:
        raise InvalidWorkflow(
            [DefinitionError(DefinitionErrorCode.INVALID_WORKFLOW_ID, name, None, str(error))]
        ) from None


def _check_texts(options: WorkflowOptions, errors: ErrorList) -> None:
    if not _is_text(options.name):
        errors.add(DefinitionErrorCode.NO_NAME, f"name is {shown(options.name)}; allowed: {_TEXT}.")
    if options.definition_key is not None and not _is_text(options.definition_key):
        problem = f"definition_key is {shown(options.definition_key)}; allowed: {_TEXT}."
        errors.add(DefinitionErrorCode.NO_DEFINITION_KEY, problem)
    if options.unique_key is not None and not _is_text(options.unique_key):
        errors.add(DefinitionErrorCode.INVALID_OPTION, f"unique_key is {shown(options.unique_key)}; allowed: {_TEXT}.")


_TEXT: Final = f"a text of 1 to {NAME_LENGTH} characters"


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value.strip()) <= len(value) <= NAME_LENGTH and value == clean_text(value)


def _backend_of(topology: Topology) -> str:
    """Return the backend of the first task, for a workflow without its own."""
    return next(
        (node.task.backend for node in topology.nodes if isinstance(node, TaskNode)), DEFAULT_TASK_BACKEND_ALIAS
    )


def _on_error(given: Any, errors: ErrorList) -> str:
    if isinstance(given, str) and given in _ON_ERROR:
        return _ON_ERROR[given]
    errors.add(DefinitionErrorCode.INVALID_OPTION, f"on_error is {shown(given)}; allowed: {', '.join(OnError.values)}.")
    return str(OnError.FAIL)


def _output(given: Any, topology: Topology, errors: ErrorList) -> int | None:
    if given is None:
        return None
    if (place := index_of(given, topology)) is None:
        problem = f"output is {shown(given)}, which is not in the workflow; allowed: {_names(topology)}."
        errors.add(DefinitionErrorCode.INVALID_OUTPUT, problem)
    return place


def _success_policy(given: Any, topology: Topology, errors: ErrorList) -> list[dict[str, list[int]]] | None:
    if given is None:
        return None
    code = DefinitionErrorCode.INVALID_SUCCESS_POLICY
    if not isinstance(given, SuccessPolicy):
        errors.add(code, f"success_policy is {shown(given)}; allowed: a SuccessPolicy.")
        return None
    if not given.cases:
        errors.add(code, "success_policy has no cases; allowed: at least one.")
    cases = []
    for number, case in enumerate(given.cases):
        if not isinstance(case, SuccessCase):
            errors.add(code, f"success_policy.cases[{number}] is {shown(case)}; allowed: a SuccessCase.")
            continue
        for problem in _problems_of_case(case, topology):
            errors.add(code, f"success_policy.cases[{number}]{problem}")
        named = {"required": case.required, "optional": case.optional}
        cases.append({name: [index_of(ref, topology) or 0 for ref in refs] for name, refs in named.items()})
    return cases


def _problems_of_case(case: SuccessCase, topology: Topology) -> Iterator[str]:
    if not case.required:
        yield ".required is empty, so it is always met; allowed: at least one node."
    for name, refs in (("required", case.required), ("optional", case.optional)):
        for ref in refs:
            if index_of(ref, topology) is None:
                yield f".{name} has {shown(ref)}, which is not in the workflow; allowed: {_names(topology)}."
    required = {index_of(ref, topology) for ref in case.required}
    for ref in case.optional:
        if (place := index_of(ref, topology)) is not None and place in required:
            yield f" has {topology.ids[place]!r} as required and as optional; allowed: one of them."


def index_of(ref: Any, topology: Topology) -> int | None:
    """Return the index of a node, given as object, key or id; None if it is not in the workflow."""
    if isinstance(ref, Node):
        return topology.index.get(ref)
    node_id = ref.node_id if isinstance(ref, NodeKey) else ref
    return topology.index_by_id.get(node_id) if isinstance(node_id, str) else None


def _names(topology: Topology) -> str:
    """Return the ids of the nodes for an error message, at most ten."""
    more = f", … ({len(topology.ids):,} in all)" if len(topology.ids) > 10 else ""
    return (", ".join(topology.ids[:10]) or "none, since it has no nodes") + more
