"""Beginning: what a node does when its turn has come."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from django.db import models
from django.db.models import F, TextField, Value
from django.db.models.functions import Cast, Coalesce, Now

from ...expressions import FromMap, FromNow
from ...models import Workflow, WorkflowEvent, WorkflowTask
from ...serializers import dumps
from ..blueprint import CALL_COLUMNS
from ..codes import WorkflowCode
from ..states import NodeKind, WorkflowTaskStatus
from . import inserting, limiting
from .ending import err, skip
from .enqueuing import BUILDING, Lane, enqueue, internal
from .nodes import IS_NEUTRAL, Node, NodeRows, Settled, among
from .turn import Turn

#: Our own tasks (see workflows/internal.py).
_HERE: Final = "horsies_django.workflows.internal"

#: So many failed items of a map are named in its error, by their places.
_MOST_NAMED: Final = 100

#: Of a map's name this much is in the names of its items, which may have 128 characters.
_LONGEST_NAME: Final = 100

#: A wait that was paused ends when it would have ended.
_AT_ITS_TIME: Final[dict[str, Any]] = {"enqueued_at": F("until"), "run_after": F("until"), "deferred": Value(True)}


def begin(turn: Turn, ready: Collection[Node]) -> list[Settled]:
    """Begin these nodes, whose workflows run; return those that have ended with that."""
    if not ready:
        return []
    by_kind: dict[str, dict[int, Lane]] = defaultdict(dict)
    for node in ready:
        kind = "undecided" if node.is_undecided else node.kind
        if kind == NodeKind.TASK and node.limit_key is not None:
            kind = "limited"
        by_kind[kind][node.pk] = (node.queue_name, node.is_async and kind == NodeKind.TASK)
    enqueue(turn, by_kind["undecided"], **internal(f"{_HERE}.decide"))
    enqueue(turn, by_kind[NodeKind.TASK])
    limiting.enqueue(turn, by_kind["limited"])
    enqueue(turn, by_kind[NodeKind.SUBWORKFLOW], **BUILDING)
    _sleep(turn, by_kind[NodeKind.SLEEP])
    return _wait_for_events(turn, by_kind[NodeKind.EVENT]) + _expand(turn, by_kind[NodeKind.MAP])


def _sleep(turn: Turn, lanes: Mapping[int, Lane]) -> None:
    """A sleep is a task that is due later and does nothing, so it holds no slot (P-08)."""
    if lanes:
        _wake_after(turn, lanes, "seconds")


def _wait_for_events(turn: Turn, lanes: Mapping[int, Lane]) -> list[Settled]:
    if not lanes:
        return []
    nodes = turn.nodes
    waiting = nodes.filter(among(nodes.db, lanes))
    columns = ("pk", "workflow_id", "task_index", "dependents", "map_index", "event_name", "event_timeout")
    rows = list(waiting.values_list(*columns))
    waiting.update(status=WorkflowTaskStatus.RUNNING, started_at=Now())
    events = WorkflowEvent.objects.using(nodes.db).filter(workflow__in={row[1] for row in rows})
    sent = {
        (workflow_id, name): payload
        for workflow_id, name, payload in events.values_list("workflow_id", "name", Cast("payload", TextField()))
    }
    ends, timed = list[tuple[Settled, str | None]](), dict[int, Lane]()
    for *end, name, timeout in rows:
        if (end[1], name) in sent:
            ends.append((Settled(end[0], end[1], end[2], WorkflowTaskStatus.COMPLETED, *end[3:]), sent[end[1], name]))
        elif timeout is not None:
            timed[end[0]] = lanes[end[0]]
    if timed:
        _wake_after(turn, timed, "event_timeout")
        nodes.filter(among(nodes.db, timed)).update(status=WorkflowTaskStatus.RUNNING)
    return happened(nodes, ends)


def _wake_after(turn: Turn, lanes: Mapping[int, Lane], seconds: str) -> None:
    """Have something run for each of these nodes so many seconds from now, by a column, or when it already says."""
    unset = turn.nodes.filter(among(turn.database, lanes), until__isnull=True)
    unset.update(until=FromNow(Coalesce(seconds, Value(0.0))))
    enqueue(turn, lanes, **internal(f"{_HERE}.wake"), **_AT_ITS_TIME)


def happened(nodes: NodeRows, ends: Sequence[tuple[Settled, str | None]]) -> list[Settled]:
    """These events have come, each with the JSON text of its payload."""
    _complete(nodes, {end.pk: f'{{"ok":{payload or "null"}}}' for end, payload in ends})
    return [end for end, _ in ends]


def _complete(nodes: NodeRows, results: dict[int, str]) -> None:
    if results:
        nodes.filter(among(nodes.db, results)).update(
            status=WorkflowTaskStatus.COMPLETED,
            completed_at=Now(),
            result=FromMap(results, models.JSONField()),
            error_code=None,
        )


def _fail(nodes: NodeRows, key: int, code: str, message: str, data: Any = None) -> None:
    nodes.filter(pk=key).update(
        status=WorkflowTaskStatus.FAILED, completed_at=Now(), result=err(code, message, data), error_code=str(code)
    )


# Maps: a node for each item.


def _expand(turn: Turn, keys: Collection[int]) -> list[Settled]:
    """Make a node of each item of what a map goes over (P-07); a map over nothing has ended."""
    nodes = turn.nodes
    ends: list[Settled] = []
    for node in nodes.filter(pk__in=keys).select_related("workflow") if keys else ():
        source = nodes.filter(workflow=node.workflow, task_index=node.over_index or 0)
        ((text, is_unwanted),) = source.values_list(Cast("result", TextField()), IS_NEUTRAL)
        items = json.loads(text or "{}").get("ok")
        end = Settled(
            node.pk, node.workflow.pk, node.task_index, WorkflowTaskStatus.FAILED, node.dependents, node.map_index
        )
        if is_unwanted:  # then so is what goes over it: that is no failure
            ends.append(end._replace(status=WorkflowTaskStatus.SKIPPED, is_neutral=True))
            skip(nodes, ends[-1:], WorkflowCode.CONDITION_NOT_MET, "What it goes over was skipped by its condition.")
        elif not isinstance(items, list):
            _fail(nodes, node.pk, WorkflowCode.MAP_NOT_A_LIST, "The node that it goes over has given no list.")
            ends.append(end)
        elif not items:
            _complete(nodes, {node.pk: '{"ok":[]}'})
            ends.append(end._replace(status=WorkflowTaskStatus.COMPLETED))
        else:
            _make_items(turn, node, items)
    return ends


def _make_items(turn: Turn, node: WorkflowTask, items: Sequence[Any]) -> None:
    nodes, database, count = turn.nodes, turn.database, len(items)
    workflow = Workflow.objects.using(database).get(pk=node.workflow.pk)
    first = workflow.node_count
    is_long = len(node.node_id) > _LONGEST_NAME  # cut, it might be that of another one
    name = f"{node.node_id[:_LONGEST_NAME]}~{node.task_index}" if is_long else node.node_id
    common = {name: getattr(node, name) for name in CALL_COLUMNS}
    inserting.insert(
        database,
        [
            {
                "workflow_id": workflow.pk,
                "task_index": first + place,
                "node_id": f"{name}[{place}]",
                "kind": NodeKind.TASK.value,
                "map_index": node.task_index,
                "kwargs": {**node.kwargs, str(node.param): item},
                "args_from": node.args_from,
                "values_from": node.values_from,
                "ctx_from": node.ctx_from,
                **common,
            }
            for place, item in enumerate(items)
        ],
    )
    Workflow.objects.using(database).filter(pk=workflow.pk).update(
        node_count=F("node_count") + count, open_count=F("open_count") + count
    )
    nodes.filter(pk=node.pk).update(
        status=WorkflowTaskStatus.RUNNING, started_at=Now(), open_deps=count, ok_deps=0, bad_deps=0
    )
    rows = nodes.filter(workflow=workflow, map_index=node.task_index, status=WorkflowTaskStatus.PENDING)
    keys = list(rows.order_by("task_index").values_list("pk", flat=True))
    if node.limit_key is None:
        enqueue(turn, dict.fromkeys(keys, (node.queue_name, node.is_async)))
    else:
        limiting.enqueue(turn, keys)


def collect(nodes: NodeRows, maps: Sequence[Node]) -> list[Settled]:
    """All items of these maps have ended: end them, with the list of values, in order."""
    ends = []
    for node in maps:
        if node.bad_deps:
            message = f"{node.bad_deps:,} of {node.bad_deps + node.ok_deps:,} items did not complete."
            items = nodes.filter(workflow=node.workflow_id, map_index=node.task_index).order_by("task_index")
            states = enumerate(items.values_list("status", flat=True))
            failed = [place for place, status in states if status != WorkflowTaskStatus.COMPLETED]
            data = {"ok": node.ok_deps, "failed": failed[:_MOST_NAMED]}
            _fail(nodes, node.pk, WorkflowCode.MAP_ITEM_FAILED, message, data)
            ends.append(node.settled(WorkflowTaskStatus.FAILED))
            continue
        items = nodes.filter(workflow=node.workflow_id, map_index=node.task_index).order_by("task_index")
        results = items.values_list(Cast("result", TextField()), flat=True)
        _complete(nodes, {node.pk: dumps({"ok": [json.loads(text or "{}").get("ok") for text in results]})})
        ends.append(node.settled(WorkflowTaskStatus.COMPLETED))
    return ends


def waiting_for(nodes: NodeRows, workflow_id: UUID, event_name: str) -> list[Settled]:
    """The nodes of a workflow that wait for an event."""
    rows = nodes.filter(
        workflow=workflow_id, kind=NodeKind.EVENT, event_name=event_name, status=WorkflowTaskStatus.RUNNING
    )
    return [
        Settled(pk, workflow_id, index, WorkflowTaskStatus.COMPLETED, dependents, map_index)
        for pk, index, dependents, map_index in rows.values_list("pk", "task_index", "dependents", "map_index")
    ]
