"""The engine's own tasks, which do in a worker what must not happen in the engine's transactions.

Django imports this module when it starts, so that the tasks have names. Each imports what it needs when it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.db import transaction

from ..core.parameters import parameters_of
from ..core.results import TaskError, TaskResult
from ..core.retry import RetryPolicy
from ..core.workflow_errors import STOPPED_BY, WorkflowCode
from ..core.workflow_status import WORKFLOW_TERMINAL_STATES
from ..db.snooze_on_outage import snooze_on_outage
from ..enqueue.context import TaskContext
from ..enqueue.task import task

if TYPE_CHECKING:
    from ..models import WorkflowTask

#: How many levels a tree of workflows may have, with the root. A deeper one probably contains itself.
LEVELS: Final = 32

#: The options that a subworkflow inherits unless it has its own.
_INHERITED: Final = ("queue_name", "priority", "good_until")


@task(takes_context=True)
def wake(context: TaskContext) -> None:
    """Do nothing: its completion ends a sleep, or the time-out of an event."""


@task(takes_context=True)
def decide(context: TaskContext) -> bool:
    """Evaluate the conditions of a node; return whether the node may run."""
    from ..enqueue.nodes import WorkflowContext
    from ..models import WorkflowTask
    from . import input_resolver
    from .conditions import condition_at

    database = context.run.database
    with snooze_on_outage():
        node = WorkflowTask.objects.using(database).get(task_id=context.run.task_id)
        ids, results = input_resolver.results_of(node, set(node.waits_for))
    workflow_context = WorkflowContext(
        workflow_id=node.workflow_id,
        task_index=node.task_index,
        task_name=node.task_name or "",
        node_id=node.node_id,
        results={ids[index]: result for index, result in results.items()},
    )
    # Look up both before calling one: a worker that does not know one of them has not started the task.
    run_when = None if node.run_when is None else condition_at(node.run_when)
    skip_when = None if node.skip_when is None else condition_at(node.skip_when)
    if run_when is not None and not run_when(workflow_context):
        return False
    return skip_when is None or not skip_when(workflow_context)


@task(takes_context=True, retry_policy=RetryPolicy.fixed([1, 1], auto_retry_for=["WORKER_CRASHED"]))
def build(context: TaskContext, /, **params: Any) -> TaskResult[None, TaskError[Any]]:
    """Build a subworkflow and start it below its node.

    The node fails with ``WORKFLOW_TOO_DEEP`` if the tree has too many levels, and with ``WORKFLOW_KEY_TAKEN`` if a live
    workflow has the subworkflow's ``unique_key``.
    """
    from ..core.ids import uuid7
    from ..models import Workflow, WorkflowTask
    from . import input_resolver, lifecycle
    from .definition_registry import definition_at
    from .engine.rows import IN_PROGRESS
    from .start import insert_or_get

    database = context.run.database
    with snooze_on_outage():
        node = WorkflowTask.objects.using(database).select_related("workflow").filter(task=context.run.task_id).first()
    if node is None:  # the node has another task, see below
        return TaskResult(ok=None)
    if node.workflow.depth + 1 >= LEVELS:
        with snooze_on_outage():
            return _failed(WorkflowCode.WORKFLOW_TOO_DEEP, _too_deep(database, node))
    build_with = definition_at(str(node.definition_key)).build_with
    with snooze_on_outage():
        params |= input_resolver.arguments_of(node, parameters_of(build_with, False).by_name)
    workflow = build_with(**params)
    blueprint = workflow.blueprint()
    inherited = {name: getattr(node.workflow, name) for name in _INHERITED if blueprint.columns[name] is None}
    if any(value is not None for value in inherited.values()):
        blueprint = workflow.with_options(**inherited).blueprint()
    # If the answer to its COMMIT is lost, the next run finds the subworkflow.
    with snooze_on_outage(), transaction.atomic(using=database):
        Workflow.objects.using(database).lock([node.workflow.root_id])
        # The node may have ended, or have another task, if an earlier run has built the subworkflow and lost the answer
        # to its COMMIT. Its workflow may have been paused or cancelled.
        node.refresh_from_db(fields=["status", "task"])
        if node.status not in IN_PROGRESS or node.task_id != context.run.task_id:
            return TaskResult(ok=None)
        node.workflow.refresh_from_db()
        if node.workflow.status in WORKFLOW_TERMINAL_STATES:
            code = STOPPED_BY.get(node.workflow.status, WorkflowCode.WORKFLOW_CANCELLED)
            return _failed(code, "The workflow had ended.")
        if not Workflow.objects.using(database).filter(parent=node, is_replaced=False).exists():
            inherited_headers = node.metadata if isinstance(node.metadata, dict) else None
            launched = insert_or_get(database, blueprint, uuid7(), node, inherited_headers)
            if not launched.is_new:
                holder = launched.workflow
                belongs = f"belongs to {holder.name!r} ({holder.pk}), which is {holder.status}."
                problem = f"unique_key {blueprint.columns['unique_key']!r} {belongs}"
                return _failed(WorkflowCode.WORKFLOW_KEY_TAKEN, problem)
            lifecycle.MARK_RUNNING.apply(WorkflowTask.objects.using(database).filter(pk=node.pk))
    return TaskResult(ok=None)


def _failed(code: WorkflowCode, message: str) -> TaskResult[None, TaskError[Any]]:
    return TaskResult(err=TaskError(error_code=code, message=message))


def _too_deep(database: str, node: WorkflowTask) -> str:
    """Return the error message, with the definitions above the node, each once, from the root."""
    from ..models import Workflow

    keys: list[str] = [str(node.definition_key)]
    parent: int | None = node.pk
    while parent is not None:
        key, parent = Workflow.objects.using(database).filter(nodes=parent).values_list("definition_key", "parent")[0]
        keys += [key] if key else []
    chain = " >> ".join(dict.fromkeys(reversed(keys)))
    return f"{node.definition_key!r} would be at level {LEVELS + 1}; allowed: {LEVELS}. In its tree: {chain}."
