"""Finishing: what a workflow comes to when its last node has ended (W-50, W-51), and what its parent is told."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from django.db import models
from django.db.models import Count, F, Value

from ...core.ids import uuid7s
from ...core.results import TaskError
from ...core.retry import RetryPolicy
from ...core.serialization import dumps
from ...core.workflow_status import WORKFLOW_TERMINAL_STATES, WorkflowStatus, WorkflowTaskStatus
from ...db.completions import notify_after_commit
from ...db.expressions import FromMap
from ...db.on_commit import on_commit_robust
from ...models import Workflow, WorkflowTask
from .. import lifecycle
from ..codes import STOPPED_BY, WorkflowCode
from . import node_end
from .context import WorkflowState, ParentNode, EngineContext
from .enqueue_nodes import BUILD_TASK, due_in, notify_workers
from .nodes import NodeResult, Position, NodeEnd
from .queries import Query

logger = logging.getLogger("horsies_django.workflows")

_NOT_COMPLETABLE: Final = (WorkflowStatus.PAUSED, WorkflowStatus.PENDING)

_FAILURE_CODES: Final = {WorkflowStatus.FAILED: WorkflowCode.SUBWORKFLOW_FAILED, **STOPPED_BY}


def complete_workflows(turn: EngineContext, keys: Collection[UUID]) -> list[NodeEnd]:
    """End those of these workflows that have no open node left; return the nodes of which they are subworkflows."""
    turn.load_workflows(keys)
    flows = [turn.workflows[key] for key in keys if key in turn.workflows]
    done = [flow for flow in flows if flow.open_count == 0 and flow.status not in _NOT_COMPLETABLE]
    if not done:
        return []
    _load(turn, done)
    finished = [flow for flow in done if flow.is_running]
    for flow in finished:
        flow.error = _error(turn, flow)
        is_success = flow.error is None
        flow.status = (lifecycle.COMPLETE_WORKFLOW if is_success else lifecycle.FAIL_WORKFLOW).target
        if flow.error is None:
            flow.result = {"ok": _output(turn, flow)}
        on_commit_robust(turn.database, _log, flow)
        turn.end_workflow(flow)
    notify_after_commit(turn.database, [flow.key for flow in finished])
    return _end_parents(turn, [flow for flow in done if flow.parent_id is not None])


def preload(turn: EngineContext, places: Collection[Position]) -> None:
    """Read all that waits for what is at these places, and what says how the workflows end, however that may be."""
    _load(turn, [flow for flow in turn.workflows.values() if flow.is_running], turn.query_waiting_below(places))


def _load(turn: EngineContext, flows: Sequence[WorkflowState], below: Query | None = None) -> None:
    """Read what says how these workflows end, and the nodes that have them as subworkflows, in one round trip.

    With ``below``, how they end is still open: what waits is read as well, and what is needed if a subworkflow fails.
    """
    ask = turn.queries
    live = [flow for flow in flows if flow.is_running]
    places = {(flow.key, index) for flow in live for index in _deciding_nodes(flow)}.difference(turn.outcomes)
    if below:
        inner = {(parent.workflow_id, parent.task_index) for parent in turn.parents.values() if parent is not None}
        places |= inner.difference(turn.outcomes)
    leaves = [flow.key for flow in live if _outputs_leaves(flow) and flow.key not in turn.leaves]
    told = [flow for flow in flows if flow.parent_id is not None]
    counted = [flow.key for flow in told if (below or _may_fail(flow)) and flow.key not in turn.status_counts]
    parents = [flow.parent_id for flow in told if flow.parent_id is not None and flow.parent_id not in turn.parents]
    waiting, outcomes, of_leaves, counts, rows = turn.fetch(
        below,
        ask.outcomes(places) if places else None,
        ask.leaves(leaves) if leaves else None,
        ask.status_counts(counted) if counted else None,
        ask.parents(parents) if parents else None,
    )
    if below:
        turn.add_all_waiting(waiting)
    turn.leaves |= {key: [] for key in leaves}
    turn.add_outcomes([*outcomes, *of_leaves])
    for workflow_id, index, *_ in of_leaves:
        turn.leaves[workflow_id].append(index)
    turn.add_status_counts(counted, counts)
    turn.add_parents(rows)
    turn.parents = dict.fromkeys(parents) | turn.parents
    again = [flow.key for flow in told if flow.status == WorkflowStatus.COMPLETED and flow.result is None]
    if again:  # somebody else has ended it, and its node was not told
        results = Workflow.objects.using(turn.database).filter(pk__in=again)
        for key, result in results.values_list("pk", "result"):
            turn.workflows[key].result = result


def _deciding_nodes(flow: WorkflowState) -> set[int]:
    """The nodes that say how a workflow ends."""
    return flow.required | ({flow.failed_index, flow.output_index} - {None})  # type: ignore[operator]


def _outputs_leaves(flow: WorkflowState) -> bool:
    """Whether the result of a workflow is that of all nodes for which no other waits."""
    return flow.output_index is None and flow.parent_id is None


def _may_fail(flow: WorkflowState) -> bool:
    is_fine = flow.is_running and flow.failed_index is None and flow.success_policy is None
    return not is_fine and flow.status != WorkflowStatus.COMPLETED


def _log(flow: WorkflowState) -> None:
    """A line for each workflow, as each task has one: its tasks do not say whose they are."""
    if (error := flow.error) is None:
        logger.info("workflow completed id=%s name=%s", flow.key, flow.name)
    else:
        told = (error.get("node_id"), error.get("error_code"))
        logger.warning("workflow failed id=%s name=%s node=%s error=%s", flow.key, flow.name, *told)


def _error(turn: EngineContext, flow: WorkflowState) -> dict[str, Any] | None:
    if flow.success_policy is None:
        return None if flow.failed_index is None else _node_error(turn, flow, flow.failed_index)
    states = {index: turn.outcomes[flow.key, index].status for index in flow.required}
    for case in flow.success_policy:
        if all(states[index] == WorkflowTaskStatus.COMPLETED for index in case["required"]):
            return None
    failed = sorted(index for index, status in states.items() if status == WorkflowTaskStatus.FAILED)
    if failed:
        return _node_error(turn, flow, failed[0])
    return TaskError(
        error_code=WorkflowCode.WORKFLOW_SUCCESS_CASE_NOT_MET, message="No case of the success policy is met."
    ).as_json()


def _node_error(turn: EngineContext, flow: WorkflowState, index: int) -> dict[str, Any]:
    """The error of a node, with its name."""
    outcome = turn.outcomes[flow.key, index]
    error: Mapping[str, Any] = json.loads(outcome.result or "{}").get("err") or {}
    default = {"error_code": str(WorkflowCode.WORKFLOW_FAILED), "message": "", "data": None}
    return {**default, **error, "node_id": outcome.node_id}


def _output(turn: EngineContext, flow: WorkflowState) -> Any:
    if flow.output_index is not None:
        return json.loads(turn.outcomes[flow.key, flow.output_index].result or "{}").get("ok")
    if flow.parent_id is not None:
        return None
    leaves = [turn.outcomes[flow.key, index] for index in turn.leaves[flow.key]]
    return {leaf.node_id: json.loads(leaf.result or "null") for leaf in leaves}


def _end_parents(turn: EngineContext, flows: Sequence[WorkflowState]) -> list[NodeEnd]:
    """End the nodes that have these workflows as subworkflows, but for those that build them anew; return them."""
    endings: list[NodeResult] = []
    again: list[tuple[ParentNode, WorkflowState, RetryPolicy]] = []
    for flow in flows:
        parent = turn.parents.get(flow.parent_id or 0)
        if parent is None:
            continue
        turn.parents[parent.pk] = None
        if flow.status == WorkflowStatus.COMPLETED:
            endings.append(NodeResult(parent.end_as(WorkflowTaskStatus.COMPLETED), flow.output))
        elif policy := _rebuild_policy(turn, parent, flow):
            again.append((parent, flow, policy))
        else:
            code = str(_FAILURE_CODES[WorkflowStatus(flow.status)])
            message = (flow.error or {}).get("message") or f"The subworkflow is {flow.status}."
            data = {**_summary(flow, turn.status_counts[flow.key]), "workflow_id": str(flow.key)}
            text = dumps(node_end.err_result(code, message, data))
            endings.append(NodeResult(parent.end_as(WorkflowTaskStatus.FAILED), text, code))
    ends = turn.end_nodes(endings)
    _rebuild(turn, again)
    return ends


def _rebuild_policy(turn: EngineContext, parent: ParentNode, flow: WorkflowState) -> RetryPolicy | None:
    """The policy by which a failed subworkflow is to be built anew, if there is one that says so (P-10)."""
    above = turn.workflows[parent.workflow_id].status
    if flow.status != WorkflowStatus.FAILED or above in WORKFLOW_TERMINAL_STATES:
        return None
    policy = RetryPolicy.read(parent.retry_policy, parent.task_id)
    codes = (str((flow.error or {}).get("error_code")), str(WorkflowCode.SUBWORKFLOW_FAILED))
    if policy is None or parent.rebuilds >= policy.max_retries or not any(map(policy.covers, codes)):
        return None
    return policy


def _rebuild(turn: EngineContext, again: Sequence[tuple[ParentNode, WorkflowState, RetryPolicy]]) -> None:
    """Have failed subworkflows built anew.

    One that has failed keeps its parent, and is marked: the newest counts. How many there were is counted by the node,
    for its tasks may be gone.
    """
    if not again:
        return
    nodes = turn.nodes
    Workflow.objects.using(turn.database).filter(pk__in=[flow.key for _, flow, _ in again]).update(is_replaced=True)
    nodes.filter(pk__in=[parent.pk for parent, *_ in again]).update(rebuilds=F("rebuilds") + 1)
    is_paused = {one.pk: turn.workflows[one.workflow_id].status == WorkflowStatus.PAUSED for one, *_ in again}
    if paused := [key for key, is_so in is_paused.items() if is_so]:
        lifecycle.RETURN_TO_READY.apply(nodes.filter(pk__in=paused), task_id=None)
    due = [(parent, policy) for parent, _, policy in again if not is_paused[parent.pk]]
    lanes = {parent.pk: (parent.queue_name, False) for parent, _ in due}
    task_ids = dict(zip(lanes, uuid7s(len(lanes)), strict=True))
    retries = FromMap({parent.pk: str(parent.rebuilds + 1) for parent, _ in due}, models.IntegerField())
    delays = {parent.pk: str(policy.delay(parent.rebuilds + 1)) for parent, policy in due}
    if due:
        changes = {"task_name": Value(BUILD_TASK), "retry_count": retries, **due_in(FromMap(delays, models.FloatField()))}
        turn.queries.enqueue(None, task_ids, changes)
        notify_workers(turn, {task_ids[key]: lane for key, lane in lanes.items()}, is_later=True)


def summary(workflow: Workflow) -> dict[str, Any]:
    """Return how a workflow stands, in numbers, and its error in words."""
    nodes = WorkflowTask.objects.using(workflow._state.db).filter(workflow=workflow, map_index__isnull=True)
    counts = Counter(dict(nodes.order_by().values_list("status").annotate(count=Count("pk"))))
    return {"workflow_id": workflow.pk, **_numbers(workflow.status, workflow.error, counts)}


def _summary(flow: WorkflowState, counts: Counter[str]) -> dict[str, Any]:
    return {"workflow_id": flow.key, **_numbers(flow.status, flow.error, counts)}


def _numbers(status: str, error: Mapping[str, Any] | None, counts: Counter[str]) -> dict[str, Any]:
    ended = (WorkflowTaskStatus.COMPLETED, WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED)
    return {
        "status": WorkflowStatus(status),
        "total": counts.total(),
        **{each.lower(): counts[each] for each in ended},
        "error": error and f"{error.get('error_code')}: {error.get('message')}",
    }
