"""Completing workflows: when the last node has ended, the workflow ends, and its parent node with it."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from django.db import models
from django.db.models import F, Value

from ...core.ids import uuid7s
from ...core.results import TaskError
from ...core.retry import RetryPolicy
from ...core.workflow_errors import STOPPED_BY, WorkflowCode
from ...core.workflow_status import WORKFLOW_TERMINAL_STATES, WorkflowStatus, WorkflowTaskStatus
from ...db.completions import notify_after_commit
from ...db.expressions import ValueByPk
from ...db.on_commit import on_commit_robust
from ...models import Workflow
from .. import lifecycle
from .context import EngineContext
from .enqueue_nodes import BUILD_TASK, due_in, notify_workers_later
from .queries import Query
from .rows import NodeEnd, NodeResult, ParentNode, Position, WorkflowState, wake_awaiting_after_commit

logger = logging.getLogger("horsies_django.workflows")

_NOT_COMPLETABLE: Final = (WorkflowStatus.PAUSED, WorkflowStatus.PENDING)

_FAILURE_CODES: Final = {WorkflowStatus.FAILED: WorkflowCode.SUBWORKFLOW_FAILED, **STOPPED_BY}


def complete_workflows(context: EngineContext, keys: Collection[UUID]) -> list[NodeEnd]:
    """End those of these workflows that have no open node; return the ends of their parent nodes."""
    context.load_workflows(keys)
    workflows = [context.workflows[key] for key in keys if key in context.workflows]
    ended = [workflow for workflow in workflows if workflow.open_count == 0 and workflow.status not in _NOT_COMPLETABLE]
    if not ended:
        return []
    _load(context, ended)
    finished = [workflow for workflow in ended if workflow.is_running]
    for workflow in finished:
        workflow.error = _error(context, workflow)
        is_success = workflow.error is None
        workflow.status = (lifecycle.COMPLETE_WORKFLOW if is_success else lifecycle.FAIL_WORKFLOW).target
        if workflow.error is None:
            workflow.result = {"ok": _output(context, workflow)}
        on_commit_robust(context.database, _log, workflow)
        context.end_workflow(workflow)
    notify_after_commit(context.database, [workflow.id for workflow in finished])
    wake_awaiting_after_commit(context.database, [workflow.id for workflow in finished if workflow.is_awaited])
    return _end_parents(context, [workflow for workflow in ended if workflow.parent_id is not None])


def preload(context: EngineContext, positions: Collection[Position]) -> None:
    """Load all nodes below these positions, and all that decides how the running workflows end."""
    _load(
        context,
        [workflow for workflow in context.workflows.values() if workflow.is_running],
        context.query_waiting_below(positions),
    )


def _load(context: EngineContext, workflows: Sequence[WorkflowState], below: Query | None = None) -> None:
    """Load the nodes that decide how these workflows end, and their parent nodes, in one round trip.

    ``below`` is the query for all waiting nodes, if the workflows have not ended. Then the rows that a failed
    subworkflow needs are loaded too.
    """
    queries = context.queries
    live = [workflow for workflow in workflows if workflow.is_running]
    positions = {(workflow.id, index) for workflow in live for index in _deciding_nodes(workflow)}
    if below:
        positions |= {(parent.workflow_id, parent.task_index) for parent in context.parents.values() if parent}
    leaves = [workflow.id for workflow in live if _outputs_leaves(workflow) and workflow.id not in context.leaves]
    children = [workflow for workflow in workflows if workflow.parent_id is not None]
    counted = [workflow.id for workflow in children if below or _may_fail(workflow)]
    counted = [key for key in counted if key not in context.status_counts]
    parents = context.unread_parents(children)
    waiting, outcomes, of_leaves, counts, rows = context.fetch(
        below,
        queries.outcomes(positions.difference(context.outcomes)),
        queries.leaves(leaves),
        queries.status_counts(counted),
        queries.parents(parents),
    )
    if below:
        context.add_all_waiting(waiting)
    context.leaves |= {key: [] for key in leaves}
    context.add_outcomes([*outcomes, *of_leaves])
    for workflow_id, index, *_ in of_leaves:
        context.leaves[workflow_id].append(index)
    context.add_status_counts(counted, counts)
    context.add_parents(parents, rows)
    completed = (workflow for workflow in children if workflow.status == WorkflowStatus.COMPLETED)
    # Another transaction has ended these, and their nodes were not ended.
    if ended := [workflow.id for workflow in completed if workflow.result is None]:
        results = Workflow.objects.using(context.database).filter(pk__in=ended)
        for key, result in results.values_list("pk", "result"):
            context.workflows[key].result = result


def _deciding_nodes(workflow: WorkflowState) -> set[int]:
    """Return the indexes of the nodes that decide how a workflow ends."""
    indexes = (workflow.failed_index, workflow.output_index)
    return workflow.required | {index for index in indexes if index is not None}


def _outputs_leaves(workflow: WorkflowState) -> bool:
    """Whether the result of a workflow is that of all nodes without dependents."""
    return workflow.output_index is None and workflow.parent_id is None


def _may_fail(workflow: WorkflowState) -> bool:
    is_fine = workflow.is_running and workflow.failed_index is None and workflow.success_policy is None
    return not is_fine and workflow.status != WorkflowStatus.COMPLETED


def _log(workflow: WorkflowState) -> None:
    """Log the end of a workflow: the log lines of its tasks do not name it."""
    if (error := workflow.error) is None:
        logger.info("workflow completed id=%s name=%s", workflow.id, workflow.name)
    else:
        details = (error.get("node_id"), error.get("error_code"))
        logger.warning("workflow failed id=%s name=%s node=%s error=%s", workflow.id, workflow.name, *details)


def _error(context: EngineContext, workflow: WorkflowState) -> dict[str, Any] | None:
    if workflow.success_policy is None:
        return None if workflow.failed_index is None else _node_error(context, workflow, workflow.failed_index)
    states = {index: context.outcomes[workflow.id, index].status for index in workflow.required}
    for case in workflow.success_policy:
        if all(states[index] == WorkflowTaskStatus.COMPLETED for index in case["required"]):
            return None
    failed = sorted(index for index, status in states.items() if status == WorkflowTaskStatus.FAILED)
    if failed:
        return _node_error(context, workflow, failed[0])
    return TaskError(
        error_code=WorkflowCode.WORKFLOW_SUCCESS_CASE_NOT_MET, message="No case of the success policy is met."
    ).as_json()


def _node_error(context: EngineContext, workflow: WorkflowState, index: int) -> dict[str, Any]:
    """Return the error of a node, with the node's name."""
    outcome = context.outcomes[workflow.id, index]
    error: Mapping[str, Any] = json.loads(outcome.result or "{}").get("err") or {}
    default = {"error_code": str(WorkflowCode.WORKFLOW_FAILED), "message": "", "data": None}
    return {**default, **error, "node_id": outcome.node_id}


