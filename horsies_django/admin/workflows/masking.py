"""What may be seen of a workflow's values: they pass from node to node, so what one task hides is hidden of all."""

from __future__ import annotations

from typing import Final

from ...enqueue.masking import AnyMask, Mask, mask_of
from ...models import Workflow, WorkflowTask

#: Tasks of one tree that are asked at most, and workflows below the root that are looked into for them.
MAX_TASK_NAMES: Final = 200
MAX_SUBWORKFLOWS: Final = 200


def mask_of_workflow(workflow: Workflow) -> Mask:
    """Return what hides what any task hides that is a node of the workflow, or of one in the same tree.

    Asked once for an instance, when something is to be shown.
    """
    if not isinstance(found := workflow.__dict__.get("_mask"), Mask):
        found = workflow.__dict__["_mask"] = AnyMask([mask_of(name) for name in _task_names(workflow)])
    return found


def mask_of_node(node: WorkflowTask) -> Mask:
    """Return what its own task hides; of a node that is no task, what the workflow hides."""
    return mask_of(node.task_name) if node.task_name else mask_of_workflow(node.workflow)


def _task_names(workflow: Workflow) -> list[str]:
    database = workflow._state.db
    below = Workflow.objects.using(database).filter(root_id=workflow.root_id, depth__gt=0).order_by()
    tree = {workflow.pk, workflow.root_id, *below.values_list("pk", flat=True)[:MAX_SUBWORKFLOWS]}
    nodes = WorkflowTask.objects.using(database).filter(workflow__in=tree, task_name__isnull=False).order_by()
    names = nodes.values_list("task_name", flat=True).distinct()[:MAX_TASK_NAMES]
    return sorted(filter(None, names))
