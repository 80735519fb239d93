"""Reasons for a workflow node that has not started."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...core.numbers import fill_numbers
from ...core.workflow_status import NodeKind, WorkflowStatus, WorkflowTaskStatus
from ...models import Task, WorkflowTask
from .reason import MAX_RELATED, Reason, ReasonCode, RelatedRow, database_of, paused_workflow


def node_reasons(node: WorkflowTask) -> Iterator[Reason]:
    """Yield what the node waits for."""
    if WorkflowTaskStatus(node.status).is_terminal:
        return
    has_not_begun = node.status in (WorkflowTaskStatus.PENDING, WorkflowTaskStatus.READY)
    if has_not_begun and node.workflow.status == WorkflowStatus.PAUSED:
        yield paused_workflow(node.workflow)
    if has_not_begun and (node.open_deps or node.open_ctx):
        yield _waits_for_nodes(node)
    elif node.kind == NodeKind.EVENT:
        yield Reason(ReasonCode.WAITS_FOR_EVENT, _("It is waiting for the event %s.") % node.event_name)
    elif node.kind == NodeKind.SLEEP:
        yield Reason(ReasonCode.SLEEPS, _("It is sleeping."), _wakes_at(node))


def _waits_for_nodes(node: WorkflowTask) -> Reason:
    sources = {*node.waits_for, *(node.ctx_from or ())}
    nodes = WorkflowTask.objects.using(database_of(node)).filter(
        workflow=node.workflow_id, task_index__in=sources, completed_at__isnull=True
    )
    count = max(node.open_deps, node.open_ctx)
    words = fill_numbers(ngettext("It is waiting for %d node.", "It is waiting for %d nodes.", count), count)
    waited_for = nodes.order_by("task_index").only("pk", "node_id")[:MAX_RELATED]
    about = tuple(RelatedRow(WorkflowTask, other.pk, other.node_id) for other in waited_for)
    return Reason(ReasonCode.WAITS_FOR_NODES, words, about=about)


def _wakes_at(node: WorkflowTask) -> datetime | None:
    """Return when the task of a sleep node is due."""
    tasks = Task.objects.using(database_of(node)).filter(pk=node.task_id) if node.task_id else Task.objects.none()
    return tasks.values_list("enqueued_at", flat=True).first()