def _output(context: EngineContext, workflow: WorkflowState) -> Any:
    if workflow.output_index is not None:
        return json.loads(context.outcomes[workflow.id, workflow.output_index].result or "{}").get("ok")
    if workflow.parent_id is not None:
        return None
    leaves = [context.outcomes[workflow.id, index] for index in context.leaves[workflow.id]]
    return {leaf.node_id: json.loads(leaf.result or "null") for leaf in leaves}


def _end_parents(context: EngineContext, workflows: Sequence[WorkflowState]) -> list[NodeEnd]:
    """End the parent nodes of these workflows, but for those that rebuild them; return the ends."""
    results: list[NodeResult] = []
    failed: list[tuple[ParentNode, WorkflowState, RetryPolicy]] = []
    for workflow in workflows:
        parent = context.parents.get(workflow.parent_id or 0)
        if parent is None:
            continue
        context.parents[parent.pk] = None
        if workflow.status == WorkflowStatus.COMPLETED:
            results.append(NodeResult(parent.end_as(WorkflowTaskStatus.COMPLETED), workflow.output))
        elif policy := _rebuild_policy(context, parent, workflow):
            failed.append((parent, workflow, policy))
        else:
            code = str(_FAILURE_CODES[WorkflowStatus(workflow.status)])
            message = (workflow.error or {}).get("message") or f"The subworkflow is {workflow.status}."
            data = {**summary(workflow, context.status_counts[workflow.id]), "workflow_id": str(workflow.id)}
            results.append(NodeResult.err(parent.end_as(WorkflowTaskStatus.FAILED), code, message, data))
    ends = context.end_nodes(results)
    _rebuild(context, failed)
    return ends


def _rebuild_policy(context: EngineContext, parent: ParentNode, workflow: WorkflowState) -> RetryPolicy | None:
    """Return the retry policy by which to rebuild a failed subworkflow; None not to."""
    above = context.workflows[parent.workflow_id].status
    if workflow.status != WorkflowStatus.FAILED or above in WORKFLOW_TERMINAL_STATES:
        return None
    policy = RetryPolicy.read(parent.retry_policy, parent.task_id)
    codes = (str((workflow.error or {}).get("error_code")), str(WorkflowCode.SUBWORKFLOW_FAILED))
    if policy is None or parent.rebuilds >= policy.max_retries or not any(map(policy.covers, codes)):
        return None
    return policy


def _rebuild(context: EngineContext, failed: Sequence[tuple[ParentNode, WorkflowState, RetryPolicy]]) -> None:
    """Rebuild failed subworkflows.

    A failed one keeps its parent and is marked as replaced: only the newest counts. The node counts the rebuilds, since
    their tasks may have been deleted.
    """
    if not failed:
        return
    nodes = context.nodes
    Workflow.objects.using(context.database).filter(pk__in=[workflow.id for _, workflow, _ in failed]).update(
        is_replaced=True
    )
    nodes.filter(pk__in=[parent.pk for parent, *_ in failed]).update(rebuilds=F("rebuilds") + 1)
    is_paused = {node.pk: context.workflows[node.workflow_id].status == WorkflowStatus.PAUSED for node, *_ in failed}
    if paused := [key for key, is_so in is_paused.items() if is_so]:
        lifecycle.RETURN_TO_READY.apply(nodes.filter(pk__in=paused), task_id=None)
    due = [(parent, policy) for parent, _, policy in failed if not is_paused[parent.pk]]
    task_ids = dict(zip((parent.pk for parent, _ in due), uuid7s(len(due)), strict=True))
    retries = ValueByPk({parent.pk: str(parent.rebuilds + 1) for parent, _ in due}, models.IntegerField())
    delays = {parent.pk: str(policy.delay(parent.rebuilds + 1)) for parent, policy in due}
    if due:
        changes = {
            "task_name": Value(BUILD_TASK),
            "retry_count": retries,
            **due_in(ValueByPk(delays, models.FloatField())),
        }
        context.queries.enqueue(None, task_ids, changes)
        notify_workers_later(context, (parent.queue_name for parent, _ in due))


def summary(workflow: Workflow | WorkflowState, counts: Counter[str]) -> dict[str, Any]:
    """Return the status of a workflow, how many nodes have each status, and its error as text."""
    ended = (WorkflowTaskStatus.COMPLETED, WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED)
    error = workflow.error
    return {
        "workflow_id": workflow.id,
        "status": WorkflowStatus(workflow.status),
        "total": counts.total(),
        **{each.lower(): counts[each] for each in ended},
        "error": error and f"{error.get('error_code')}: {error.get('message')}",
    }
