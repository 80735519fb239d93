"""The admin's actions on tasks, and the form that moves them."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from django import forms
from django.db.models import QuerySet
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...core.compat import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY, task_backends
from ...core.status import TASK_LIVE_STATES, TASK_RETRYABLE_STATES, TASK_TERMINAL_STATES, TaskStatus
from ...core.workflow_status import WorkflowStatus
from ...models import Task, WorkflowTask
from ...models.claims import EVENT_NAME_LENGTH, EVENT_WAIT
from ...models.transitions import TaskQuerySet
from ..actions.admin_action import AdminAction
from ..workflows.workflow_actions import EventAction, EventForm

#: Maximum tasks whose events are suggested.
MAX_SUGGESTED: Final = 100


class MoveForm(forms.Form):
    """Sets another queue, priority, or both. For one task it shows the current values and applies only what was edited.

    The form posts the values that it showed, so a concurrent change to a field that was not edited is kept.
    """

    queue_name = forms.CharField(label=_("Queue"), max_length=100, required=False, show_hidden_initial=True)
    priority = forms.IntegerField(
        label=_("Priority"),
        min_value=TASK_MIN_PRIORITY,
        max_value=TASK_MAX_PRIORITY,
        required=False,
        show_hidden_initial=True,
        help_text=_("From −100 to 100; higher runs first. Empty: unchanged."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._queues = _known_queues()
        if self._queues is None:
            self.fields["queue_name"].help_text = _("Empty: unchanged.")
        else:
            self._set_choices([("", _("unchanged")), *((name, name) for name in self._queues)])

    def _set_choices(self, choices: list[tuple[str, Any]]) -> None:
        self.fields["queue_name"].widget = forms.Select(choices=choices)

    def show_current(self, tasks: QuerySet[Any]) -> None:
        """Start with the task's current values if there is exactly one task."""
        current = list(tasks.order_by().values("queue_name", "priority")[:2])
        if len(current) != 1:
            return
        self.initial = current[0]
        if self._queues is not None:
            names = sorted({self.initial["queue_name"], *self._queues})  # its queue may be unconfigured
            self._set_choices([(name, name) for name in names])

    def clean_queue_name(self) -> str | None:
        """Raise ValidationError for a queue that no backend has."""
        name: str = self.cleaned_data["queue_name"]
        if name and self._queues is not None and name not in self._queues and "queue_name" in self.changed_data:
            allowed = ", ".join(self._queues)
            raise forms.ValidationError(
                _("No backend has the queue %(name)s; allowed: %(known)s."), params={"name": name, "known": allowed}
            )
        return name or None

    def clean(self) -> dict[str, Any]:
        """Require a change of queue or priority."""
        changed = set(self.changed_data)
        values = {name: self.cleaned_data.get(name) if name in changed else None for name in self.fields}
        if not self.errors and values["queue_name"] is None and values["priority"] is None:
            raise forms.ValidationError(_("Select another queue, enter another priority, or both."))
        return values


class TaskEventForm(EventForm):
    """The name and payload of an event for tasks; it starts with the name that they wait for."""

    limit = EVENT_NAME_LENGTH

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["payload"].help_text = _('JSON, e.g. {"ok": true} or "yes". context.wait_event() returns it.')

    def show_current(self, tasks: QuerySet[Any]) -> None:
        """Suggest the events that some of the tasks wait for."""
        waits = tasks.order_by().filter(waits_for__startswith=EVENT_WAIT).values_list("waits_for", flat=True)
        self.suggest(sorted({name.removeprefix(EVENT_WAIT) for name in waits[:MAX_SUGGESTED]}))
        self.fields["name"].help_text = ""


class TaskEventAction(EventAction):
    """Sends an event to tasks."""

    def skipped_reason(self, rows: QuerySet[Any]) -> str:
        """Say which tasks get no event."""
        ended = gettext("A task that has ended, or that has 1,000 events to read, gets none.")
        return super().skipped_reason(rows) or ended


def _send_event(tasks: TaskQuerySet, name: str, payload: Any) -> int:
    from ...ops.inspector.actions import send_event

    return send_event(tasks, name, payload)


def _known_queues() -> list[str] | None:
    """Return the queues in the settings; None if a backend accepts any queue."""
    named = [set(task_backends[alias].queues) for alias in task_backends]
    return sorted(set().union(*named)) if all(named) else None


def _can_retry(task: Task) -> bool:
    """Return whether it ended without success, and not as a node of a workflow that completed anyway."""
    if task.status not in TASK_RETRYABLE_STATES or task.workflow_id is None:
        return task.status in TASK_RETRYABLE_STATES
    nodes = WorkflowTask.objects.using(task._state.db).filter(task=task.pk)
    return not nodes.filter(workflow__status=WorkflowStatus.COMPLETED).exists()


def _cancelled(count: int) -> str:
    return ngettext("%d task cancelled.", "%d tasks cancelled.", count)


def _delete(tasks: TaskQuerySet) -> int:
    from ...ops.inspector.actions import delete_ended

    return delete_ended(tasks)


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
    has_button=lambda task: (
        task.status == TaskStatus.PENDING and task.deferred and not task.blocked and task.waits_for is None
    ),
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

SEND_EVENT: Final = TaskEventAction(
    name="send_event",
    label=_("Send event"),
    question=_("Send an event to %(rows)s?"),
    list_label=_("Send an event to selected tasks"),
    act=_send_event,
    message=lambda count: ngettext("Event sent to %d task.", "Event sent to %d tasks.", count),
    has_button=lambda task: task.waits_for is not None and task.waits_for.startswith(EVENT_WAIT),
    statuses=TASK_LIVE_STATES,
    logged_columns=(),
    form=TaskEventForm,
)

DELETE: Final = AdminAction(
    name="delete",
    label=_("Delete"),
    question=_("Delete %(rows)s?"),
    list_label=_("Delete selected finished tasks"),
    act=_delete,
    message=lambda count: ngettext("%d task deleted.", "%d tasks deleted.", count),
    statuses=TASK_TERMINAL_STATES,
    warning=_(
        "Deleted tasks cannot be restored, nor can their results and attempts. Unfinished tasks, and tasks "
        "whose result an unfinished workflow still needs, are skipped."
    ),
)

#: In the order of the buttons.
TASK_ACTIONS: Final = (RETRY, SEND_EVENT, RUN_NOW, MOVE, CANCEL, CANCEL_RUNNING, DELETE)
