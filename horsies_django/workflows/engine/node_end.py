"""Ending: nodes take over how their tasks ended."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from django.db import models
from django.db.models import Case, Exists, OuterRef, Q, Subquery, TextField, Value, When
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Cast, Coalesce, Left, Now

from ...core.results import OperationalCode, OutcomeCode, RetrievalCode, TaskError
from ...core.status import TASK_TERMINAL_STATES, TaskStatus
from ...core.transition import Transition
from ...core.workflow_status import WORKFLOW_TERMINAL_STATES, NodeKind, WorkflowTaskStatus
from ...models import Task, Workflow
from .. import lifecycle
from ..codes import STOPPED_BY, WorkflowCode
from .nodes import IN_PROGRESS, IS_UNDECIDED, NodeRows, NodeEnd, where_in

if TYPE_CHECKING:
    from .context import EngineContext

#: The length of the column of error codes.
_CODE_LENGTH: Final = 100

_ENDED: Final = sorted(TASK_TERMINAL_STATES)

#: Whether the stored result of a task, and not its status, says that it succeeded (S3-14, S3-15).
_IS_OK: Final = models.ExpressionWrapper(
    Q(task__result__ok__isnull=False, task__result__err__isnull=True), models.BooleanField()
)

#: What the task has said that looked at a node's conditions, and how its workflow is then.
_ANSWER: Final = Case(When(IS_UNDECIDED, then=Cast("task__result", TextField())))
_STATUS: Final = Case(
    When(IS_UNDECIDED, then=Subquery(Workflow.objects.filter(pk=OuterRef("workflow_id")).values("status")))
)

#: Whether the subworkflow of a node has been built.
_IS_BUILT: Final = Case(
    When(
        Q(kind=NodeKind.SUBWORKFLOW) & Exists(Workflow.objects.filter(parent=OuterRef("pk"), is_replaced=False)),
        then=Value(True),
    ),
    default=Value(False),
)

#: What of a node whose task has ended says what becomes of it.
TASK_END_COLUMNS: Final = (
    "pk",
    "workflow_id",
    "task_index",
    "dependents",
    "map_index",
    _IS_OK,
    "kind",
    IS_UNDECIDED,
    _ANSWER,
    _STATUS,
    _IS_BUILT,
)

#: What is taken for the error of a task that has left none (S3-15).
_DEFAULT_CODES: Final = {
    TaskStatus.COMPLETED: RetrievalCode.RESULT_NOT_AVAILABLE,
    TaskStatus.FAILED: OperationalCode.WORKER_CRASHED,
    TaskStatus.CANCELLED: OutcomeCode.TASK_CANCELLED,
    TaskStatus.EXPIRED: OutcomeCode.TASK_EXPIRED,
}


def err_result(code: str, message: str, data: Any = None) -> dict[str, Any]:
    """Return an err result as it is stored."""
    return {"err": TaskError(error_code=str(code), message=message, data=data).as_json()}


def apply_results(turn: EngineContext, rows: Iterable[Sequence[Any]]) -> tuple[list[NodeEnd], list[int]]:
    """End the nodes whose tasks have ended, given as :data:`ENDS`; return them, and those that are to run.

    The latter are those whose conditions were looked at (P-05).
    """
    nodes = turn.nodes
    plain: list[NodeEnd] = []
    asked: list[tuple[NodeEnd, str, str]] = []
    late: list[NodeEnd] = []
    for pk, workflow_id, index, dependents, map_index, is_ok, kind, is_undecided, answer, status, is_built in rows:
        ended = WorkflowTaskStatus.COMPLETED if is_ok else WorkflowTaskStatus.FAILED
        end = NodeEnd(pk, workflow_id, index, ended, dependents, map_index)
        if is_ok and is_undecided:
            asked.append((end, answer, status))
        elif is_ok and kind == NodeKind.EVENT:
            late.append(end)
        elif kind != NodeKind.SUBWORKFLOW or not (is_ok or is_built):
            plain.append(end)  # but what has a subworkflow ends with it, even if a worker died after it had built it
    if ok := [end.pk for end in plain if end.status == WorkflowTaskStatus.COMPLETED]:
        turn.queries.complete(ok)
    _fail_nodes(nodes, [end.pk for end in plain if end.status != WorkflowTaskStatus.COMPLETED])
    skipped, runs = _apply_conditions(nodes, asked)
    return [*plain, *skipped, *time_out_events(nodes, late)], runs


def with_ended_tasks(nodes: NodeRows) -> NodeRows:
    """Those of these nodes whose tasks have ended, and that have not."""
    return nodes.filter(status__in=IN_PROGRESS, task__status__in=_ENDED)


def completed_values(database: str) -> dict[str, Any]:
    """What the success of its task writes to a node."""
    result = Subquery(Task.objects.using(database).filter(pk=OuterRef("task_id")).values("result"))
    return {"status": lifecycle.COMPLETE_NODE.target, "completed_at": Now(), "result": result, "error_code": None}


def _fail_nodes(nodes: NodeRows, keys: Collection[int]) -> None:
    """Give nodes the errors of their tasks."""
    if not keys:
        return
    task = Task.objects.using(nodes.db).filter(pk=OuterRef("task_id"))
    lacking = Case(
        *(
            When(status=status, then=Value(err_result(code, "The task has left no result."), models.JSONField()))
            for status, code in _DEFAULT_CODES.items()
        )
    )
    codes = Case(*(When(status=status, then=Value(str(code))) for status, code in _DEFAULT_CODES.items()))
    unreadable = OperationalCode.RESULT_DESERIALIZATION_ERROR
    garbage = Value(err_result(unreadable, "The stored result of the task can't be read."), models.JSONField())
    has_code = When(result__err__error_code__isnull=False, then="result")
    stored = Left(KeyTextTransform("error_code", KeyTransform("err", "result")), _CODE_LENGTH)
    result = Case(When(result__isnull=True, then=lacking), has_code, default=garbage, output_field=models.JSONField())
    named = Case(
        When(result__isnull=True, then=Coalesce("error_code", codes)),
        When(result__err__error_code__isnull=False, then=stored),
        default=Value(str(unreadable)),
        output_field=models.CharField(),
    )
    known = Subquery(task.annotate(known=result).values("known"))
    code = Subquery(task.annotate(code=named).values("code"))
    lifecycle.FAIL_NODE.apply(nodes.filter(pk__in=keys), completed_at=Now(), result=known, error_code=code)


def _apply_conditions(nodes: NodeRows, asked: Sequence[tuple[NodeEnd, str, str]]) -> tuple[list[NodeEnd], list[int]]:
    """The conditions of these nodes were looked at: skip those that are not to run, and return the others' keys.

    Each is given with the answer, and the status of its workflow: none is to run if that has ended in the meantime.
    """
    if not asked:
        return [], []
    lost: dict[str, list[NodeEnd]] = defaultdict(list)
    skipped, runs = list[NodeEnd](), list[int]()
    for end, answer, status in asked:
        end = end._replace(status=WorkflowTaskStatus.SKIPPED)
        if status in WORKFLOW_TERMINAL_STATES:
            lost[status].append(end)
        elif json.loads(answer).get("ok") is True:
            runs.append(end.pk)
        else:
            skipped.append(end._replace(is_neutral=True))
    for status, ends in lost.items():
        _skip_stopped(nodes, ends, status)
    if runs:
        lifecycle.ALLOW_NODE.apply(nodes.filter(pk__in=runs), is_decided=True, task_id=None)
    skip(
        nodes,
        skipped,
        lifecycle.SKIP_BY_CONDITION,
        WorkflowCode.CONDITION_NOT_MET,
        "Its condition says that it is not to run.",
    )
    return [*(end for ends in lost.values() for end in ends), *skipped], runs


def time_out_events(nodes: NodeRows, ends: Sequence[NodeEnd]) -> list[NodeEnd]:
    """The time of these events is over."""
    failed = [end._replace(status=WorkflowTaskStatus.FAILED) for end in ends]
    if failed:
        lifecycle.FAIL_NODE.apply(
            nodes.filter(pk__in=[end.pk for end in failed]),
            completed_at=Now(),
            result=err_result(WorkflowCode.EVENT_TIMEOUT, "The event did not come in time."),
            error_code=str(WorkflowCode.EVENT_TIMEOUT),
        )
    return failed


def skip(
    nodes: NodeRows,
    ends: Sequence[NodeEnd],
    transition: Transition[WorkflowTaskStatus],
    code: WorkflowCode,
    message: str,
) -> None:
    """Skip nodes by one of the transitions to SKIPPED, with an error of this code."""
    if ends:
        rows = nodes.filter(where_in(nodes.db, [end.pk for end in ends]))
        transition.apply(rows, completed_at=Now(), result=err_result(code, message), error_code=str(code))


def skip_stopped(nodes: NodeRows, ends: Sequence[NodeEnd]) -> None:
    """ENQUEUED, RUNNING → SKIPPED for nodes that find their workflow ended, with the code of how it did."""
    statuses = dict(nodes.filter(pk__in=[end.pk for end in ends]).values_list("pk", "workflow__status")) if ends else {}
    for status in sorted(set(statuses.values())):
        _skip_stopped(nodes, [end for end in ends if statuses[end.pk] == status], status)


def _skip_stopped(nodes: NodeRows, ends: Sequence[NodeEnd], status: str) -> None:
    code = STOPPED_BY.get(status, WorkflowCode.WORKFLOW_CANCELLED)
    skip(nodes, ends, lifecycle.SKIP_STOPPED, code, "The workflow had ended.")
