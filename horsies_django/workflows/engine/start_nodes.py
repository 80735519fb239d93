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
from .context import Turn
from .enqueue_nodes import BUILDING, Lane, enqueue, enqueue_made, internal
from .node_end import err
from .nodes import Ending, Node, NodeRows, Place, Settled, among

#: Our own tasks (see workflows/internal.py).
_HERE: Final = "horsies_django.workflows.internal"

#: So many failed items of a map are named in its error, by their places.
_MOST_NAMED: Final = 100

#: Of a map's name this much is in the names of its items, which may have 128 characters.
_LONGEST_NAME: Final = 100

_NOW: Final = Now()

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
    enqueue(turn, "decide", by_kind["undecided"], **internal(f"{_HERE}.decide"))
    enqueue(turn, "task", by_kind[NodeKind.TASK])
    limits.enqueue(turn, {node.pk: node.limit_key for node in ready if node.pk in by_kind["limited"]})
    enqueue(turn, "build", by_kind[NodeKind.SUBWORKFLOW], **BUILDING)
    _wake_later(turn, by_kind[NodeKind.SLEEP])
    events = [node for node in ready if node.pk in by_kind[NodeKind.EVENT]]
    maps = [node for node in ready if node.pk in by_kind[NodeKind.MAP]]
    if not (events or maps):
        return []
    _ask_for(turn, events, maps)
    return [*_wait_for_events(turn, events), *_expand(turn, maps)]


def _ask_for(turn: Turn, events: Sequence[Node], maps: Sequence[Node]) -> None:
    """Read what was sent to the workflows of these events, and what these maps go over, in one round trip."""
    ask = turn.phrases
    unread = {node.workflow_id for node in events}.difference(turn.events)
    sent = WorkflowEvent.objects.using(turn.database).filter(among(turn.database, unread, "workflow"))
    places = {(node.workflow_id, node.over_index or 0) for node in maps}.difference(turn.results)
    events_sent, sources = turn.ask(
        ask.read(sent, "workflow_id", "name", Cast("payload", TextField())) if unread else None,
        ask.sources(places) if places else None,
    )
    turn.events |= {key: {} for key in unread}
    for workflow_id, name, payload in events_sent:
        turn.events[workflow_id][name] = payload
    for workflow_id, index, text, is_neutral in sources:
        turn.results[workflow_id, index] = (text, is_neutral)


def _wait_for_events(turn: Turn, events: Sequence[Node]) -> list[Settled]:
    if not events:
        return []
    turn.start(events)
    ends, timed = list[tuple[Settled, str | None]](), dict[int, Lane]()
    for node in events:
        sent = turn.events[node.workflow_id]
        if node.event_name in sent:
            ends.append((node.settled(WorkflowTaskStatus.COMPLETED), sent[node.event_name]))
        elif node.event_timeout is not None:
            timed[node.pk] = (node.queue_name, False)
    _wake_later(turn, timed)
    return happened(turn, ends)


def _wake_later(turn: Turn, lanes: Mapping[int, Lane]) -> None:
    """Have something run for each of these nodes when its wait is over.

    A sleep is a task that is due later and does nothing, so it holds no slot (P-08).
    """
    turn.set_times(lanes)
    enqueue(turn, "wake", lanes, **internal(f"{_HERE}.wake"), **_AT_ITS_TIME)


def happened(turn: Turn, ends: Sequence[tuple[Settled, str | None]]) -> list[Settled]:
    """These events have come, each with the JSON text of its payload."""
    return _complete(turn, [(end, f'{{"ok":{payload or "null"}}}') for end, payload in ends])


def _complete(turn: Turn, ended: Sequence[tuple[Settled, str]]) -> list[Settled]:
    """End nodes with these results, as JSON texts; return them."""
    return turn.end(Ending(end, text) for end, text in ended)


def _fail(turn: Turn, failed: Sequence[tuple[Settled, tuple[str, str, Any]]]) -> list[Settled]:
    """End nodes with these errors: a code, a message and data of each; return them."""
    return turn.end(Ending(end, dumps(err(*error)), error[0]) for end, error in failed)


# Maps: a node for each item.

#: What of a map's row says how its items are to be.
_MAP: Final = ("node_id", "kwargs", "param", "args_from", "values_from", "ctx_from", *CALL_COLUMNS)


