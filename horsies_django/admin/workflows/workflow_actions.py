"""The admin's actions on workflows. Each calls a function of :mod:`horsies_django.workflows.control`.

They import it when they are used, because it imports the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from django import forms
from django.db.models import Q, QuerySet
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...core.compat import InvalidTask, task_backends
from ...core.numbers import format_number
from ...core.serialization import check_size, clean_text, dumps, encode
from ...core.workflow_status import WORKFLOW_TERMINAL_STATES, WorkflowStatus
from ...enqueue.backend import HorsiesBackend
from ...enqueue.nodes import EVENT_NAME_LENGTH
from ...models import Workflow, WorkflowTask
from ..actions.admin_action import AdminAction, all_rows
from ..form_fields import JSONPayloadField, SuggestionInput


class EventForm(forms.Form):
    """The name and payload of an event, as in ``handle.send_event()``."""

    limit: ClassVar[int] = EVENT_NAME_LENGTH

    name = forms.CharField(label=_("Event"), widget=SuggestionInput(attrs={"class": "vTextField"}))
    payload = JSONPayloadField(
        label=_("Payload"),
        required=False,
        help_text=_('JSON, e.g. {"ok": true} or "yes". It becomes the value of the nodes that wait for the event.'),
        widget=forms.Textarea(attrs={"class": "vLargeTextField", "rows": 5, "spellcheck": "false"}),
        error_messages={"invalid": _("This is not valid JSON. A string needs double quotes.")},
    )

    def suggest(self, names: Sequence[str]) -> None:
        """Suggest these names, with the first as initial value."""
        widget: Any = self.fields["name"].widget
        widget.suggestions = names
        if names:
            self.fields["name"].initial = names[0]
            self.fields["name"].help_text = _("Its nodes wait for: %(names)s.") % {"names": ", ".join(names)}

    def clean_name(self) -> str:
        """Accept the names that ``send_event()`` accepts."""
        name: str = self.cleaned_data["name"]
        if len(name) > self.limit or name != clean_text(name):
            message = _("%(name)r is not an event name; allowed: a text of 1 to %(limit)d characters.")
            raise forms.ValidationError(message, params={"name": name, "limit": self.limit})
        return name

    def clean_payload(self) -> Any:
        """Accept payloads that every horsies backend can store."""
        payload = self.cleaned_data["payload"]
        backends = (task_backends[alias] for alias in task_backends)
        limits = [backend.config.max_payload_bytes for backend in backends if isinstance(backend, HorsiesBackend)]
        try:
            encoded = encode(payload, typed=False, where="the payload")
            check_size(dumps(encoded), min(filter(None, limits), default=None), "the payload")
        except (TypeError, ValueError, RecursionError) as error:
            raise forms.ValidationError(str(error)) from error
        return encoded


class EventAction(AdminAction):
    """Sends an event; the log entry names it."""

    def log_label(self, values: dict[str, Any]) -> str:
        """See :meth:`AdminAction.log_label`."""
        return f"{self.label}: {values['name']}"

    def skipped_reason(self, rows: QuerySet[Any]) -> str:
        """Name the backends of these rows that are no longer in the settings."""
        aliases = set(rows.order_by().values_list("backend", flat=True).distinct())
        gone = sorted(aliases - {alias for alias in task_backends if isinstance(task_backends[alias], HorsiesBackend)})
        if not gone:
            return ""
        message = gettext(
            "Nothing of these backends gets an event, because TASKS no longer has them as a HorsiesBackend: %(names)s."
        )
        return message % {"names": ", ".join(gone)}


class RetryAction(AdminAction):
    """Retries the failed nodes, and reports how many run again; that is the number that ``act`` returns."""

    def extent(self, rows: QuerySet[Any] | None) -> str:
        """See :meth:`AdminAction.extent`."""
        if rows is None:
            return gettext("The numbers here are of workflows. The message at the end has the number of nodes.")
        from ...workflows.engine.retry_nodes import count_failed

        return nodes_run_again(count_failed(rows.db, rows))

    def change(self, rows: QuerySet[Any], values: dict[str, Any]) -> tuple[int, int]:
        """See :meth:`AdminAction.change`. A workflow comes before its subworkflows, which a retry of it includes."""
        keys = list(rows.order_by("depth", "pk").values_list("pk", flat=True))
        counts = [self.act(all_rows(rows).filter(pk=key)) for key in keys]
        return sum(map(bool, counts)), sum(counts)

    def report(self, count: int, parts: int) -> str:
        """See :meth:`AdminAction.report`."""
        return f"{super().report(count, parts)} {nodes_run_again(parts)}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRetry(AdminAction):
    """Retries one node; for a map or a subworkflow, it reports how many nodes within run again."""

    node: WorkflowTask

    def extent(self, rows: QuerySet[Any] | None) -> str:
        """See :meth:`AdminAction.extent`."""
        from ...workflows.engine.retry_nodes import count_failed_in

        return nodes_run_again(count_failed_in(self.node))

    def change(self, rows: QuerySet[Any], values: dict[str, Any]) -> tuple[int, int]:
        """See :meth:`AdminAction.change`."""
        from ...workflows.engine.retry_nodes import count_failed_in

        inside, count = count_failed_in(self.node), self.act(rows)
        return count, inside if count else 0

    def report(self, count: int, parts: int) -> str:
        """See :meth:`AdminAction.report`."""
        return f"{self.message(count)} {nodes_run_again(parts)}".rstrip()


def retry_of_node(node: WorkflowTask) -> AdminAction:
    """Return the action that retries one node, and the nodes that were skipped because of it."""

    def act(rows: QuerySet[Any]) -> int:
        from ...workflows import control

        return control.retry(rows.db, node.workflow_id, Q(pk=node.pk))

    label = gettext("Retry %(name)s") % {"name": node.node_id}
    return NodeRetry(
        name="retry",
        label=label,
        list_label=label,
        act=act,
        message=lambda count: gettext("The node “%s” was re-queued.") % node.node_id if count else "",
        logged_columns=(),
        warning=_("The node runs again, and so do the nodes that were skipped because of it."),
        node=node,
    )


def nodes_run_again(count: int) -> str:
    """Say how many nodes run again; nothing if none does."""
    return ngettext("%s node runs again.", "%s nodes run again.", count) % format_number(count) if count else ""


def _for_each(change: Literal["pause", "resume", "retry", "cancel"], **options: bool) -> Callable[..., int]:
    """Return a function that applies a function of ``control`` to each row and returns the sum of its results."""

    def act(rows: QuerySet[Any]) -> int:
        from ...workflows import control

        apply: Callable[..., int] = getattr(control, change)
        return sum(apply(rows.db, key, **options) for key in list(rows.values_list("pk", flat=True)))

    return act


def _send_event(rows: QuerySet[Any], **values: Any) -> int:
    """Skip a workflow whose backend is gone, so that the others still get the event."""
    from ...workflows import control

    count = 0
    for key in list(rows.values_list("pk", flat=True)):
        with suppress(InvalidTask):
            count += control.send_event(rows.db, key, **values)
    return count


def _has_failed(workflow: Workflow) -> bool:
    from ...workflows.engine.retry_nodes import has_failed

    return has_failed(workflow)


def is_live(workflow: Any) -> bool:
    """Return whether it has not ended."""
    return workflow.status not in WORKFLOW_TERMINAL_STATES


def has_running_bodies(workflow: Any) -> bool:
    """Return whether tasks of it may be running, including those of a cancelled workflow."""
    return is_live(workflow) or workflow.open_count > 0


def _cancelled(count: int) -> str:
    return ngettext("%d workflow cancelled.", "%d workflows cancelled.", count)


PAUSE: Final = AdminAction(
    name="pause",
    label=_("Pause"),
    question=_("Pause %(rows)s?"),
    list_label=_("Pause selected workflows"),
    act=_for_each("pause"),
    message=lambda count: ngettext("%d workflow paused.", "%d workflows paused.", count),
    has_button=lambda workflow: workflow.status == WorkflowStatus.RUNNING,
)

RESUME: Final = AdminAction(
    name="resume",
    label=_("Resume"),
    question=_("Resume %(rows)s?"),
    list_label=_("Resume selected workflows"),
    act=_for_each("resume"),
    message=lambda count: ngettext("%d workflow resumed.", "%d workflows resumed.", count),
    has_button=lambda workflow: workflow.status == WorkflowStatus.PAUSED,
)

RETRY: Final = RetryAction(
    name="retry",
    label=_("Retry failed nodes"),
    question=_("Retry failed nodes of %(rows)s?"),
    list_label=_("Retry failed nodes of selected workflows"),
    act=_for_each("retry"),
    message=lambda count: ngettext(
        "Failed nodes of %d workflow re-queued.", "Failed nodes of %d workflows re-queued.", count
    ),
    has_button=_has_failed,
    warning=_("Nodes that failed or were skipped run again, also in subworkflows. Completed nodes do not."),
)

SEND_EVENT: Final = EventAction(
    name="send_event",
    label=_("Send event"),
    question=_("Send an event to %(rows)s?"),
    list_label=_("Send an event to selected workflows"),
    act=_send_event,
    message=lambda count: ngettext("Event sent to %d workflow.", "Event sent to %d workflows.", count),
    has_button=is_live,
    logged_columns=(),
    form=EventForm,
)

CANCEL: Final = AdminAction(
    name="cancel",
    label=_("Cancel workflow"),
    question=_("Cancel %(rows)s?"),
    list_label=_("Cancel selected workflows"),
    act=_for_each("cancel"),
    message=_cancelled,
    has_button=is_live,
    warning=_(
        "Nodes that have not started are skipped, here and in all subworkflows. Running tasks finish and keep "
        "their results. “Retry failed nodes” runs skipped nodes later."
    ),
)

CANCEL_RUNNING: Final = AdminAction(
    name="cancel_running",
    label=_("Cancel and stop running tasks"),
    question=_("Cancel %(rows)s and stop running tasks?"),
    list_label=_("Cancel selected workflows and stop running tasks"),
    act=_for_each("cancel", include_running=True),
    message=_cancelled,
    has_button=has_running_bodies,
    permission="cancel",
    warning=_(
        "Nodes that have not started are skipped, here and in all subworkflows. Running tasks are asked to "
        "stop, and their return values are discarded."
    ),
)

#: In the order of the buttons.
WORKFLOW_ACTIONS: Final = (RETRY, PAUSE, RESUME, SEND_EVENT, CANCEL, CANCEL_RUNNING)
