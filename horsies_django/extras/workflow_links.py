"""Links between the spans of a workflow's nodes.

A node that others wait for stores the context of its span in the metadata of its task, guarded by its claim. A node
that starts reads those of the nodes that it waited for.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Any, Final

from django.db import Error, connections, transaction
from opentelemetry import trace
from opentelemetry.trace import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ..core.middleware import TaskCall
from ..core.workflow_status import NodeKind, WorkflowTaskStatus
from ..enqueue.task_run import TaskRun
from ..models import Task, WorkflowTask

logger = logging.getLogger("horsies_django.tracing")

#: The key of the metadata with the context of a node's span, as W3C's ``traceparent``.
SPAN_KEY: Final = "horsies.span"

#: The attribute with the id of a node, of spans and of links.
NODE_ID: Final = "horsies.workflow.node"

#: Maximum links of a span: SDKs keep no more by default.
MAX_LINKS: Final = 128

_HAS_RUN: Final = (WorkflowTaskStatus.COMPLETED, WorkflowTaskStatus.FAILED)

_propagator: Final = TraceContextTextMapPropagator()


def link(span: Span, call: TaskCall, run: TaskRun | None) -> None:
    """Link the span of a node to those of the nodes that it waited for, and store its own if others wait for it.

    An error of the database is logged: the node runs without links.
    """
    if run is None:
        return
    in_atomic = connections[run.database].in_atomic_block
    try:
        with transaction.atomic(using=run.database) if in_atomic else nullcontext():
            _link(span, call, run)
    except Error as error:
        logger.warning("span of node not linked id=%s error=%s", call.id, error)


def _link(span: Span, call: TaskCall, run: TaskRun) -> None:
    nodes = WorkflowTask.objects.using(run.database)
    columns = ("workflow_id", "node_id", "waits_for", "dependents", "map_index", "workflow__is_batch")
    node: dict[str, Any] | None = nodes.filter(task_id=call.id).values(*columns).first()
    if node is None:
        return
    span.set_attribute(NODE_ID, node["node_id"])
    if node["workflow__is_batch"]:  # its calls may be millions, and wait for nothing
        return
    is_item = node["map_index"] is not None
    if is_item:  # an item waits for what its map waits for
        of_map = nodes.filter(workflow_id=node["workflow_id"], task_index=node["map_index"])
        node |= of_map.values("waits_for", "dependents").get()
    for node_id, traceparent in _sources(run.database, node, with_items=not is_item):
        context = _propagator.extract({"traceparent": traceparent})
        span.add_link(trace.get_current_span(context).get_span_context(), {NODE_ID: node_id})
    if node["dependents"]:
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, trace.set_span_in_context(span))
        run.store_columns(metadata={**call.metadata, SPAN_KEY: carrier["traceparent"]})


def _sources(database: str, node: dict[str, Any], *, with_items: bool) -> list[tuple[str, str]]:
    """Return the ids and the stored contexts of the nodes that this one waited for; of a map, those of its items."""
    if not node["waits_for"]:
        return []
    nodes = WorkflowTask.objects.using(database).filter(workflow_id=node["workflow_id"])
    waited_for = nodes.filter(task_index__in=node["waits_for"][:MAX_LINKS])
    columns = ("task_id", "node_id", "task_index", "kind")
    found = list(waited_for.filter(status__in=_HAS_RUN).order_by("task_index").values_list(*columns))
    maps = [index for *_, index, kind in found if kind == NodeKind.MAP]
    if maps and with_items:
        items = nodes.filter(map_index__in=maps, status__in=_HAS_RUN).order_by("task_index")
        found += items.values_list(*columns)[:MAX_LINKS]
    ids = {task_id: node_id for task_id, node_id, *_ in found[:MAX_LINKS] if task_id is not None}
    stored = Task.objects.using(database).filter(pk__in=ids).values_list("pk", "metadata")
    contexts = {pk: metadata.get(SPAN_KEY) for pk, metadata in stored if isinstance(metadata, dict)}
    return [(ids[pk], context) for pk, context in contexts.items() if isinstance(context, str)]
