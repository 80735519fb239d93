"""Ending: nodes take over how their tasks ended."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, Final
from uuid import UUID

from django.db import models
from django.db.models import Case, OuterRef, Subquery, TextField, Value, When
from django.db.models.functions import Cast, Coalesce, Now

from ...models import Task
from ...results import OperationalCode, OutcomeCode, RetrievalCode, TaskError
from ...states import TASK_TERMINAL_STATES, TaskStatus
from ..codes import STOPPED_BY, WorkflowCode
from ..states import WORKFLOW_TERMINAL_STATES, NodeKind, WorkflowTaskStatus
from .nodes import BEGUN, IS_UNDECIDED, NodeRows, Settled

_ENDED: Final = sorted(TASK_TERMINAL_STATES)

#: What is taken for the error of a task that has left none (S3-15).
_CODES: Final = {
    TaskStatus.FAILED: OperationalCode.WORKER_CRASHED,
    TaskStatus.CANCELLED: OutcomeCode.TASK_CANCELLED,
    TaskStatus.EXPIRED: OutcomeCode.TASK_EXPIRED,
}


def err(code: str, message: str, data: Any = None) -> dict[str, Any]:
    """Return an err result as it is stored."""
    return {"err": TaskError(error_code=str(code), message=message, data=data).as_json()}


def settle(nodes: NodeRows, ids: Collection[UUID] | None = None) -> tuple[list[Settled], list[int]]:
    """End the nodes whose tasks have ended, all or those of these ``ids``; return them, and those that are to run.

    The latter are those whose conditions were looked at (P-05).
    """
    rows = nodes.filter(status__in=BEGUN, task__status__in=_ENDED)
    if ids is not None:
        rows = rows.filter(task_id__in=ids)
    columns = ("pk", "workflow_id", "task_index", "dependents", "map_index", "task__status", "kind", IS_UNDECIDED)
    plain: list[Settled] = []
    others: list[tuple[Settled, str, bool]] = []
    for pk, workflow_id, index, dependents, map_index, status, kind, is_undecided in rows.values_list(*columns):
        is_ok = status == TaskStatus.COMPLETED
        ended = WorkflowTaskStatus.COMPLETED if is_ok else WorkflowTaskStatus.FAILED
        end = Settled(pk, workflow_id, index, ended, dependents, map_index)
        if is_ok and (is_undecided or kind in (NodeKind.SUBWORKFLOW, NodeKind.EVENT)):
            others.append((end, kind, is_undecided))
        else:
            plain.append(end)
    _take_over(nodes, plain)
    decided = _decide(nodes, [end for end, _, is_undecided in others if is_undecided])
    timed_out = [end for end, kind, is_undecided in others if kind == NodeKind.EVENT and not is_undecided]
    ends = [*plain, *decided[0], *time_out(nodes, timed_out)]
    return ends, decided[1]


def _take_over(nodes: NodeRows, ends: Sequence[Settled]) -> None:
    """Give nodes the results of their tasks."""
    task = Task.objects.using(nodes.db).filter(pk=OuterRef("task_id"))
    ok = [end.pk for end in ends if end.status == WorkflowTaskStatus.COMPLETED]
    bad = [end.pk for end in ends if end.status != WorkflowTaskStatus.COMPLETED]
    if ok:
        result = Coalesce(
            Subquery(task.values("result")),
            Value(err(RetrievalCode.RESULT_NOT_AVAILABLE, "The task has left no result."), models.JSONField()),
        )
        _open(nodes, ok).update(status=WorkflowTaskStatus.COMPLETED, completed_at=Now(), result=result, error_code=None)
    if bad:
        lacking = Case(
            *(
                When(status=status, then=Value(err(code, "The task has left no result."), models.JSONField()))
                for status, code in _CODES.items()
            ),
            default=Value(err(OperationalCode.WORKER_CRASHED, "The task has left no result."), models.JSONField()),
        )
        known = Subquery(task.annotate(known=Coalesce("result", lacking)).values("known"))
        code = Coalesce(Subquery(task.values("error_code")), Value(str(OperationalCode.WORKER_CRASHED)))
        _open(nodes, bad).update(status=WorkflowTaskStatus.FAILED, completed_at=Now(), result=known, error_code=code)


def _decide(nodes: NodeRows, ends: Sequence[Settled]) -> tuple[list[Settled], list[int]]:
    """The conditions of these nodes were looked at: skip those that are not to run, and return the others' keys.

    None is to run if its workflow has ended in the meantime.
    """
    if not ends:
        return [], []
    rows = nodes.filter(pk__in=[end.pk for end in ends])
    late = set(rows.filter(workflow__status__in=WORKFLOW_TERMINAL_STATES).values_list("pk", flat=True))
    lost = [end._replace(status=WorkflowTaskStatus.SKIPPED) for end in ends if end.pk in late]
    skip_stopped(nodes, lost)
    ends = [end for end in ends if end.pk not in late]
    answers = dict(rows.values_list("pk", Cast("task__result", TextField())))
    runs = [end.pk for end in ends if json.loads(answers[end.pk]).get("ok") is True]
    _open(nodes, runs).update(status=WorkflowTaskStatus.READY, is_decided=True, task_id=None)
    skipped = [
        end._replace(status=WorkflowTaskStatus.SKIPPED, is_neutral=True) for end in ends if end.pk not in set(runs)
    ]
    skip(nodes, skipped, WorkflowCode.CONDITION_NOT_MET, "Its condition says that it is not to run.")
    return [*lost, *skipped], runs


def time_out(nodes: NodeRows, ends: Sequence[Settled]) -> list[Settled]:
    """The time of these events is over."""
    failed = [end._replace(status=WorkflowTaskStatus.FAILED) for end in ends]
    if failed:
        _open(nodes, [end.pk for end in failed]).update(
            status=WorkflowTaskStatus.FAILED,
            completed_at=Now(),
            result=err(WorkflowCode.EVENT_TIMEOUT, "The event did not come in time."),
            error_code=str(WorkflowCode.EVENT_TIMEOUT),
        )
    return failed


def skip(nodes: NodeRows, ends: Sequence[Settled], code: str, message: str) -> None:
    """PENDING, READY and what has begun → SKIPPED (W-36, W-38)."""
    if ends:
        nodes.filter(pk__in=[end.pk for end in ends]).exclude(status__in=_NODE_ENDED).update(
            status=WorkflowTaskStatus.SKIPPED, completed_at=Now(), result=err(code, message), error_code=str(code)
        )


def skip_stopped(nodes: NodeRows, ends: Sequence[Settled]) -> None:
    """ENQUEUED, RUNNING → SKIPPED for nodes that find their workflow ended, with the code of how it did."""
    statuses = dict(nodes.filter(pk__in=[end.pk for end in ends]).values_list("pk", "workflow__status")) if ends else {}
    for status in sorted(set(statuses.values())):
        code = STOPPED_BY.get(status, WorkflowCode.WORKFLOW_CANCELLED)
        skip(nodes, [end for end in ends if statuses[end.pk] == status], code, "The workflow had ended.")


_NODE_ENDED: Final = (WorkflowTaskStatus.COMPLETED, WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED)


def _open(nodes: NodeRows, keys: Collection[int]) -> NodeRows:
    return nodes.filter(pk__in=keys, status__in=BEGUN)
