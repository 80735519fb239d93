"""The guarantees that hold for every workflow after a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from uuid import UUID

from horsies_django.core.workflow_status import WORKFLOW_TASK_TERMINAL_STATES
from horsies_django.models import Workflow, WorkflowTask
from horsies_django.workflows.handle import WorkflowHandle
from tests.chaos.shapes import PAUSING
from tests.workflows.reference import SKIPPED_BY_CONDITION, Spec, should_run
from tests.workflows.runs import inconsistencies


def tree_violations(started: Set[UUID], uncertain: Set[UUID]) -> Iterator[str]:
    """Yield every broken guarantee."""
    workflows = {row.pk: row for row in Workflow.objects.order_by("pk")}
    roots = {key for key, row in workflows.items() if row.depth == 0}
    if lost := started - roots:
        yield f"started but without a row: {sorted(lost)}"
    if unexpected := roots - started - uncertain:
        yield f"a row that was never started: {sorted(unexpected)}"
    nodes = list(WorkflowTask.objects.select_related("task").order_by("workflow_id", "task_index"))
    children = Counter(row.parent_id for row in workflows.values() if row.depth and not row.is_replaced)
    for key, row in workflows.items():
        mine = {node.task_index: node for node in nodes if node.workflow_id == key}
        problems = [*_of_workflow(row, workflows[row.root_id].name, mine), *inconsistencies(WorkflowHandle(key))]
        problems += [f"{node.node_id} {node.status}: {one}" for node in mine.values() for one in _of_node(node, mine)]
        problems += [f"{node.node_id} has several children" for node in mine.values() if children[node.pk] > 1]
        yield from (f"{row.name} {row.status} id={key}: {one}" for one in problems)


def _of_workflow(row: Workflow, root: str, nodes: Mapping[int, WorkflowTask]) -> Iterator[str]:
    failed = [node.node_id for node in nodes.values() if node.status == "FAILED" and node.map_index is None]
    if row.name == PAUSING and row.status != "PAUSED":
        yield "it did not pause"
    if row.status not in ("COMPLETED", "FAILED") and not (root == PAUSING and row.status == "PAUSED"):
        yield "has not ended, or ended unexpectedly"
    if row.status in ("COMPLETED", "FAILED") and (row.status == "FAILED") != bool(failed):
        yield f"its failed nodes are {failed}"
    if row.is_replaced and (row.status, root) != ("FAILED", "nested"):
        yield "was unexpectedly built again"


def _of_node(node: WorkflowTask, others: Mapping[int, WorkflowTask]) -> Iterator[str]:
    if node.status not in WORKFLOW_TASK_TERMINAL_STATES:
        is_held = node.task is not None and node.task.status == "PENDING" and node.task.blocked
        if node.kind == "task" and node.status in ("ENQUEUED", "RUNNING") and not is_held:
            yield "has not ended"
        return
    ends = [
        SKIPPED_BY_CONDITION if one.error_code == "CONDITION_NOT_MET" else str(one.status)
        for one in _sources(node, others)
    ]
    spec = Spec(join=node.join.lower(), min_success=node.min_success, allows=node.allow_failed_deps)
    may_run = should_run(spec, ends)
    if may_run != (node.status != "SKIPPED" or node.error_code == "CONDITION_NOT_MET"):
        yield f"its dependencies ended {ends}"
    if node.kind == "task" and node.status in ("COMPLETED", "FAILED"):
        task = node.task
        if task is None or (task.status, task.result, task.error_code) != (node.status, node.result, node.error_code):
            yield f"its task is {task and task.status}, with {task and task.result}, and not {node.result}"


def _sources(node: WorkflowTask, others: Mapping[int, WorkflowTask]) -> list[WorkflowTask]:
    return [others[index] for index in node.waits_for]
