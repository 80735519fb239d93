"""The rows of a batch: start it and add calls, each under the lock of its workflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import Count, F

from ..core.exceptions import BatchEnded
from ..core.workflow_status import NodeKind, WorkflowStatus, WorkflowTaskStatus
from ..db.now import Now
from ..models import Workflow, WorkflowTask
from ..workflows import lifecycle
from ..workflows.control import locked
from ..workflows.engine import start_nodes
from ..workflows.engine.advance import Engine
from ..workflows.engine.enqueue_nodes import create_limits_after_commit, insert_nodes
from ..workflows.engine.rows import NodeRows, read_nodes
from .calls import Columns

#: The node that stands for all calls, and its index.
CALLS_NODE: Final = "tasks"
CALLS_INDEX: Final = 0


def call_node_id(place: int) -> str:
    """Return the id of a call's node."""
    return f"{CALLS_NODE}[{place}]"


def start(
    database: str, batch_id: UUID, name: str, head: Columns, callbacks: Mapping[str, Columns], calls: Sequence[Columns]
) -> None:
    """Insert a batch and start its calls, in the caller's transaction or one of its own.

    The node of a batch without calls ends at once, and the callbacks start.
    """
    with transaction.atomic(using=database):
        Workflow(
            id=batch_id,
            root_id=batch_id,
            name=name,
            backend=head["backend"],
            is_batch=True,
            status=lifecycle.START_WORKFLOW.target,
            output_index=CALLS_INDEX,
            node_count=1 + len(callbacks),
            open_count=1 + len(callbacks),
            started_at=Now(),
        ).save(using=database, force_insert=True)
        waits = {"kind": NodeKind.TASK.value, "waits_for": [CALLS_INDEX], "open_deps": 1}
        steps: list[Columns] = [
            {"node_id": CALLS_NODE, "kind": NodeKind.MAP.value, "dependents": [*range(1, 1 + len(callbacks))], **head}
        ]
        for callback, columns in callbacks.items():
            steps.append({"node_id": callback, **waits, "allow_failed_deps": callback == "on_complete", **columns})
        nodes = [{"workflow_id": batch_id, "task_index": index, **step} for index, step in enumerate(steps)]
        insert_nodes(database, nodes)
        create_limits_after_commit(database, nodes)
        engine = Engine.on(database)
        head_rows = engine.nodes.filter(workflow=batch_id, task_index=CALLS_INDEX)
        lifecycle.START_NODE.apply(head_rows, started_at=Now())
        if calls:
            _insert_calls(engine, batch_id, calls, first=0, index=1 + len(callbacks))
        else:
            engine.advance(start_nodes.collect_maps(engine, read_nodes(head_rows)))


def add(database: str, batch_id: UUID, calls: Sequence[Columns]) -> list[str]:
    """Add calls to a running batch; return the ids of their nodes.

    Raises LookupError if there is no such batch, and BatchEnded if all its calls have ended.
    """
    with locked(database, batch_id) as workflow:
        if workflow is None or not workflow.is_batch:
            raise LookupError(f"There is no batch {batch_id}.")
        engine = Engine.on(database)
        head = engine.nodes.filter(workflow=batch_id, task_index=CALLS_INDEX, status=WorkflowTaskStatus.RUNNING)
        if not head.exists() or workflow.status not in (WorkflowStatus.RUNNING, WorkflowStatus.PAUSED):
            raise BatchEnded(batch_id)
        steps = engine.nodes.filter(workflow=batch_id, map_index__isnull=True).count()
        first = workflow.node_count - steps
        if calls:
            _insert_calls(engine, batch_id, calls, first=first, index=workflow.node_count)
        return [call_node_id(first + place) for place in range(len(calls))]


def call_nodes(nodes: NodeRows, batch_id: UUID) -> NodeRows:
    """Return the nodes of a batch's calls."""
    return nodes.filter(workflow=batch_id, map_index=CALLS_INDEX)


def _insert_calls(engine: Engine, batch_id: UUID, calls: Sequence[Columns], *, first: int, index: int) -> None:
    database, count = engine.database, len(calls)
    rows: list[dict[str, Any]] = [
        {
            "workflow_id": batch_id,
            "task_index": index + place,
            "node_id": call_node_id(first + place),
            "kind": NodeKind.TASK.value,
            "map_index": CALLS_INDEX,
            "status": lifecycle.ADD_CALL.target.value,
            **call,
        }
        for place, call in enumerate(calls)
    ]
    insert_nodes(database, rows)
    Workflow.objects.using(database).filter(pk=batch_id).update(
        node_count=F("node_count") + count, open_count=F("open_count") + count
    )
    engine.nodes.filter(workflow=batch_id, task_index=CALLS_INDEX).update(open_deps=F("open_deps") + count)
    new = call_nodes(engine.nodes, batch_id).filter(task_index__gte=index).order_by("task_index")
    engine.advance([], list(new.values_list("pk", flat=True)))


def count(database: str, batch_id: UUID) -> dict[str, int]:
    """Return how many calls of a batch have each status, in one statement."""
    nodes = call_nodes(WorkflowTask.objects.using(database), batch_id)
    return dict(nodes.values_list("status").annotate(count=Count("pk")).values_list("status", "count"))
