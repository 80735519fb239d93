"""Resolves the inputs of a node: reads the results of other nodes when the node's task starts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any

from django.db.models import Count, TextField
from django.db.models.functions import Cast

from ..core.backends import reads_typed
from ..core.compat import FrameworkTask
from ..core.parameters import parameters_of
from ..core.results import OperationalCode, TaskError, TaskResult
from ..core.serialization import decode
from ..enqueue import result_reader
from ..enqueue.nodes import CTX_PARAM, META_PARAM, WORKFLOW_PARAMS, SubWorkflowSummary, WorkflowContext, WorkflowMeta

if TYPE_CHECKING:
    from ..models import WorkflowTask
    from ..steps.task_run import TaskRun


def arguments_of_run(run: TaskRun, task: FrameworkTask[..., Any]) -> dict[str, Any]:
    """Return the arguments of a node's task that its workflow fills.

    None for the task that builds a subworkflow, which resolves its own.
    """
    parameters = parameters_of(task.func, task.takes_context).by_name
    if not (run.claimed.has_inputs or WORKFLOW_PARAMS & parameters):
        return {}
    from ..models import WorkflowTask
    from .engine.enqueue_nodes import BUILD_TASK

    if run.claimed.task_name == BUILD_TASK:
        return {}
    nodes = WorkflowTask.objects.using(run.database)
    return arguments_of(nodes.select_related("workflow").get(task_id=run.task_id), parameters)


def arguments_of(node: WorkflowTask, parameters: Set[str]) -> dict[str, Any]:
    """Return the arguments that a node passes to a function with these parameters, from the rows."""
    indexes = {index for source in (*node.args_from.values(), *node.values_from.values()) for index in _indexes(source)}
    ids, results = results_of(node, indexes | set(node.ctx_from or ()))
    arguments: dict[str, Any] = {}
    for name, source in node.args_from.items():
        _fill(arguments, name, source, results)
    values = {index: result.ok for index, result in results.items() if result.is_ok()}
    for name, source in node.values_from.items():
        _fill(arguments, name, source, values)
    about: dict[str, Any] = {
        "workflow_id": node.workflow.pk,
        "task_index": node.task_index,
        "task_name": node.task_name or "",
        "node_id": node.node_id,
    }
    if META_PARAM in parameters:
        arguments[META_PARAM] = WorkflowMeta(**about)
    if CTX_PARAM in parameters:
        listed = {ids[index]: results[index] for index in node.ctx_from or () if index in results}
        summaries = _summaries(node) if listed else {}
        arguments[CTX_PARAM] = WorkflowContext(**about, results=listed, summaries=summaries)
    return arguments


def results_of(node: WorkflowTask, indexes: Set[int]) -> tuple[dict[int, str], dict[int, result_reader.Result]]:
    """Return the ids and the results of those of these nodes that have ended, by index."""
    from ..models import WorkflowTask

    nodes = WorkflowTask.objects.using(node._state.db)
    ended = nodes.filter(workflow=node.workflow_id, task_index__in=indexes, completed_at__isnull=False)
    columns = ("task_index", "node_id", Cast("result", TextField()), "backend", "typed_payload")
    rows = [row for row in ended.values_list(*columns) if row[2] is not None]
    results = {index: _read(text, reads_typed(backend, typed)) for index, _, text, backend, typed in rows}
    return {index: node_id for index, node_id, *_ in rows}, results


def _summaries(node: WorkflowTask) -> dict[str, SubWorkflowSummary]:
    """Return how the subworkflows ended that the node's context lists."""
    from ..models import Workflow, WorkflowTask
    from .engine.complete_workflow import summary

    workflows = Workflow.objects.using(node._state.db).filter(
        parent__workflow=node.workflow, parent__task_index__in=node.ctx_from or ()
    )
    summaries: dict[str, SubWorkflowSummary] = {}
    for workflow in workflows.select_related("parent").order_by("sent_at", "pk"):
        steps = WorkflowTask.objects.using(node._state.db).filter(workflow=workflow, map_index__isnull=True)
        counts = Counter(dict(steps.order_by().values_list("status").annotate(count=Count("pk"))))
        if workflow.parent is not None:
            summaries[workflow.parent.node_id] = SubWorkflowSummary(**summary(workflow, counts))
    return summaries


def _indexes(source: int | list[int]) -> list[int]:
    return source if isinstance(source, list) else [source]


def _fill(arguments: dict[str, Any], name: str, source: int | list[int], values: Mapping[int, Any]) -> None:
    """Fill a parameter from the known values; leave it out if there is none."""
    if isinstance(source, list):
        arguments[name] = [values[index] for index in source if index in values]
    elif source in values:
        arguments[name] = values[source]


def _read(text: str, typed: bool) -> result_reader.Result:
    """Read a node's result."""
    stored = json.loads(text)
    if not isinstance(stored, dict) or not stored.keys() & {"ok", "err"}:
        return result_reader.error(
            OperationalCode.RESULT_DESERIALIZATION_ERROR, "The stored result of the node can't be read."
        )
    if "err" in stored:
        return TaskResult(err=TaskError.from_json(stored["err"]))
    return TaskResult(ok=decode(stored["ok"], typed=typed))
