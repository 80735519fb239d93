"""Starting workflows: inserts the rows of a blueprint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from ...core.workflow_status import WorkflowStatus
from ...db.now import Now
from ...models import Workflow, WorkflowTask
from .. import lifecycle
from ..blueprint import CALL_COLUMNS, NodeBlueprint, WorkflowBlueprint
from . import insert_rows, limits
from .advance import Engine


def insert(
    database: str,
    blueprint: WorkflowBlueprint,
    workflow_id: UUID,
    parent: WorkflowTask | None = None,
    headers: Mapping[str, Any] | None = None,
) -> Workflow:
    """Insert a workflow and its nodes, and start those that wait for nothing, in the caller's transaction.

    ``headers`` go into the metadata of each node and override its own. For a subworkflow the caller holds the lock of
    the tree; it starts PAUSED if its parent is.
    """
    above = None if parent is None else parent.workflow
    is_paused = above is not None and above.status == WorkflowStatus.PAUSED
    workflow = Workflow(
        id=workflow_id,
        name=blueprint.name,
        definition_key=blueprint.definition_key,
        backend=blueprint.backend,
        status=(lifecycle.START_PAUSED if is_paused else lifecycle.START_WORKFLOW).target,
        paused_at=Now() if is_paused else None,
        on_error=blueprint.on_error,
        success_policy=blueprint.success_policy,
        output_index=blueprint.output_index,
        root_id=workflow_id if above is None else above.root_id,
        parent=parent,
        depth=0 if above is None else above.depth + 1,
        queue_name=blueprint.queue_name,
        priority=blueprint.priority,
        good_until=blueprint.good_until,
        unique_key=blueprint.unique_key,
        node_count=len(blueprint.nodes),
        open_count=len(blueprint.nodes),
        started_at=Now(),
    )
    workflow.save(using=database, force_insert=True)
    insert_rows.insert(database, [_node(workflow, node, headers) for node in blueprint.nodes])
    limits.create_after_commit(database, {(node.limit_key, node.task_name) for node in blueprint.nodes})
    engine = Engine.on(database)
    roots = engine.nodes.filter(workflow=workflow, waits_for=[])
    engine.advance([], list(roots.values_list("pk", flat=True)))
    return workflow


def _node(workflow: Workflow, node: NodeBlueprint, headers: Mapping[str, Any] | None) -> dict[str, Any]:
    same = {name: getattr(node, name) for name in _SAME_COLUMNS}
    if headers:
        same["metadata"] = {**(node.metadata or {}), **headers}
    return {
        "workflow_id": workflow.pk,
        "task_index": node.index,
        "status": lifecycle.ADD_NODE.target.value,
        "over_index": node.over,
        "kwargs": json.loads(node.kwargs) if node.kwargs != "{}" else {},
        "open_deps": len(node.waits_for),
        "open_ctx": len(node.ctx_from or ()),
        **same,
    }


_SAME_COLUMNS: Final = (
    "node_id",
    "kind",
    *CALL_COLUMNS,
    "waits_for",
    "dependents",
    "args_from",
    "values_from",
    "ctx_from",
    "join",
    "min_success",
    "allow_failed_deps",
    "run_when",
    "skip_when",
    "param",
    "seconds",
    "until",
    "event_name",
    "event_timeout",
    "definition_key",
)
