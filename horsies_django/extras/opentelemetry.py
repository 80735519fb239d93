"""OpenTelemetry: one trace from the send of a task to its body, with a span for the send and one for each attempt.

List :class:`OpenTelemetryMiddleware`, or a subclass with your :meth:`~OpenTelemetryMiddleware.set_up`, as the first
entry of OPTIONS["middleware"]. docs/tracing.md describes the spans.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar, Final

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections, transaction

try:
    from opentelemetry import context as otel_context
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImproperlyConfigured(f"{error}; install it with: pip install 'horsies-django[opentelemetry]'") from error

from ..core.current_task import current_run
from ..core.exceptions import Retry, reported_error
from ..core.middleware import AttemptOutcome, ContextMiddleware, TaskCall, TaskSend
from ..core.results import TaskError, TaskResult
from ..core.signals import runner_stopping
from ..core.version import __version__
from ..core.workflow_status import NodeKind, WorkflowTaskStatus
from ..models import Task, WorkflowTask
from ..steps.task_run import TaskRun

__all__ = ["OpenTelemetryMiddleware"]

logger = logging.getLogger("horsies_django.tracing")

#: The version of the semantic conventions that the names below are of.
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

_SYSTEM: Final = "messaging.system"
_OPERATION: Final = "messaging.operation.name"
_OPERATION_TYPE: Final = "messaging.operation.type"
_DESTINATION: Final = "messaging.destination.name"
_MESSAGE_ID: Final = "messaging.message.id"
_CONVERSATION_ID: Final = "messaging.message.conversation_id"
_MESSAGE_COUNT: Final = "messaging.batch.message_count"
_CLIENT_ID: Final = "messaging.client.id"
_ERROR_TYPE: Final = "error.type"

_TASK: Final = "horsies.task.name"
_ATTEMPT: Final = "horsies.task.attempt"
_MAX_ATTEMPTS: Final = "horsies.task.max_attempts"
_WORKFLOW_ID: Final = "horsies.workflow.id"
_WORKFLOW: Final = "horsies.workflow.name"
_OUTCOME: Final = "horsies.outcome"
_ERROR_CODE: Final = "horsies.error_code"
_DEDUPLICATED: Final = "horsies.deduplicated"

#: Milliseconds that a runner may take to export its last spans before it exits.
_FLUSH_TIMEOUT: Final = 3_000

#: The classes whose ``set_up`` has run, each with the process in which it has.
_ready: Final[set[tuple[type, int]]] = set()
_lock: Final = threading.Lock()


#: The key of the metadata with the context of a node's span, as W3C's ``traceparent``.
SPAN_KEY: Final = "horsies.span"

#: The attribute with the id of a node, of spans and of links.
NODE_ID: Final = "horsies.workflow.node"

#: Maximum links of a span: SDKs keep no more by default.
MAX_LINKS: Final = 128

_HAS_RUN: Final = (WorkflowTaskStatus.COMPLETED, WorkflowTaskStatus.FAILED)

_propagator: Final = TraceContextTextMapPropagator()


class OpenTelemetryMiddleware(ContextMiddleware):
    """Traces sends and bodies with the tracer provider of the process; without one, it passes on the sender's context.

    The span of an attempt is a child of the span of the send. In a workflow, the span of a node also has links to the
    spans of the nodes that it waited for, unless ``links_nodes`` is False.
    """

    reserved_headers = ("traceparent", "tracestate", "baggage", SPAN_KEY)
    #: Links cost a node one to three queries, and an UPDATE if other nodes wait for it.
    links_nodes: ClassVar[bool] = True

    @classmethod
    def set_up(cls) -> None:
        """Override it to create the tracer provider. Called once in each process, before its first span.

        A runner is forked from a process without threads, so a provider that starts one must not be created earlier.
        """

    def __call__(self, call: TaskCall) -> Any:
        """Run the wrapped callable inside the span of an attempt."""
        if iscoroutinefunction(self):
            return self._around(call)
        with self.within(call) as span:
            if self._is_linked(span, call):
                _link_nodes(span, call, current_run.get())
            return _returned(span, call, self._run(call))

    async def _around(self, call: TaskCall) -> Any:
        with self.within(call) as span:
            if self._is_linked(span, call):
                await sync_to_async(_link_nodes)(span, call, current_run.get())
            return _returned(span, call, await self._run(call))

    def _is_linked(self, span: Span, call: TaskCall) -> bool:
        return self.links_nodes and call.workflow_id is not None and span.is_recording()

    @contextmanager
    def within(self, call: TaskCall) -> Iterator[Span]:
        """Start the span of an attempt, and make it the current one."""
        parent, links = _parent_of(call)
        span = self._tracer().start_span(
            f"process {call.queue_name}", parent, SpanKind.CONSUMER, _attempt_attributes(call), links
        )
        token = otel_context.attach(trace.set_span_in_context(span, parent))
        try:
            yield span
        except BaseException as error:
            _record_error(span, call, error)
            raise
        finally:
            otel_context.detach(token)
            span.end()

    @staticmethod
    def headers() -> Mapping[str, Any]:
        """Return the current context, as the global propagator writes it."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return carrier

    @classmethod
    @contextmanager
    def around_send(cls, send: TaskSend) -> Iterator[None]:
        """Start the span of a send, and make it the current one, so that the headers have its context."""
        operation, target = ("send", send.queue_name) if send.task_name else ("start_workflow", send.workflow_name)
        attributes = {_SYSTEM: "horsies", _OPERATION: operation, _OPERATION_TYPE: "send"}
        named = {_DESTINATION: send.queue_name, _TASK: send.task_name, _WORKFLOW: send.workflow_name}
        attributes |= {key: value for key, value in named.items() if value is not None}
        with cls._tracer().start_as_current_span(
            f"{operation} {target}", kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            try:
                yield
            except Exception as error:
                span.set_attribute(_ERROR_TYPE, _class_of(error))
                raise
            span.set_attributes(_sent_attributes(send))

    @classmethod
    def _tracer(cls) -> Tracer:
        key = cls, os.getpid()
        if key not in _ready:
            with _lock:
                if key not in _ready:
                    cls.set_up()
                    runner_stopping.connect(_flush, dispatch_uid=f"{__name__}._flush")
                    _ready.add(key)
        return _tracer_of(trace.get_tracer_provider())


@functools.lru_cache(maxsize=8)
def _tracer_of(provider: TracerProvider) -> Tracer:
    return trace.get_tracer("horsies_django", __version__, provider, SCHEMA_URL)


def _flush(**_: object) -> None:
    """Export the spans that have not been yet: a runner exits without the functions of ``atexit``."""
    if (flush := getattr(trace.get_tracer_provider(), "force_flush", None)) is not None:
        flush(_FLUSH_TIMEOUT)


def _parent_of(call: TaskCall) -> tuple[Context, list[Link]]:
    """Return the context of the sender; with a link to the current span, if there is one.

    Without one from the sender, the current context is the parent: a drain may run inside a request or a test.
    """
    sent = propagate.extract({key: value for key, value in call.metadata.items() if isinstance(value, str)})
    if not trace.get_current_span(sent).get_span_context().is_valid:
        return otel_context.get_current(), []
    current = trace.get_current_span().get_span_context()
    return sent, [Link(current)] if current.is_valid else []


def _attempt_attributes(call: TaskCall) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        _SYSTEM: "horsies",
        _OPERATION: "process",
        _OPERATION_TYPE: "process",
        _DESTINATION: call.queue_name,
        _MESSAGE_ID: str(call.id),
        _TASK: call.task_name,
        _ATTEMPT: call.attempt,
        _MAX_ATTEMPTS: call.max_attempts,
    }
    if call.workflow_id is not None:
        attributes |= dict.fromkeys((_CONVERSATION_ID, _WORKFLOW_ID), str(call.workflow_id))
    if (run := current_run.get()) is not None:
        attributes[_CLIENT_ID] = run.runner.worker_id
    return attributes


