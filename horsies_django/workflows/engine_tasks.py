"""The tasks by which the engine has done in a worker's slot what is not to be done in its transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.db import transaction

from ..core.backends import reads_rich
from ..core.results import TaskError, TaskResult
from ..core.retry import RetryPolicy
from ..core.workflow_status import WORKFLOW_TERMINAL_STATES
from ..db.pause_on_outage import waiting_for_database
from ..enqueue.call_builder import parameters_of
from ..enqueue.context import TaskContext
from ..enqueue.task import task
from ..enqueue.workflow_context import WorkflowContext
from . import input_resolver, lifecycle
from .conditions import condition_at
from .error_codes import STOPPED_BY, WorkflowCode

if TYPE_CHECKING:
    from ..models import WorkflowTask

#: Levels of a tree of workflows, that at the top included. One that has more is likely to contain itself.
LEVELS: Final = 32

#: What a subworkflow has from the workflow above it, unless it says otherwise (P-09).
_INHERITED: Final = ("queue_name", "priority", "good_until")


@task(takes_context=True)
def wake(context: TaskContext) -> None:
    """Do nothing: that this runs is what a sleep, or the time-out of an event, is about."""


@task(takes_context=True)
def decide(context: TaskContext) -> bool:
    """Say whether a node is to run, by its conditions (P-05)."""
    from ..models import WorkflowTask

    database = context.run.database
    with waiting_for_database():
        node = WorkflowTask.objects.using(database).get(task_id=context.run.task_id)
        results = _results(database, node)
    given = WorkflowContext(
        workflow_id=node.workflow_id,
        task_index=node.task_index,
        task_name=node.task_name or "",
        node_id=node.node_id,
        results=results,
    )
    # Both are looked up before one is asked: a worker that does not know one of them has not begun.
    run_when = None if node.run_when is None else condition_at(node.run_when)
    skip_when = None if node.skip_when is None else condition_at(node.skip_when)
    if run_when is not None and not run_when(given):
        return False
    return skip_when is None or not skip_when(given)


def _results(database: str, node: Any) -> dict[str, Any]:
    from ..models import WorkflowTask
    from .input_resolver import read

    sources = WorkflowTask.objects.using(database).filter(
        workflow=node.workflow_id, task_index__in=node.waits_for, completed_at__isnull=False
    )
    from django.db.models import TextField
    from django.db.models.functions import Cast

    return {
        node_id: read(text, reads_rich(backend, rich))
        for node_id, text, backend, rich in sources.values_list(
            "node_id", Cast("result", TextField()), "backend", "rich"
        )
        if text
    }


@task(takes_context=True, retry_policy=RetryPolicy.fixed([1, 1], auto_retry_for=["WORKER_CRASHED"]))
def build(context: TaskContext, /, **params: Any) -> TaskResult[None, TaskError[Any]]:
    """Build a subworkflow and start it as its node's child (W-60).

    Its node fails with ``WORKFLOW_TOO_DEEP`` if there are too many above it, and with ``WORKFLOW_KEY_TAKEN`` if a live
    workflow has its ``unique_key``.
    """
    from ..core.ids import uuid7
    from ..models import Workflow, WorkflowTask
    from .engine.nodes import IN_PROGRESS
    from .registry import definition_at
    from .start import insert_or_get

    database = context.run.database
    with waiting_for_database():
        node = WorkflowTask.objects.using(database).select_related("workflow").filter(task=context.run.task_id).first()
    if node is None:  # it is another task's, as below
        return TaskResult(ok=None)
    if node.workflow.depth + 1 >= LEVELS:
        return _failed(WorkflowCode.WORKFLOW_TOO_DEEP, _too_deep(database, node))
    build_with = definition_at(str(node.definition_key)).build_with
    with waiting_for_database():
        params |= input_resolver.arguments_of(node, parameters_of(build_with, False).by_name)
    workflow = build_with(**params)
    inherited = {name: getattr(node.workflow, name) for name in _INHERITED if getattr(workflow.options, name) is None}
    if any(value is not None for value in inherited.values()):
        workflow = workflow.with_options(**inherited)
    blueprint = workflow.blueprint()
    # The answer to its COMMIT may be lost: then the next run finds the subworkflow there.
    with waiting_for_database(), transaction.atomic(using=database):
        Workflow.objects.using(database).lock([node.workflow.root_id])
        # Meanwhile the node may have ended or be another task's: one before this may have built a subworkflow, and not
        # have heard of its COMMIT. And its workflow may have been paused or cancelled.
        node.refresh_from_db(fields=["status", "task"])
        if node.status not in IN_PROGRESS or node.task_id != context.run.task_id:
            return TaskResult(ok=None)
        node.workflow.refresh_from_db()
        if node.workflow.status in WORKFLOW_TERMINAL_STATES:
            code = STOPPED_BY.get(node.workflow.status, WorkflowCode.WORKFLOW_CANCELLED)
            return _failed(code, "The workflow had ended.")
        if not Workflow.objects.using(database).filter(parent=node, is_replaced=False).exists():
            travelling = node.metadata if isinstance(node.metadata, dict) else None
            launched = insert_or_get(database, blueprint, uuid7(), node, travelling)
            if not launched.is_new:
                holder = f"{launched.workflow.name!r} ({launched.workflow.pk})"
                problem = (
                    f"unique_key {blueprint.unique_key!r} is that of {holder}, which is {launched.workflow.status}."
                )
                return _failed(WorkflowCode.WORKFLOW_KEY_TAKEN, problem)
            lifecycle.MARK_RUNNING.apply(WorkflowTask.objects.using(database).filter(pk=node.pk))
    return TaskResult(ok=None)


def _failed(code: WorkflowCode, message: str) -> TaskResult[None, TaskError[Any]]:
    return TaskResult(err=TaskError(error_code=code, message=message))


def _too_deep(database: str, node: WorkflowTask) -> str:
    """Say so, and which definitions are above it, each once, from the top."""
    from ..models import Workflow

    keys: list[str] = [str(node.definition_key)]
    parent: int | None = node.pk
    while parent is not None:
        key, parent = Workflow.objects.using(database).filter(nodes=parent).values_list("definition_key", "parent")[0]
        keys += [key] if key else []
    chain = " >> ".join(dict.fromkeys(reversed(keys)))
    return f"{node.definition_key!r} would be at level {LEVELS + 1}; allowed: {LEVELS}. In its tree: {chain}."
