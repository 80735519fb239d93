"""Mask the values of a workflow. Values pass between nodes, so a key that one task hides is hidden for all nodes."""

from __future__ import annotations

from typing import Final

from ...core.mask import AnyMask, Mask, mask_of
from ...models import Workflow, WorkflowTask

#: Maximum number of task names in a tree, and of its subworkflows, whose masks are combined.
MAX_TASK_NAMES: Final = 200
MAX_SUBWORKFLOWS: Final = 200


def mask_of_workflow(workflow: Workflow) -> Mask:
    """Return a mask that hides what any task in the workflow's tree hides. Cached on the instance."""
    if not isinstance(mask := workflow.__dict__.get("_mask"), Mask):
        mask = workflow.__dict__["_mask"] = AnyMask([mask_of(name) for name in _task_names(workflow)])
    return mask


def mask_of_node(node: WorkflowTask) -> Mask:
    """Return the mask of a node's own task; for a node without a task, the workflow's mask."""
    return mask_of(node.task_name) if node.task_name else mask_of_workflow(node.workflow)


def _task_names(workflow: Workflow) -> list[str]:
    database = workflow._state.db
    below = Workflow.objects.using(database).filter(root_id=workflow.root_id, depth__gt=0).order_by()
    tree = {workflow.pk, workflow.root_id, *below.values_list("pk", flat=True)[:MAX_SUBWORKFLOWS]}
    nodes = WorkflowTask.objects.using(database).filter(workflow__in=tree, task_name__isnull=False).order_by()
    names = nodes.values_list("task_name", flat=True).distinct()[:MAX_TASK_NAMES]
    return sorted(filter(None, names))
