"""Finishing: what a workflow comes to when its last node has ended (W-50, W-51), and what its parent is told."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.db import models, transaction
from django.db.models import Case, Count, Q, TextField, Value, When
from django.db.models.functions import Cast, Now

from ...ends import tell_after_commit
from ...models import Workflow, WorkflowTask
from ...results import TaskError
from ...retention import workflow_kept_until
from ...retries import RetryPolicy
from ..codes import STOPPED_BY, WorkflowCode
from ..states import WORKFLOW_TERMINAL_STATES, WorkflowStatus, WorkflowTaskStatus
from .enqueuing import BUILD, enqueue, later
from .nodes import BEGUN, NodeRows, Settled
from .turn import Turn

logger = logging.getLogger("horsies_django.workflows")

_FAILED: Final = {WorkflowStatus.FAILED: WorkflowCode.SUBWORKFLOW_FAILED, **STOPPED_BY}


def finish(turn: Turn, keys: Collection[UUID]) -> list[Settled]:
    """End those of these workflows that have no open node left; return the nodes of which they are subworkflows."""
    ends: list[Settled] = []
    finished: list[UUID] = []
    done = Workflow.objects.using(turn.database).filter(pk__in=keys, open_count=0)
    for workflow in done.exclude(status__in=[WorkflowStatus.PAUSED, WorkflowStatus.PENDING]):
        if workflow.status == WorkflowStatus.RUNNING:
            _finish(turn.nodes, workflow)
            transaction.on_commit(partial(_log, workflow), using=turn.database, robust=True)
            finished.append(workflow.pk)
        if workflow.parent_id is not None:
            ends += _tell_parent(turn, workflow)
    tell_after_commit(turn.database, finished)
    return ends


def _log(workflow: Workflow) -> None:
    """A line for each workflow, as each task has one: its tasks do not say whose they are."""
    if (error := workflow.error) is None:
        logger.info("workflow completed id=%s name=%s", workflow.pk, workflow.name)
    else:
        told = (error.get("node_id"), error.get("error_code"))
        logger.warning("workflow failed id=%s name=%s node=%s error=%s", workflow.pk, workflow.name, *told)


def _finish(nodes: NodeRows, workflow: Workflow) -> None:
    mine = nodes.filter(workflow=workflow)
    error = _error(mine, workflow)
    workflow.status = WorkflowStatus.COMPLETED if error is None else WorkflowStatus.FAILED
    workflow.error = error
    if error is None:
        workflow.result = {"ok": _output(mine, workflow)}
    rows = Workflow.objects.using(nodes.db).filter(pk=workflow.pk, status=WorkflowStatus.RUNNING, open_count=0)
    kept = keeping(rows, workflow.status)
    rows.update(status=workflow.status, completed_at=Now(), result=workflow.result, error=error, **kept)


def keeping(workflows: models.QuerySet[Workflow], status: str) -> dict[str, Any]:
    """Return what workflows that end so write of how long they are kept: what is below one goes with it."""
    until = workflow_kept_until(status, workflows.db)
    return {"kept_until": Case(When(depth=0, then=until), output_field=models.DateTimeField())}


def _error(mine: NodeRows, workflow: Workflow) -> dict[str, Any] | None:
    if workflow.success_policy is None:
        return None if workflow.failed_index is None else _error_of(mine, [workflow.failed_index])
    required = {index for case in workflow.success_policy for index in case["required"]}
    states = dict(mine.filter(task_index__in=required).values_list("task_index", "status"))
    for case in workflow.success_policy:
        if all(states.get(index) == WorkflowTaskStatus.COMPLETED for index in case["required"]):
            return None
    failed = sorted(index for index, status in states.items() if status == WorkflowTaskStatus.FAILED)
    if failed:
        return _error_of(mine, failed[:1])
    return TaskError(
        error_code=WorkflowCode.WORKFLOW_SUCCESS_CASE_NOT_MET, message="No case of the success policy is met."
    ).as_json()


def _error_of(mine: NodeRows, indexes: list[int]) -> dict[str, Any]:
    """The error of a node, with its name."""
    (node_id, text), *_ = mine.filter(task_index__in=indexes).values_list("node_id", Cast("result", TextField()))
    error: Mapping[str, Any] = json.loads(text or "{}").get("err") or {}
    return {"error_code": str(WorkflowCode.WORKFLOW_FAILED), "message": "", "data": None, **error, "node_id": node_id}


def _output(mine: NodeRows, workflow: Workflow) -> Any:
    if workflow.output_index is not None:
        (text,) = mine.filter(task_index=workflow.output_index).values_list(Cast("result", TextField()), flat=True)
        return json.loads(text or "{}").get("ok")
    leaves = mine.filter(map_index__isnull=True, dependents=[]).order_by("task_index")
    if workflow.parent_id is not None:
        return None
    return {
        node_id: json.loads(text or "null")
        for node_id, text in leaves.values_list("node_id", Cast("result", TextField()))
    }


def _tell_parent(turn: Turn, workflow: Workflow) -> list[Settled]:
    rows = turn.nodes.filter(pk=workflow.parent_id or 0, status__in=BEGUN)
    found = list(rows.values_list("pk", "workflow_id", "task_index", "dependents", "map_index"))
    if not found:
        return []
    ((pk, workflow_id, index, dependents, map_index),) = found
    if workflow.status == WorkflowStatus.COMPLETED:
        status, result, code = WorkflowTaskStatus.COMPLETED, workflow.result, None
    elif _build_again(turn, pk, workflow):
        return []
    else:
        status, code = WorkflowTaskStatus.FAILED, str(_FAILED[WorkflowStatus(workflow.status)])
        message = (workflow.error or {}).get("message") or f"The subworkflow is {workflow.status}."
        error = TaskError(error_code=code, message=message, data={**summary(workflow), "workflow_id": str(workflow.pk)})
        result = {"err": error.as_json()}
    rows.update(status=status, completed_at=Now(), result=result, error_code=code)
    return [Settled(pk, workflow_id, index, status, dependents, map_index)]


def _build_again(turn: Turn, key: int, workflow: Workflow) -> bool:
    """Have a failed subworkflow built anew if the policy of its node says so (P-10); return whether it does.

    The one that has failed keeps its parent, and is marked: the newest counts. How many there were is counted by the
    node, for its tasks may be gone.
    """
    nodes = turn.nodes
    columns = ("queue_name", "retry_policy", "task_id", "rebuilds", "workflow__status")
    ((queue, stored, task_id, count, status),) = nodes.filter(pk=key).values_list(*columns)
    policy = RetryPolicy.read(stored, task_id)
    retry = count + 1
    codes = (str((workflow.error or {}).get("error_code")), str(WorkflowCode.SUBWORKFLOW_FAILED))
    if (
        policy is None
        or retry > policy.max_retries
        or workflow.status != WorkflowStatus.FAILED
        or status in WORKFLOW_TERMINAL_STATES
        or not any(map(policy.covers, codes))
    ):
        return False
    Workflow.objects.using(nodes.db).filter(pk=workflow.pk).update(is_replaced=True)
    nodes.filter(pk=key).update(rebuilds=retry)
    if status == WorkflowStatus.PAUSED:
        nodes.filter(pk=key).update(status=WorkflowTaskStatus.READY, task_id=None)
    else:
        due = later(policy.delay(retry))
        enqueue(turn, {key: (queue, False)}, task_name=Value(BUILD), retry_count=Value(retry), **due)
    return True


def summary(workflow: Workflow) -> dict[str, Any]:
    """Return how a workflow stands, in numbers, and its error in words."""
    states = {
        status.lower(): Count("pk", filter=Q(status=status))
        for status in (WorkflowTaskStatus.COMPLETED, WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED)
    }
    nodes = WorkflowTask.objects.using(workflow._state.db).filter(workflow=workflow, map_index__isnull=True)
    error = workflow.error and f"{workflow.error.get('error_code')}: {workflow.error.get('message')}"
    return {
        "workflow_id": workflow.pk,
        "status": WorkflowStatus(workflow.status),
        **nodes.aggregate(total=Count("pk"), **states),
        "error": error,
    }
