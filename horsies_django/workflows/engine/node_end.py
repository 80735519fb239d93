"""The ends of nodes: a node takes its status and result from its task."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from django.db import models
from django.db.models import Case, Exists, OuterRef, Q, Subquery, TextField, Value, When
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Cast, Coalesce, Left

from ...core.results import OperationalCode, OutcomeCode, RetrievalCode
from ...core.status import TASK_TERMINAL_STATES, TaskStatus
from ...core.workflow_errors import STOPPED_BY, WorkflowCode
from ...core.workflow_status import WORKFLOW_TERMINAL_STATES, NodeKind, WorkflowTaskStatus
from ...db.now import Now
from ...models import Task, Workflow
from .. import lifecycle
from .rows import IN_PROGRESS, IS_UNDECIDED, NodeEnd, NodeResult, NodeRows, err_result

if TYPE_CHECKING:
    from .context import EngineContext

#: The length of the column of error codes.
_CODE_LENGTH: Final = 100

_ENDED: Final = sorted(TASK_TERMINAL_STATES)

#: Whether a task succeeded, by its stored result rather than its status.
_IS_OK: Final = models.ExpressionWrapper(
    Q(task__result__ok__isnull=False, task__result__err__isnull=True), models.BooleanField()
)

#: The answer of the task that evaluated a node's conditions, and the status of the node's workflow.
_ANSWER: Final = Case(When(IS_UNDECIDED, then=Cast("task__result", TextField())))
_STATUS: Final = Case(
    When(IS_UNDECIDED, then=Subquery(Workflow.objects.filter(pk=OuterRef("workflow_id")).values("status")))
)

#: Whether the subworkflow of a node has been built.
_IS_BUILT: Final = models.ExpressionWrapper(
    Q(kind=NodeKind.SUBWORKFLOW) & Exists(Workflow.objects.filter(parent=OuterRef("pk"), is_replaced=False)),
    models.BooleanField(),
)

#: The columns by which :func:`apply_results` decides about a node whose task has ended.
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

#: The error code for a task that has ended without a result, by its status.
_DEFAULT_CODES: Final = {
    TaskStatus.COMPLETED: RetrievalCode.RESULT_NOT_AVAILABLE,
    TaskStatus.FAILED: OperationalCode.WORKER_CRASHED,
    TaskStatus.CANCELLED: OutcomeCode.TASK_CANCELLED,
    TaskStatus.EXPIRED: OutcomeCode.TASK_EXPIRED,
}


def apply_results(context: EngineContext, rows: Iterable[Sequence[Any]]) -> tuple[list[NodeEnd], list[int]]:
    """End the nodes whose tasks have ended, given as rows of :data:`TASK_END_COLUMNS`.

    Return their ends, and the keys of the nodes that may start because their conditions let them.
    """
    nodes = context.nodes
    plain: list[NodeEnd] = []
    decided: list[tuple[NodeEnd, str, str]] = []
    timed_out: list[NodeEnd] = []
    for pk, workflow_id, index, dependents, map_index, is_ok, kind, is_undecided, answer, status, is_built in rows:
        ended = WorkflowTaskStatus.COMPLETED if is_ok else WorkflowTaskStatus.FAILED
        end = NodeEnd(pk, workflow_id, index, dependents, map_index, ended)
        if is_ok and is_undecided:
            decided.append((end, answer, status))
        elif is_ok and kind == NodeKind.EVENT:
            timed_out.append(end)
        elif kind != NodeKind.SUBWORKFLOW or not (is_ok or is_built):
            plain.append(end)  # a node with a subworkflow ends with that, even if its builder died
    if ok := [end.pk for end in plain if end.status == WorkflowTaskStatus.COMPLETED]:
        context.queries.complete(ok)
    _fail_nodes(nodes, [end.pk for end in plain if end.status != WorkflowTaskStatus.COMPLETED])
    failed = [end._replace(status=WorkflowTaskStatus.FAILED) for end in timed_out]
    context.end_nodes(
        NodeResult.err(end, WorkflowCode.EVENT_TIMEOUT, "The event did not come in time.") for end in failed
    )
    skipped, runs = _apply_conditions(context, decided)
    return [*plain, *skipped, *failed], runs


def with_ended_tasks(nodes: NodeRows) -> NodeRows:
    """Return the open nodes whose tasks have ended."""
    return nodes.filter(status__in=IN_PROGRESS, task__status__in=_ENDED)


def completed_values(database: str) -> dict[str, Any]:
    """Return the values that a completed task writes to its node."""
    result = Subquery(Task.objects.using(database).filter(pk=OuterRef("task_id")).values("result"))
    return {"status": lifecycle.COMPLETE_NODE.target, "completed_at": Now(), "result": result, "error_code": None}


def _fail_nodes(nodes: NodeRows, keys: Collection[int]) -> None:
    """Fail nodes with the errors of their tasks."""
    if not keys:
        return
    task = Task.objects.using(nodes.db).filter(pk=OuterRef("task_id"))
    lacking = Case(
        *(
            When(status=status, then=Value(err_result(code, "The task has no result."), models.JSONField()))
            for status, code in _DEFAULT_CODES.items()
        )
    )
    codes = Case(*(When(status=status, then=Value(str(code))) for status, code in _DEFAULT_CODES.items()))
    unreadable = OperationalCode.RESULT_DESERIALIZATION_ERROR
    unreadable_result = Value(
        err_result(unreadable, "The stored result of the task can't be read."), models.JSONField()
    )
    has_code = When(result__err__error_code__isnull=False, then="result")
    stored = Left(KeyTextTransform("error_code", KeyTransform("err", "result")), _CODE_LENGTH)
    result = Case(
        When(result__isnull=True, then=lacking), has_code, default=unreadable_result, output_field=models.JSONField()
    )
    named = Case(
        When(result__isnull=True, then=Coalesce("error_code", codes)),
        When(result__err__error_code__isnull=False, then=stored),
        default=Value(str(unreadable)),
        output_field=models.CharField(),
    )
    error = Subquery(task.annotate(error=result).values("error"))
    code = Subquery(task.annotate(code=named).values("code"))
    lifecycle.FAIL_NODE.apply(nodes.filter(pk__in=keys), completed_at=Now(), result=error, error_code=code)


def _apply_conditions(
    context: EngineContext, decided: Sequence[tuple[NodeEnd, str, str]]
) -> tuple[list[NodeEnd], list[int]]:
    """Apply the answers of the tasks that evaluated the conditions of these nodes; return the skipped and the allowed.

    Each node comes with the answer and with the status of its workflow: if that has ended, the node is skipped.
    """
    skipped, runs = list[NodeResult](), list[int]()
    for end, answer, status in decided:
        end = end._replace(status=WorkflowTaskStatus.SKIPPED)
        if status in WORKFLOW_TERMINAL_STATES:
            skipped.append(stopped(end, status))
        elif json.loads(answer).get("ok") is True:
            runs.append(end.pk)
        else:
            message = "The conditions of the node did not let it run."
            skipped.append(NodeResult.err(end._replace(is_neutral=True), WorkflowCode.CONDITION_NOT_MET, message))
    if runs:
        lifecycle.ALLOW_NODE.apply(context.nodes.filter(pk__in=runs), is_decided=True, task_id=None)
    return context.end_nodes(skipped), runs


def stopped(end: NodeEnd, status: str) -> NodeResult:
    """Return the end of a node that is skipped because its workflow has ended with this status."""
    return NodeResult.err(end, STOPPED_BY.get(status, WorkflowCode.WORKFLOW_CANCELLED), "The workflow had ended.")