def _expand(turn: Turn, maps: Sequence[Node]) -> list[Settled]:
    """Make a node of each item of what maps go over (P-07); a map over nothing has ended."""
    unwanted, empty, bad = list[Settled](), list[Settled](), list[Settled]()
    full: list[tuple[Node, Sequence[Any]]] = []
    for node in maps:
        text, is_unwanted = turn.results[node.workflow_id, node.over_index or 0]
        items = json.loads(text or "{}").get("ok")
        if is_unwanted:  # then so is what goes over it: that is no failure
            unwanted.append(node.settled(WorkflowTaskStatus.SKIPPED, is_neutral=True))
        elif not isinstance(items, list):
            bad.append(node.settled(WorkflowTaskStatus.FAILED))
        elif items:
            full.append((node, items))
        else:
            empty.append(node.settled(WorkflowTaskStatus.COMPLETED))
    message = "What it goes over was skipped by its condition."
    result = dumps(err(WorkflowCode.CONDITION_NOT_MET, message))
    turn.end(Ending(end, result, WorkflowCode.CONDITION_NOT_MET) for end in unwanted)
    _make_items(turn, full)
    no_list = (WorkflowCode.MAP_NOT_A_LIST, "The node that it goes over has given no list.", None)
    done = _complete(turn, [(end, '{"ok":[]}') for end in empty])
    return [*unwanted, *done, *_fail(turn, [(end, no_list) for end in bad])]


def _make_items(turn: Turn, maps: Sequence[tuple[Node, Sequence[Any]]]) -> None:
    """Make the items of these maps, each with its task."""
    if not maps:
        return
    nodes, database = turn.nodes, turn.database
    counts = {node.pk: len(items) for node, items in maps}
    flows = {node.workflow_id for node, _ in maps}.difference(turn.flows)
    found, unknown = turn.ask(
        turn.phrases.read(nodes.filter(among(database, counts)), "pk", *_MAP),
        turn.phrases.flows(flows) if flows else None,
    )
    turn.learn(unknown)
    columns_of = {key: dict(zip(_MAP, row, strict=True)) for key, *row in found}
    ids = iter(uuid7s(sum(counts.values())))
    rows: list[dict[str, Any]] = []
    more: Counter[UUID] = Counter()
    free, limited = dict[UUID, Lane](), dict[UUID, tuple[str | None, str | None]]()
    for node, items in maps:
        columns, flow = columns_of[node.pk], turn.flows[node.workflow_id]
        is_long = len(columns["node_id"]) > _LONGEST_NAME  # cut, it might be that of another one
        name = columns["node_id"]
        name = f"{name[:_LONGEST_NAME]}~{node.task_index}" if is_long else name
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
    enqueue_made(turn, free)
    limits.enqueue_made(turn, limited)
    new = FromMap({key: str(count) for key, count in more.items()}, models.IntegerField())
    Workflow.objects.using(database).filter(among(database, more)).update(
        node_count=F("node_count") + new, open_count=F("open_count") + new
    )
    open_deps = FromMap({key: str(count) for key, count in counts.items()}, models.IntegerField())
    lifecycle.START_NODE.apply(
        nodes.filter(among(database, counts)), started_at=Now(), open_deps=open_deps, ok_deps=0, failed_deps=0
    )


def collect(turn: Turn, maps: Sequence[Node]) -> list[Settled]:
    """All items of these maps have ended: end them, with the list of values, in order."""
    good = {(node.workflow_id, node.task_index): node for node in maps if not node.failed_deps}
    bad = {(node.workflow_id, node.task_index): node for node in maps if node.failed_deps}
    ask = turn.phrases
    results, states = turn.ask(ask.item_results(good) if good else None, ask.item_states(bad) if bad else None)
    values: dict[Place, list[Any]] = {place: [] for place in good}
    for workflow_id, index, text in results:
        values[workflow_id, index].append(json.loads(text or "{}").get("ok"))
    found: dict[Place, list[str]] = {place: [] for place in bad}
    for workflow_id, index, status in states:
        found[workflow_id, index].append(status)
    done = [(good[place].settled(WorkflowTaskStatus.COMPLETED), dumps({"ok": each})) for place, each in values.items()]
    failed = [
        (bad[place].settled(WorkflowTaskStatus.FAILED), _error_of(bad[place], each)) for place, each in found.items()
    ]
    return [*_complete(turn, done), *_fail(turn, failed)]


def _error_of(node: Node, states: Sequence[str]) -> tuple[str, str, Any]:
    message = f"{node.failed_deps:,} of {node.failed_deps + node.ok_deps:,} items did not complete."
    failed = [place for place, status in enumerate(states) if status != WorkflowTaskStatus.COMPLETED]
    return WorkflowCode.MAP_ITEM_FAILED, message, {"ok": node.ok_deps, "failed": failed[:_MOST_NAMED]}


def waiting_for(nodes: NodeRows, workflow_id: UUID, event_name: str) -> list[Settled]:
    """The nodes of a workflow that wait for an event."""
    rows = nodes.filter(
        workflow=workflow_id, kind=NodeKind.EVENT, event_name=event_name, status=WorkflowTaskStatus.RUNNING
    )
    return [
        Settled(pk, workflow_id, index, WorkflowTaskStatus.COMPLETED, dependents, map_index)
        for pk, index, dependents, map_index in rows.values_list("pk", "task_index", "dependents", "map_index")
    ]
