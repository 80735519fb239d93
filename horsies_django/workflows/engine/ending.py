"""Ending: nodes take over how their tasks ended."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from django.db import models
from django.db.models import Case, OuterRef, Q, Subquery, TextField, Value, When
from django.db.models.functions import Cast, Coalesce, Now

from ...models import Task, Workflow
from ...results import OperationalCode, OutcomeCode, RetrievalCode, TaskError
from ...states import TASK_TERMINAL_STATES, TaskStatus
from ..codes import STOPPED_BY, WorkflowCode
from ..states import WORKFLOW_TERMINAL_STATES, NodeKind, WorkflowTaskStatus
from .nodes import BEGUN, IS_UNDECIDED, NodeRows, Settled, among

if TYPE_CHECKING:
    from .turn import Turn

_ENDED: Final = sorted(TASK_TERMINAL_STATES)

#: A success without a result is none (S3-15).
_IS_OK: Final = models.ExpressionWrapper(
    Q(task__status=TaskStatus.COMPLETED, task__result__isnull=False), models.BooleanField()
)

#: What of a node whose task has ended says what becomes of it.
ENDS: Final = ("pk", "workflow_id", "task_index", "dependents", "map_index", _IS_OK, "kind", IS_UNDECIDED)

#: What is taken for the error of a task that has left none (S3-15).
_CODES: Final = {
    TaskStatus.COMPLETED: RetrievalCode.RESULT_NOT_AVAILABLE,
    TaskStatus.FAILED: OperationalCode.WORKER_CRASHED,
    TaskStatus.CANCELLED: OutcomeCode.TASK_CANCELLED,
    TaskStatus.EXPIRED: OutcomeCode.TASK_EXPIRED,
}


def err(code: str, message: str, data: Any = None) -> dict[str, Any]:
    """Return an err result as it is stored."""
    return {"err": TaskError(error_code=str(code), message=message, data=data).as_json()}


def settle(turn: Turn, rows: Iterable[Sequence[Any]]) -> tuple[list[Settled], list[int]]:
    """End the nodes whose tasks have ended, given as :data:`ENDS`; return them, and those that are to run.

    The latter are those whose conditions were looked at (P-05).
    """
    nodes = turn.nodes
    plain: list[Settled] = []
    others: list[tuple[Settled, str, bool]] = []
    unbuilt: list[Settled] = []
    for pk, workflow_id, index, dependents, map_index, is_ok, kind, is_undecided in rows:
        ended = WorkflowTaskStatus.COMPLETED if is_ok else WorkflowTaskStatus.FAILED
        end = Settled(pk, workflow_id, index, ended, dependents, map_index)
        if is_ok and (is_undecided or kind in (NodeKind.SUBWORKFLOW, NodeKind.EVENT)):
            others.append((end, kind, is_undecided))
        elif kind == NodeKind.SUBWORKFLOW:
            unbuilt.append(end)
        else:
            plain.append(end)
    plain += _childless(turn.database, unbuilt)
    if ok := [end.pk for end in plain if end.status == WorkflowTaskStatus.COMPLETED]:
        turn.phrases.complete(ok)
    _fail(nodes, [end.pk for end in plain if end.status != WorkflowTaskStatus.COMPLETED])
    decided = _decide(nodes, [end for end, _, is_undecided in others if is_undecided])
    timed_out = [end for end, kind, is_undecided in others if kind == NodeKind.EVENT and not is_undecided]
    ends = [*plain, *decided[0], *time_out(nodes, timed_out)]
    return ends, decided[1]


def _childless(database: str, ends: Sequence[Settled]) -> list[Settled]:
    """Those that have no subworkflow: one that has ends with it, even if a worker died after it had built it."""
    if not ends:
        return []
    children = Workflow.objects.using(database).filter(parent__in=[end.pk for end in ends], is_replaced=False)
    built = set(children.values_list("parent_id", flat=True))
    return [end for end in ends if end.pk not in built]


def ended(nodes: NodeRows) -> NodeRows:
    """Those of these nodes whose tasks have ended, and that have not."""
    return nodes.filter(status__in=BEGUN, task__status__in=_ENDED)


def completed(database: str) -> dict[str, Any]:
    """What the success of its task writes to a node."""
    result = Subquery(Task.objects.using(database).filter(pk=OuterRef("task_id")).values("result"))
    return {"status": WorkflowTaskStatus.COMPLETED, "completed_at": Now(), "result": result, "error_code": None}


def _fail(nodes: NodeRows, keys: Collection[int]) -> None:
    """Give nodes the errors of their tasks."""
    if not keys:
        return
    task = Task.objects.using(nodes.db).filter(pk=OuterRef("task_id"))
    lacking = Case(
        *(
            When(status=status, then=Value(err(code, "The task has left no result."), models.JSONField()))
            for status, code in _CODES.items()
        )
    )
    codes = Case(*(When(status=status, then=Value(str(code))) for status, code in _CODES.items()))
    known = Subquery(task.annotate(known=Coalesce("result", lacking)).values("known"))
    code = Subquery(task.annotate(code=Coalesce("error_code", codes)).values("code"))
    _open(nodes, keys).update(status=WorkflowTaskStatus.FAILED, completed_at=Now(), result=known, error_code=code)


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
        nodes.filter(among(nodes.db, [end.pk for end in ends])).exclude(status__in=_NODE_ENDED).update(
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