def _sent_attributes(send: TaskSend) -> dict[str, Any]:
    attributes: dict[str, Any] = {} if send.is_new else {_DEDUPLICATED: True}
    if send.workflow_name is not None:
        return {**attributes, **dict.fromkeys((_CONVERSATION_ID, _WORKFLOW_ID), str(send.id))}
    if send.is_many:
        return {**attributes, _MESSAGE_COUNT: send.count or 0}
    return {**attributes, _MESSAGE_ID: str(send.id)}


def _returned(span: Span, call: TaskCall, value: Any) -> Any:
    """Record the outcome of a returned value, and return it."""
    if isinstance(value, TaskResult) and isinstance(value.err, TaskError):
        outcome, code = call.outcome_of(value.err)
        span.set_attributes({_OUTCOME: outcome.value, _ERROR_CODE: code, _ERROR_TYPE: code})
        span.set_status(Status(StatusCode.ERROR, str(value.err.message)))
    else:
        span.set_attribute(_OUTCOME, AttemptOutcome.COMPLETED.value)
    return value


def _record_error(span: Span, call: TaskCall, error: BaseException) -> None:
    """Record the outcome of an exception. It is an error unless the body asked for that end, or was cancelled."""
    outcome, code = call.outcome_of(error)
    span.set_attribute(_OUTCOME, outcome.value)
    if code:
        span.set_attribute(_ERROR_CODE, code)
    is_wanted = outcome is AttemptOutcome.RETRYING and isinstance(error, Retry)
    if is_wanted or outcome not in (AttemptOutcome.FAILED, AttemptOutcome.RETRYING):
        return
    error = reported_error(error)
    span.set_attribute(_ERROR_TYPE, _class_of(error))
    try:
        description = f"{type(error).__name__}: {error}"
        span.record_exception(error, escaped=True)
    except Exception as unprintable:  # noqa: BLE001  # the exception's own __str__ may fail
        description = f"{type(error).__name__} that can't be printed: {type(unprintable).__name__}"
    span.set_status(Status(StatusCode.ERROR, description))


def _class_of(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# Links between the spans of a workflow's nodes: a node that others wait for stores the context of its span in the
# metadata of its task, guarded by its claim. A node that starts reads those of the nodes that it waited for.


def _link_nodes(span: Span, call: TaskCall, run: TaskRun | None) -> None:
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
    rows = list(waited_for.filter(status__in=_HAS_RUN).order_by("task_index").values_list(*columns))
    maps = [index for *_, index, kind in rows if kind == NodeKind.MAP]
    if maps and with_items:
        items = nodes.filter(map_index__in=maps, status__in=_HAS_RUN).order_by("task_index")
        rows += items.values_list(*columns)[:MAX_LINKS]
    ids = {task_id: node_id for task_id, node_id, *_ in rows[:MAX_LINKS] if task_id is not None}
    stored = Task.objects.using(database).filter(pk__in=ids).values_list("pk", "metadata")
    contexts = {pk: metadata.get(SPAN_KEY) for pk, metadata in stored if isinstance(metadata, dict)}
    return [(ids[pk], context) for pk, context in contexts.items() if isinstance(context, str)]
