"""Operations on one workflow, each under its lock, in the caller's transaction or one of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db import connections, transaction
from django.db.models import Q

from ..core.backends import config_of
from ..core.serialization import check_size, dumps, encode
from ..core.workflow_status import WORKFLOW_TERMINAL_STATES
from ..db.errors import is_row_error
from ..db.expressions import where_in
from ..models import Task, Workflow, WorkflowEvent, WorkflowTask
from .engine import cancel_pause, resume_workflow, retry_nodes, start_nodes
from .engine.advance import Engine
from .engine.rows import IN_PROGRESS

logger = logging.getLogger("horsies_django.workflows")


@contextmanager
def locked(database: str, key: UUID) -> Iterator[Workflow | None]:
    """Lock the tree of a workflow and yield its row; None if there is no such workflow."""
    workflows = Workflow.objects.using(database)
    with transaction.atomic(using=database):
        root = workflows.filter(pk=key).values_list("root_id", flat=True).first()
        if root is not None and connections[database].vendor == "sqlite":
            workflows.filter(pk=root).update(root_id=root)  # a reader can't become the writer later
        yield workflows.filter(pk=key).first() if root is not None and workflows.lock([root]) else None


def pause(database: str, key: UUID) -> bool:
    """RUNNING → PAUSED, with all below it; return whether it was running."""
    with locked(database, key):
        engine = Engine.on(database)
        paused = cancel_pause.pause(engine, [key])
        engine.flush()
        engine.advance_expired()
        return key in paused


def resume(database: str, key: UUID) -> bool:
    """PAUSED → RUNNING; return False if it was not paused, or its parent does not run."""
    with locked(database, key) as workflow:
        return workflow is not None and resume_workflow.resume(database, workflow)


def cancel(database: str, key: UUID, *, include_running: bool = False) -> bool:
    """Cancel a workflow and all below it, while running tasks come to their end. Return whether it was live.

    ``include_running`` cancels running tasks too, also those of a workflow that was cancelled before or has expired.
    """
    with locked(database, key) as workflow:
        if workflow is None:
            return False
        is_live = workflow.status not in WORKFLOW_TERMINAL_STATES
        if is_live:
            engine = Engine.on(database)
            engine.advance(cancel_pause.cancel(engine, [key]))
            # Those without an open node too.
            engine.complete_workflows(cancel_pause.subtree_statuses(database, [key]))
        return (include_running and _stop_bodies(database, key)) or is_live


def _stop_bodies(database: str, key: UUID) -> bool:
    """Cancel the started tasks of a workflow and of all below it; return whether there were any."""
    nodes = WorkflowTask.objects.using(database).filter(
        workflow__in=cancel_pause.subtree_statuses(database, [key]), status__in=IN_PROGRESS, task__isnull=False
    )
    tasks = list(nodes.values_list("task_id", flat=True))
    return Task.objects.using(database).filter(where_in(database, tasks)).cancel(include_running=True) > 0


def retry(database: str, key: UUID, which: Q | None = None) -> int:
    """Retry failed and skipped nodes of a workflow, all or ``which``; return how many run again.

    None does if the rows are damaged, which is logged, so that other workflows are still retried.
    """
    try:
        with locked(database, key):
            return retry_nodes.retry(database, key, which)
    except Exception as error:
        if not is_row_error(error):
            raise
        logger.exception("workflow can't be retried id=%s: its rows are damaged", key)
        return 0


def send_event(database: str, key: UUID, name: str, payload: Any) -> bool:
    """Complete the nodes that wait for an event, and keep it for later ones; return whether the workflow was live.

    Raises InvalidTask if the workflow's backend is no longer in the settings, which say how payloads are stored.
    """
    with locked(database, key) as workflow:
        if workflow is None or workflow.status in WORKFLOW_TERMINAL_STATES:
            return False
        options = config_of(workflow.backend)
        payload = encode(payload, typed=options.serializer == "rich", where=f"the payload of event {name!r}")
        text = dumps(payload)
        check_size(text, options.max_payload_bytes, f"the payload of event {name!r}")
        WorkflowEvent.objects.using(database).update_or_create(
            workflow=workflow, name=name, defaults={"payload": payload}
        )
        engine = Engine.on(database)
        ends = start_nodes.nodes_waiting_for(engine.nodes, key, name)
        timers = engine.nodes.filter(pk__in=[end.pk for end in ends], task_id__isnull=False)
        timer_ids = list(timers.values_list("task_id", flat=True))
        engine.advance(start_nodes.complete_events(engine, [(end, text) for end in ends]))
        tasks = Task.objects.using(database)
        free = tasks.filter(pk__in=timer_ids).lock().values_list("pk", flat=True)
        tasks.filter(pk__in=list(free)).cancel_for_workflow()
        return True
