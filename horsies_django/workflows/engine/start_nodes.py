"""Starting nodes: what each kind of node does once it is ready."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from django.db import models
from django.db.models import F, TextField, Value
from django.db.models.functions import Cast

from ...core.ids import uuid7s
from ...core.serialization import dumps
from ...core.workflow_errors import WorkflowCode
from ...core.workflow_status import NodeKind, WorkflowTaskStatus
from ...db.expressions import ValueByPk, where_in
from ...db.now import Now
from ...models import Workflow, WorkflowEvent
from ...models.claims import TaskRoute
from .. import lifecycle
from ..node_options import CALL_COLUMNS
from .context import EngineContext
from .enqueue_nodes import BUILD_COLUMNS, engine_task, enqueue, enqueue_limited, insert_nodes, insert_tasks
from .rows import NodeEnd, NodeResult, NodeRows, NodeState, Position, read_ends

#: The module of the engine's own tasks.
_TASKS_MODULE: Final = "horsies_django.workflows.engine_tasks"

#: How many failed items the error of a map lists, by their positions.
_MAX_NAMED_FAILURES: Final = 100

#: How many characters of a map's name its items' names have, of which each may have 128 characters.
_MAX_MAP_NAME: Final = 100

_NOW: Final = Now()

#: After a pause the wait ends at its original time.
_DUE_AT_UNTIL: Final[dict[str, Any]] = {"enqueued_at": F("until"), "run_after": F("until"), "deferred": Value(True)}


def start(context: EngineContext, ready: Collection[NodeState]) -> list[NodeEnd]:
    """Start these nodes, whose workflows run; return the ends of those that ended at once."""
    if not ready:
        return []
    by_kind: dict[str, dict[int, TaskRoute]] = defaultdict(dict)
    for node in ready:
        kind = "undecided" if node.is_undecided else node.kind
        if kind == NodeKind.TASK and node.limit_key is not None:
            kind = "limited"
        by_kind[kind][node.pk] = (node.queue_name, node.is_async and kind == NodeKind.TASK)
    enqueue(context, "decide", by_kind["undecided"], **engine_task(f"{_TASKS_MODULE}.decide"))
    enqueue(context, "task", by_kind[NodeKind.TASK])
    limited = [node for node in ready if node.pk in by_kind["limited"]]
    enqueue_limited(context, {node.pk: str(node.limit_key) for node in limited})
    enqueue(context, "build", by_kind[NodeKind.SUBWORKFLOW], **BUILD_COLUMNS)
    _schedule_wake(context, by_kind[NodeKind.SLEEP])
    events = [node for node in ready if node.pk in by_kind[NodeKind.EVENT]]
    maps = [node for node in ready if node.pk in by_kind[NodeKind.MAP]]
    if not (events or maps):
        return []
    _load_events_and_sources(context, events, maps)
    return [*_wait_for_events(context, events, by_kind[NodeKind.EVENT]), *_expand_maps(context, maps)]


def _load_events_and_sources(context: EngineContext, events: Sequence[NodeState], maps: Sequence[NodeState]) -> None:
    """Load the events of these workflows, and the results that these maps go over, in one round trip."""
    queries = context.queries
    unread = {node.workflow_id for node in events}.difference(context.events)
    sent = WorkflowEvent.objects.using(context.database).filter(where_in(context.database, unread, "workflow"))
    positions = {(node.workflow_id, node.over_index or 0) for node in maps}.difference(context.results)
    events_sent, sources = context.fetch(
        queries.query(sent, "workflow_id", "name", Cast("payload", TextField())) if unread else None,
        queries.source_results(positions),
    )
    context.events |= {key: {} for key in unread}
    for workflow_id, name, payload in events_sent:
        context.events[workflow_id][name] = payload
    for workflow_id, index, text, is_neutral in sources:
        context.results[workflow_id, index] = (text, is_neutral)


def _wait_for_events(
    context: EngineContext, events: Sequence[NodeState], routes: Mapping[int, TaskRoute]
) -> list[NodeEnd]:
    if not events:
        return []
    context.start_nodes(events)
    ends, timed = list[tuple[NodeEnd, str | None]](), dict[int, TaskRoute]()
    for node in events:
        sent = context.events[node.workflow_id]
        if node.event_name in sent:
            ends.append((node.end_as(WorkflowTaskStatus.COMPLETED), sent[node.event_name]))
        elif node.event_timeout is not None:
            timed[node.pk] = routes[node.pk]
    _schedule_wake(context, timed)
    return complete_events(context, ends)


def _schedule_wake(context: EngineContext, routes: Mapping[int, TaskRoute]) -> None:
    """Enqueue a task for each of these nodes that becomes due when its wait is over.

    So a waiting node holds no worker.
    """
    context.set_due_times(routes)
    enqueue(context, "wake", routes, **engine_task(f"{_TASKS_MODULE}.wake"), **_DUE_AT_UNTIL)


def complete_events(context: EngineContext, ends: Sequence[tuple[NodeEnd, str | None]]) -> list[NodeEnd]:
    """Complete nodes whose events have come, each with the JSON text of the payload."""
    return context.end_nodes(NodeResult(end, f'{{"ok":{payload or "null"}}}') for end, payload in ends)


# Maps.

#: The columns of a map's row from which its items are made.
_ITEM_COLUMNS: Final = ("node_id", "kwargs", "param", "args_from", "values_from", "ctx_from", *CALL_COLUMNS)


def _expand_maps(context: EngineContext, maps: Sequence[NodeState]) -> list[NodeEnd]:
    """Insert a node for each item of the lists that these maps go over; return the ends of maps without items."""
    ended = list[NodeResult]()
    full: list[tuple[NodeState, Sequence[Any]]] = []
    for node in maps:
        text, is_unwanted = context.results[node.workflow_id, node.over_index or 0]
        items = json.loads(text or "{}").get("ok")
        if is_unwanted:  # then the map is skipped too: that is no failure
            message = "The node that the map goes over was skipped by its own condition."
            end = node.end_as(WorkflowTaskStatus.SKIPPED, is_neutral=True)
            ended.append(NodeResult.err(end, WorkflowCode.CONDITION_NOT_MET, message))
        elif not isinstance(items, list):
            message = "The value of the node that the map goes over is no list."
            end = node.end_as(WorkflowTaskStatus.FAILED)
            ended.append(NodeResult.err(end, WorkflowCode.MAP_NOT_A_LIST, message))
        elif items:
            full.append((node, items))
        else:
            ended.append(NodeResult(node.end_as(WorkflowTaskStatus.COMPLETED), '{"ok":[]}'))
    _insert_items(context, full)
    return context.end_nodes(ended)


def _insert_items(context: EngineContext, maps: Sequence[tuple[NodeState, Sequence[Any]]]) -> None:
    """Insert the items of these maps, with their tasks."""
    if not maps:
        return
    nodes, database = context.nodes, context.database
    counts = {node.pk: len(items) for node, items in maps}
    workflows = {node.workflow_id for node, _ in maps}.difference(context.workflows)
    item_rows, unknown = context.fetch(
        context.queries.query(nodes.filter(where_in(database, counts)), "pk", *_ITEM_COLUMNS),
        context.queries.workflows(workflows),
    )
    context.add_workflows(unknown)
    columns_of = {key: dict(zip(_ITEM_COLUMNS, row, strict=True)) for key, *row in item_rows}
    ids = iter(uuid7s(sum(counts.values())))
    rows: list[dict[str, Any]] = []
    more: Counter[UUID] = Counter()
    free, limited = dict[UUID, TaskRoute](), dict[UUID, str]()
    for node, items in maps:
        columns, workflow = columns_of[node.pk], context.workflows[node.workflow_id]
        is_long = len(columns["node_id"]) > _MAX_MAP_NAME  # a cut name may be the same as that of another map
        name = columns["node_id"]
        name = f"{name[:_MAX_MAP_NAME]}~{node.task_index}" if is_long else name
        for position, item in enumerate(items):
            task_id = next(ids)
            if node.limit_key is None:
                free[task_id] = (node.queue_name, node.is_async)
            else:
                limited[task_id] = node.limit_key
            rows.append(
                {
                    "workflow_id": node.workflow_id,
                    "task_index": workflow.node_count + position,
                    "node_id": f"{name}[{position}]",
                    "kind": NodeKind.TASK.value,
                    "status": lifecycle.ADD_ITEM.target.value,
                    "task_id": task_id,
                    "started_at": _NOW,
                    "map_index": node.task_index,
                    "kwargs": {**columns["kwargs"], str(columns["param"]): item},
                    **{name: columns[name] for name in ("args_from", "values_from", "ctx_from", *CALL_COLUMNS)},
                }
            )
        workflow.node_count += len(items)
        workflow.open_count += len(items)
        more[node.workflow_id] += len(items)
    insert_nodes(database, rows)
    insert_tasks(context, free, limited)
    new = ValueByPk({key: str(count) for key, count in more.items()}, models.IntegerField())
    Workflow.objects.using(database).filter(where_in(database, more)).update(
        node_count=F("node_count") + new, open_count=F("open_count") + new
    )
    open_deps = ValueByPk({key: str(count) for key, count in counts.items()}, models.IntegerField())
    lifecycle.START_NODE.apply(
        nodes.filter(where_in(database, counts)), started_at=Now(), open_deps=open_deps, ok_deps=0, failed_deps=0
    )


def collect_maps(context: EngineContext, maps: Sequence[NodeState]) -> list[NodeEnd]:
    """Complete maps whose items have all ended, with the list of their values; fail those with failed items."""
    good = {(node.workflow_id, node.task_index): node for node in maps if not node.failed_deps}
    bad = {(node.workflow_id, node.task_index): node for node in maps if node.failed_deps}
    results, states = context.fetch(context.queries.item_results(good), context.queries.item_statuses(bad))
    values: dict[Position, list[Any]] = {position: [] for position in good}
    for workflow_id, index, text in results:
        values[workflow_id, index].append(json.loads(text or "{}").get("ok"))
    statuses: dict[Position, list[str]] = {position: [] for position in bad}
    for workflow_id, index, status in states:
        statuses[workflow_id, index].append(status)
    completed = [
        NodeResult(good[position].end_as(WorkflowTaskStatus.COMPLETED), dumps({"ok": each}))
        for position, each in values.items()
    ]
    return context.end_nodes([*completed, *(_failed_map(bad[position], each) for position, each in statuses.items())])


def _failed_map(node: NodeState, statuses: Sequence[str]) -> NodeResult:
    message = f"{node.failed_deps:,} of {node.failed_deps + node.ok_deps:,} items did not complete."
    failed = [position for position, status in enumerate(statuses) if status != WorkflowTaskStatus.COMPLETED]
    data = {"ok": node.ok_deps, "failed": failed[:_MAX_NAMED_FAILURES]}
    return NodeResult.err(node.end_as(WorkflowTaskStatus.FAILED), WorkflowCode.MAP_ITEM_FAILED, message, data)


def nodes_waiting_for(nodes: NodeRows, workflow_id: UUID, event_name: str) -> list[NodeEnd]:
    """Return the ends of the nodes of a workflow that wait for this event."""
    rows = nodes.filter(workflow=workflow_id, event_name=event_name, status=WorkflowTaskStatus.RUNNING)
    return read_ends(rows, WorkflowTaskStatus.COMPLETED)
