"""Starts workflows: inserts a run, unless there is one with the same id or unique key."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import IntegrityError, transaction

from ..core import headers
from ..core.around_send import around_send
from ..core.backends import config_of
from ..core.dry_run import is_dry_run
from ..core.exceptions import PayloadMismatch
from ..core.ids import uuid7
from ..core.middleware import TaskSend
from ..core.options import Options
from ..models import Workflow, WorkflowTask
from .blueprint import WorkflowBlueprint
from .engine import start_workflow

#: Maximum tries to find the conflicting workflow, which may end in between.
_TRIES = 3


class Insertion(NamedTuple):
    """A workflow, and whether it was inserted now."""

    workflow: Workflow
    is_new: bool


class Started(NamedTuple):
    """The id of a workflow, and whether it was inserted now."""

    id: UUID
    is_new: bool


def start(
    blueprint: WorkflowBlueprint,
    workflow_id: UUID | None,
    schedule_id: int | None = None,
    scheduled_for: datetime | None = None,
) -> Started:
    """Insert a workflow in the current transaction; ``scheduled_for`` goes into the headers of its nodes.

    Returns the existing one with this ``workflow_id``, or the live one with its ``unique_key``, if there is one. Raises
    PayloadMismatch if that has another name, the errors of :func:`headers.collect`, and ValueError if a node's metadata
    has a key that is reserved for middleware.
    """
    key = workflow_id or uuid7()
    if is_dry_run():
        return Started(key, is_new=True)
    options = config_of(blueprint.backend)
    send = TaskSend(workflow_name=blueprint.name, queue_name=blueprint.queue_name)
    with around_send(options, send):
        started = _start(options, blueprint, key, schedule_id, scheduled_for)
        send.id, send.count, send.is_new = started.id, len(blueprint.nodes), started.is_new
    return started


def _start(
    options: Options,
    blueprint: WorkflowBlueprint,
    key: UUID,
    schedule_id: int | None,
    scheduled_for: datetime | None,
) -> Started:
    sent_headers = headers.collect(options) if options.middleware else {}
    for node in blueprint.nodes if options.middleware else ():
        try:
            headers.check_reserved(options, node.metadata, sent_headers)
        except ValueError as error:
            error.add_note(f"node {node.node_id!r} of workflow {blueprint.name!r} could not be started")
            raise
    sent_headers = {**sent_headers, **headers.of_slot(scheduled_for)}
    launched = insert_or_get(options.database, blueprint, key, headers=sent_headers)
    workflow = launched.workflow
    if workflow.name != blueprint.name:
        by = "this id" if workflow.pk == key else f"unique_key {blueprint.unique_key!r}"
        raise PayloadMismatch(workflow.pk, ["name"], f"a workflow {workflow.name!r} with {by}, which is")
    if launched.is_new and schedule_id is not None:
        Workflow.objects.using(options.database).filter(pk=workflow.pk).update(schedule_id=schedule_id)
    return Started(UUID(str(workflow.pk)), launched.is_new)


def insert_or_get(
    database: str,
    blueprint: WorkflowBlueprint,
    workflow_id: UUID,
    parent: WorkflowTask | None = None,
    headers: Mapping[str, Any] | None = None,
) -> Insertion:
    """Insert a workflow, or return the one with this id, or the live one with its ``unique_key``.

    ``headers`` go into the metadata of each node.
    """
    workflows, tries = Workflow.objects.using(database), _TRIES
    while True:
        try:
            with transaction.atomic(using=database):
                return Insertion(start_workflow.insert(database, blueprint, workflow_id, parent, headers), is_new=True)
        except IntegrityError:
            holders = workflows.holding_unique_key(blueprint.unique_key)
            workflow = workflows.filter(pk=workflow_id).first() or holders.first()
            if workflow is not None:
                return Insertion(workflow, is_new=False)
            # The other workflow ended between the two statements; any other error is raised after the last try.
            tries -= 1
            if not tries:
                raise
