"""The admin's actions on tasks."""

from __future__ import annotations

from functools import partial
from typing import Final

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from ...core.status import TASK_LIVE_STATES, TASK_RETRYABLE_STATES, TASK_TERMINAL_STATES, TaskStatus
from ...core.workflow_status import WorkflowStatus
from ...models import Task, WorkflowTask
from ...models.transitions import TaskQuerySet
from ...ops.inspector.actions import delete_ended
from ..actions.admin_action import AdminAction
from .move_form import MoveForm


def _can_retry(task: Task) -> bool:
    """Return whether it ended without success, and not as a node of a workflow that completed anyway."""
    if task.status not in TASK_RETRYABLE_STATES or task.workflow_id is None:
        return task.status in TASK_RETRYABLE_STATES
    nodes = WorkflowTask.objects.using(task._state.db).filter(task=task.pk)
    return not nodes.filter(workflow__status=WorkflowStatus.COMPLETED).exists()


def _cancelled(count: int) -> str:
    return ngettext("%d task cancelled.", "%d tasks cancelled.", count)


RETRY: Final = AdminAction(
    name="retry",
    label=_("Retry"),
    question=_("Retry %(rows)s?"),
    list_label=_("Retry selected tasks"),
    act=TaskQuerySet.retry,
    message=lambda count: ngettext("%d task re-queued.", "%d tasks re-queued.", count),
    has_button=_can_retry,
    statuses=TASK_RETRYABLE_STATES,
)

CANCEL: Final = AdminAction(
    name="cancel",
    label=_("Cancel task"),
    question=_("Cancel %(rows)s?"),
    list_label=_("Cancel selected tasks that have not started"),
    act=TaskQuerySet.cancel,
    message=_cancelled,
    statuses=TASK_LIVE_STATES - {TaskStatus.RUNNING},
)

CANCEL_RUNNING: Final = AdminAction(
    name="cancel_running",
    label=_("Cancel and stop"),
    question=_("Cancel and stop %(rows)s?"),
    list_label=_("Cancel, and stop if running"),
    act=partial(TaskQuerySet.cancel, include_running=True),
    message=_cancelled,
    has_button=lambda task: task.status == TaskStatus.RUNNING,
    statuses=TASK_LIVE_STATES,
    permission="cancel",
    warning=_(
        "Running tasks are asked to stop. What they have already done is not undone; their return values are discarded."
    ),
)

RUN_NOW: Final = AdminAction(
    name="run_now",
    label=_("Run now"),
    question=_("Run %(rows)s now?"),
    list_label=_("Run scheduled and retrying tasks now"),
    act=TaskQuerySet.run_now,
    message=lambda count: ngettext("%d task is now due.", "%d tasks are now due.", count),
    has_button=lambda task: task.status == TaskStatus.PENDING and task.deferred and not task.blocked,
    statuses=(TaskStatus.PENDING,),
    logged_columns=("enqueued_at",),
)

MOVE: Final = AdminAction(
    name="move",
    label=_("Move"),
    question=_("Move %(rows)s?"),
    list_label=_("Move pending tasks to another queue or priority"),
    act=TaskQuerySet.move,
    message=lambda count: ngettext("%d task moved.", "%d tasks moved.", count),
    statuses=(TaskStatus.PENDING,),
    logged_columns=("queue_name", "priority"),
    form=MoveForm,
)

DELETE: Final = AdminAction(
    name="delete",
    label=_("Delete"),
    question=_("Delete %(rows)s?"),
    list_label=_("Delete selected finished tasks"),
    act=delete_ended,
    message=lambda count: ngettext("%d task deleted.", "%d tasks deleted.", count),
    statuses=TASK_TERMINAL_STATES,
    warning=_(
        "Deleted tasks cannot be restored, nor can their results and attempts. Unfinished tasks, and tasks "
        "whose result an unfinished workflow still needs, are skipped."
    ),
)

#: In the order of the buttons.
TASK_ACTIONS: Final = (RETRY, RUN_NOW, MOVE, CANCEL, CANCEL_RUNNING, DELETE)
