"""Starts workflows: inserts a run, unless there is one with the same id or unique key."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import IntegrityError, transaction

from ..core import headers
from ..core.backends import config_of
from ..core.current_task import is_dry_run
from ..core.exceptions import PayloadMismatch
from ..core.ids import uuid7
from ..core.middleware import TaskSend, around_send
from ..core.options import Options
from ..core.workflow_status import WorkflowStatus
from ..db.now import Now
from ..models import Workflow, WorkflowTask
from . import lifecycle
from .compile import Blueprint
from .engine.advance import Engine
from .engine.enqueue_nodes import create_limits_after_commit, insert_nodes

#: Maximum tries to find the conflicting workflow, which may end in between.
_TRIES = 3


class Insertion(NamedTuple):
    """A workflow, and whether it was inserted now."""

    workflow: Workflow
    is_new: bool


def start(
    blueprint: Blueprint,
    workflow_id: UUID | None,
    schedule_id: int | None = None,
    scheduled_for: datetime | None = None,
) -> tuple[UUID, bool]:
    """Insert a workflow in the current transaction; ``scheduled_for`` goes into the headers of its nodes.

    Returns its id and whether it is new: if there is one with this ``workflow_id``, or a live one with its
    ``unique_key``, it returns that. Raises PayloadMismatch if that has another name, the errors of
    :func:`headers.collect`, and ValueError if a node's metadata has a key that is reserved for middleware.
    """
    key = workflow_id or uuid7()
    if is_dry_run():
        return key, True
    options = config_of(blueprint.columns["backend"])
    send = TaskSend(workflow_name=blueprint.columns["name"], queue_name=blueprint.columns["queue_name"])
    with around_send(options, send):
        workflow, is_new = _start(options, blueprint, key, scheduled_for)
        if is_new and schedule_id is not None:
            Workflow.objects.using(options.database).filter(pk=workflow.pk).update(schedule_id=schedule_id)
        send.id, send.count, send.is_new = workflow.pk, len(blueprint.nodes), is_new
    return workflow.pk, is_new


def _start(options: Options, blueprint: Blueprint, key: UUID, scheduled_for: datetime | None) -> Insertion:
    name, sent_headers = blueprint.columns["name"], headers.collect(options) if options.middleware else {}
    for node in blueprint.nodes if options.middleware else ():
        try:
            headers.check_reserved(options, node.get("metadata"), sent_headers)
        except ValueError as error:
            error.add_note(f"node {node['node_id']!r} of workflow {name!r} could not be started")
            raise
    sent_headers = {**sent_headers, **headers.of_slot(scheduled_for)}
    insertion = insert_or_get(options.database, blueprint, key, sent_headers=sent_headers)
    workflow = insertion.workflow
    if workflow.name != name:
        by = "this id" if workflow.pk == key else f"unique_key {blueprint.columns['unique_key']!r}"
        raise PayloadMismatch(workflow.pk, ["name"], f"a workflow {workflow.name!r} with {by}, which is")
    return insertion


def insert_or_get(
    database: str,
    blueprint: Blueprint,
    workflow_id: UUID,
    parent: WorkflowTask | None = None,
    sent_headers: Mapping[str, Any] | None = None,
) -> Insertion:
    """Insert a workflow, or return the one with this id, or the live one with its ``unique_key``.

    ``sent_headers`` go into the metadata of each node and override its own. For a subworkflow the caller holds the lock
    of the tree.
    """
    workflows, tries = Workflow.objects.using(database), _TRIES
    while True:
        try:
            with transaction.atomic(using=database):
                return Insertion(_insert(database, blueprint, workflow_id, parent, sent_headers), is_new=True)
        except IntegrityError:
            holders = workflows.holding_unique_key(blueprint.columns["unique_key"])
            workflow = workflows.filter(pk=workflow_id).first() or holders.first()
            if workflow is not None:
                return Insertion(workflow, is_new=False)
            # The other workflow ended between the two statements; any other error is raised after the last try.
            tries -= 1
            if not tries:
                raise


def _insert(
    database: str,
    blueprint: Blueprint,
    workflow_id: UUID,
    parent: WorkflowTask | None,
    sent_headers: Mapping[str, Any] | None,
) -> Workflow:
    """Insert a workflow and its nodes, and start those that wait for nothing. It starts PAUSED if its parent is."""
    above = None if parent is None else parent.workflow
    is_paused = above is not None and above.status == WorkflowStatus.PAUSED
    workflow = Workflow(
        id=workflow_id,
        **blueprint.columns,
        status=(lifecycle.START_PAUSED if is_paused else lifecycle.START_WORKFLOW).target,
        paused_at=Now() if is_paused else None,
        root_id=workflow_id if above is None else above.root_id,
        parent=parent,
        depth=0 if above is None else above.depth + 1,
        node_count=len(blueprint.nodes),
        open_count=len(blueprint.nodes),
        started_at=Now(),
    )
    workflow.save(using=database, force_insert=True)
    same = {"workflow_id": workflow_id, "status": lifecycle.ADD_NODE.target.value}
    nodes = [{**node, **same} for node in blueprint.nodes]
    for node in nodes if sent_headers else ():
        node["metadata"] = {**(node.get("metadata") or {}), **(sent_headers or {})}
    insert_nodes(database, nodes)
    create_limits_after_commit(database, nodes)
    engine = Engine.on(database)
    roots = engine.nodes.filter(workflow=workflow, waits_for=[])
    engine.advance([], list(roots.values_list("pk", flat=True)))
    return workflow
