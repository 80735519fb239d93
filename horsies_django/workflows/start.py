"""Launching: a run is inserted, unless there is one already that stands in its place."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import IntegrityError, transaction

from ..core import headers
from ..core.backends import config_of
from ..core.dry_run import is_dry
from ..core.exceptions import PayloadMismatch
from ..core.ids import uuid7
from ..models import Workflow, WorkflowTask
from .blueprint import WorkflowBlueprint
from .engine import start_workflow

#: Tries when what is in the way is gone at a second look.
_TRIES = 3


class Insertion(NamedTuple):
    """A run, and whether it was inserted now."""

    workflow: Workflow
    is_new: bool


class Started(NamedTuple):
    """The id of a run, and whether it was inserted now."""

    id: UUID
    is_new: bool


def start(
    blueprint: WorkflowBlueprint,
    workflow_id: UUID | None,
    schedule_id: int | None = None,
    scheduled_for: datetime | None = None,
) -> Started:
    """Insert a run in the current transaction; its nodes carry the slot of a schedule that it was ``scheduled_for``.

    The one that is there already under ``workflow_id`` (W-70), or a live one with its ``unique_key``, stands in for it.
    Raises PayloadMismatch if that has another name, what :func:`headers.added` raises, and ValueError if a node's
    metadata has a key that is reserved for middleware.
    """
    key = workflow_id or uuid7()
    if is_dry():
        return Started(key, is_new=True)
    options = config_of(blueprint.backend)
    travelling = headers.added(options) if options.middleware else {}
    for node in blueprint.nodes if options.middleware else ():
        try:
            headers.check_reserved(options, node.metadata, travelling)
        except ValueError as error:
            error.add_note(f"node {node.node_id!r} of workflow {blueprint.name!r} could not be started")
            raise
    travelling = {**travelling, **headers.of_slot(scheduled_for)}
    launched = insert_or_get(options.database, blueprint, key, headers=travelling)
    known = launched.workflow
    if known.name != blueprint.name:
        by = "this id" if known.pk == key else f"unique_key {blueprint.unique_key!r}"
        raise PayloadMismatch(known.pk, ["name"], f"a workflow {known.name!r} with {by}, which is")
    if launched.is_new and schedule_id is not None:
        Workflow.objects.using(options.database).filter(pk=known.pk).update(schedule_id=schedule_id)
    return Started(UUID(str(known.pk)), launched.is_new)


def insert_or_get(
    database: str,
    blueprint: WorkflowBlueprint,
    workflow_id: UUID,
    parent: WorkflowTask | None = None,
    headers: Mapping[str, Any] | None = None,
) -> Insertion:
    """Insert a run, or return the one with this id, or the live one that has its ``unique_key``.

    ``headers`` travel with each of its nodes.
    """
    workflows, tries = Workflow.objects.using(database), _TRIES
    while True:
        try:
            with transaction.atomic(using=database):
                return Insertion(start_workflow.insert(database, blueprint, workflow_id, parent, headers), is_new=True)
        except IntegrityError:
            known = workflows.filter(pk=workflow_id).first() or workflows.holding(blueprint.unique_key).first()
            if known is not None:
                return Insertion(known, is_new=False)
            # The holder ended between the two statements; or it is something else, which this raises in the end.
            tries -= 1
            if not tries:
                raise
