"""Beginning: what a node does when its turn has come."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from django.db import models
from django.db.models import F, TextField, Value
from django.db.models.functions import Cast, Now

from ...core.ids import uuid7s
from ...core.serialization import dumps
from ...core.workflow_status import NodeKind, WorkflowTaskStatus
from ...db.expressions import FromMap
from ...models import Workflow, WorkflowEvent
from .. import lifecycle
from ..blueprint import CALL_COLUMNS
from ..codes import WorkflowCode
from . import insert_rows, limits
from .context import EngineContext
from .enqueue_nodes import BUILD_COLUMNS, TaskRoute, enqueue, insert_tasks, engine_task
from .node_end import err_result
from .nodes import NodeResult, Node, NodeRows, Position, NodeEnd, where_in

#: Our own tasks (see workflows/internal.py).
_TASKS_MODULE: Final = "horsies_django.workflows.internal"

#: So many failed items of a map are named in its error, by their places.
_MAX_NAMED_FAILURES: Final = 100

#: Of a map's name this much is in the names of its items, which may have 128 characters.
_MAX_MAP_NAME: Final = 100

_NOW: Final = Now()

#: A wait that was paused ends when it would have ended.
_DUE_AT_UNTIL: Final[dict[str, Any]] = {"enqueued_at": F("until"), "run_after": F("until"), "deferred": Value(True)}


def start(turn: EngineContext, ready: Collection[Node]) -> list[NodeEnd]:
    """Begin these nodes, whose workflows run; return those that have ended with that."""
    if not ready:
        return []
    by_kind: dict[str, dict[int, TaskRoute]] = defaultdict(dict)
    for node in ready:
        kind = "undecided" if node.is_undecided else node.kind
        if kind == NodeKind.TASK and node.limit_key is not None:
            kind = "limited"
        by_kind[kind][node.pk] = (node.queue_name, node.is_async and kind == NodeKind.TASK)
    enqueue(turn, "decide", by_kind["undecided"], **engine_task(f"{_TASKS_MODULE}.decide"))
    enqueue(turn, "task", by_kind[NodeKind.TASK])
    limits.enqueue_limited(turn, {node.pk: node.limit_key for node in ready if node.pk in by_kind["limited"]})
    enqueue(turn, "build", by_kind[NodeKind.SUBWORKFLOW], **BUILD_COLUMNS)
    _schedule_wake(turn, by_kind[NodeKind.SLEEP])
    events = [node for node in ready if node.pk in by_kind[NodeKind.EVENT]]
    maps = [node for node in ready if node.pk in by_kind[NodeKind.MAP]]
    if not (events or maps):
        return []
    _load_events_and_sources(turn, events, maps)
    return [*_wait_for_events(turn, events), *_expand_maps(turn, maps)]


def _load_events_and_sources(turn: EngineContext, events: Sequence[Node], maps: Sequence[Node]) -> None:
    """Read what was sent to the workflows of these events, and what these maps go over, in one round trip."""
    ask = turn.queries
    unread = {node.workflow_id for node in events}.difference(turn.events)
    sent = WorkflowEvent.objects.using(turn.database).filter(where_in(turn.database, unread, "workflow"))
    places = {(node.workflow_id, node.over_index or 0) for node in maps}.difference(turn.results)
    events_sent, sources = turn.fetch(
        ask.query(sent, "workflow_id", "name", Cast("payload", TextField())) if unread else None,
        ask.source_results(places) if places else None,
    )
    turn.events |= {key: {} for key in unread}
    for workflow_id, name, payload in events_sent:
        turn.events[workflow_id][name] = payload
    for workflow_id, index, text, is_neutral in sources:
        turn.results[workflow_id, index] = (text, is_neutral)


def _wait_for_events(turn: EngineContext, events: Sequence[Node]) -> list[NodeEnd]:
    if not events:
        return []
    turn.start_nodes(events)
    ends, timed = list[tuple[NodeEnd, str | None]](), dict[int, TaskRoute]()
    for node in events:
        sent = turn.events[node.workflow_id]
        if node.event_name in sent:
            ends.append((node.end_as(WorkflowTaskStatus.COMPLETED), sent[node.event_name]))
        elif node.event_timeout is not None:
            timed[node.pk] = (node.queue_name, False)
    _schedule_wake(turn, timed)
    return complete_events(turn, ends)


def _schedule_wake(turn: EngineContext, lanes: Mapping[int, TaskRoute]) -> None:
    """Have something run for each of these nodes when its wait is over.

    A sleep is a task that is due later and does nothing, so it holds no slot (P-08).
    """
    turn.set_due_times(lanes)
    enqueue(turn, "wake", lanes, **engine_task(f"{_TASKS_MODULE}.wake"), **_DUE_AT_UNTIL)


def complete_events(turn: EngineContext, ends: Sequence[tuple[NodeEnd, str | None]]) -> list[NodeEnd]:
    """These events have come, each with the JSON text of its payload."""
    return _complete(turn, [(end, f'{{"ok":{payload or "null"}}}') for end, payload in ends])


def _complete(turn: EngineContext, ended: Sequence[tuple[NodeEnd, str]]) -> list[NodeEnd]:
    """End nodes with these results, as JSON texts; return them."""
    return turn.end_nodes(NodeResult(end, text) for end, text in ended)


def _fail(turn: EngineContext, failed: Sequence[tuple[NodeEnd, tuple[str, str, Any]]]) -> list[NodeEnd]:
    """End nodes with these errors: a code, a message and data of each; return them."""
    return turn.end_nodes(NodeResult(end, dumps(err_result(*error)), error[0]) for end, error in failed)


# Maps: a node for each item.

#: What of a map's row says how its items are to be.
_ITEM_COLUMNS: Final = ("node_id", "kwargs", "param", "args_from", "values_from", "ctx_from", *CALL_COLUMNS)


def _expand_maps(turn: EngineContext, maps: Sequence[Node]) -> list[NodeEnd]:
    """Make a node of each item of what maps go over (P-07); a map over nothing has ended."""
    unwanted, empty, bad = list[NodeEnd](), list[NodeEnd](), list[NodeEnd]()
    full: list[tuple[Node, Sequence[Any]]] = []
    for node in maps:
        text, is_unwanted = turn.results[node.workflow_id, node.over_index or 0]
        items = json.loads(text or "{}").get("ok")
        if is_unwanted:  # then so is what goes over it: that is no failure
            unwanted.append(node.end_as(WorkflowTaskStatus.SKIPPED, is_neutral=True))
        elif not isinstance(items, list):
            bad.append(node.end_as(WorkflowTaskStatus.FAILED))
        elif items:
            full.append((node, items))
        else:
            empty.append(node.end_as(WorkflowTaskStatus.COMPLETED))
    message = "What it goes over was skipped by its condition."
    result = dumps(err_result(WorkflowCode.CONDITION_NOT_MET, message))
    turn.end_nodes(NodeResult(end, result, WorkflowCode.CONDITION_NOT_MET) for end in unwanted)
    _insert_items(turn, full)
    no_list = (WorkflowCode.MAP_NOT_A_LIST, "The node that it goes over has given no list.", None)
    done = _complete(turn, [(end, '{"ok":[]}') for end in empty])
    return [*unwanted, *done, *_fail(turn, [(end, no_list) for end in bad])]


def _insert_items(turn: EngineContext, maps: Sequence[tuple[Node, Sequence[Any]]]) -> None:
    """Make the items of these maps, each with its task."""
    if not maps:
        return
    nodes, database = turn.nodes, turn.database
    counts = {node.pk: len(items) for node, items in maps}
    flows = {node.workflow_id for node, _ in maps}.difference(turn.workflows)
    found, unknown = turn.fetch(
        turn.queries.query(nodes.filter(where_in(database, counts)), "pk", *_ITEM_COLUMNS),
        turn.queries.workflows(flows) if flows else None,
    )
    turn.add_workflows(unknown)
    columns_of = {key: dict(zip(_ITEM_COLUMNS, row, strict=True)) for key, *row in found}
    ids = iter(uuid7s(sum(counts.values())))
    rows: list[dict[str, Any]] = []
    more: Counter[UUID] = Counter()
    free, limited = dict[UUID, TaskRoute](), dict[UUID, tuple[str | None, str | None]]()
    for node, items in maps:
        columns, flow = columns_of[node.pk], turn.workflows[node.workflow_id]
        is_long = len(columns["node_id"]) > _MAX_MAP_NAME  # cut, it might be that of another one
        name = columns["node_id"]
        name = f"{name[:_MAX_MAP_NAME]}~{node.task_index}" if is_long else name
        for place, item in enumerate(items):
            task_id = next(ids)
            if node.limit_key is None:
                free[task_id] = (node.queue_name, node.is_async)
            else:
                limited[task_id] = (node.limit_key, columns["task_name"])
            rows.append(
                {
                    "workflow_id": node.workflow_id,
                    "task_index": flow.node_count + place,
                    "node_id": f"{name}[{place}]",
                    "kind": NodeKind.TASK.value,
                    "status": lifecycle.ADD_ITEM.target.value,
                    "task_id": task_id,
                    "started_at": _NOW,
                    "map_index": node.task_index,
                    "kwargs": {**columns["kwargs"], str(columns["param"]): item},
                    **{name: columns[name] for name in ("args_from", "values_from", "ctx_from", *CALL_COLUMNS)},
                }
            )
        flow.node_count += len(items)
        flow.open_count += len(items)
        more[node.workflow_id] += len(items)
    insert_rows.insert(database, rows)
    insert_tasks(turn, free)
    limits.insert_limited_tasks(turn, limited)
    new = FromMap({key: str(count) for key, count in more.items()}, models.IntegerField())
    Workflow.objects.using(database).filter(where_in(database, more)).update(
        node_count=F("node_count") + new, open_count=F("open_count") + new
    )
    open_deps = FromMap({key: str(count) for key, count in counts.items()}, models.IntegerField())
    lifecycle.START_NODE.apply(
        nodes.filter(where_in(database, counts)), started_at=Now(), open_deps=open_deps, ok_deps=0, failed_deps=0
    )


def collect_maps(turn: EngineContext, maps: Sequence[Node]) -> list[NodeEnd]:
    """All items of these maps have ended: end them, with the list of values, in order."""
    good = {(node.workflow_id, node.task_index): node for node in maps if not node.failed_deps}
    bad = {(node.workflow_id, node.task_index): node for node in maps if node.failed_deps}
    ask = turn.queries
    results, states = turn.fetch(ask.item_results(good) if good else None, ask.item_statuses(bad) if bad else None)
    values: dict[Position, list[Any]] = {place: [] for place in good}
    for workflow_id, index, text in results:
        values[workflow_id, index].append(json.loads(text or "{}").get("ok"))
    found: dict[Position, list[str]] = {place: [] for place in bad}
    for workflow_id, index, status in states:
        found[workflow_id, index].append(status)
    done = [(good[place].end_as(WorkflowTaskStatus.COMPLETED), dumps({"ok": each})) for place, each in values.items()]
    failed = [
        (bad[place].end_as(WorkflowTaskStatus.FAILED), _map_error(bad[place], each)) for place, each in found.items()
    ]
    return [*_complete(turn, done), *_fail(turn, failed)]


def _map_error(node: Node, states: Sequence[str]) -> tuple[str, str, Any]:
    message = f"{node.failed_deps:,} of {node.failed_deps + node.ok_deps:,} items did not complete."
    failed = [place for place, status in enumerate(states) if status != WorkflowTaskStatus.COMPLETED]
    return WorkflowCode.MAP_ITEM_FAILED, message, {"ok": node.ok_deps, "failed": failed[:_MAX_NAMED_FAILURES]}


def nodes_waiting_for(nodes: NodeRows, workflow_id: UUID, event_name: str) -> list[NodeEnd]:
    """The nodes of a workflow that wait for an event."""
    rows = nodes.filter(
        workflow=workflow_id, kind=NodeKind.EVENT, event_name=event_name, status=WorkflowTaskStatus.RUNNING
    )
    return [
        NodeEnd(pk, workflow_id, index, WorkflowTaskStatus.COMPLETED, dependents, map_index)
        for pk, index, dependents, map_index in rows.values_list("pk", "task_index", "dependents", "map_index")
    ]
