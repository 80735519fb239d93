"""Run an ended task again as a new task: the page with the form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django import forms
from django.contrib import messages
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.core import signing
from django.forms.fields import InvalidJSONInput
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...core.compat import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY, InvalidTask, task_backends
from ...core.exceptions import PayloadMismatch, UniqueConflict
from ...core.ids import uuid7
from ...core.operations import acting_as
from ...core.option_parsers import LONGEST_DURATION
from ...enqueue.handle import TaskHandle
from ...models import Task
from ...ops.inspector.run_again import (
    EditableCall,
    InvalidArguments,
    editable_call,
    run_again,
    why_not_editable,
    why_not_run_again,
)
from ..actions.admin_action import log_action
from ..form_fields import JSONPayloadField

if TYPE_CHECKING:
    from .admin import TaskAdmin

#: Lines of a box for arguments.
MIN_LINES: Final = 3
MAX_LINES: Final = 24

#: Maximum seconds between opening and sending the form.
MAX_AGE: Final = 86_400

_BOX: Final = {"class": "vLargeTextField", "spellcheck": "false", "autocomplete": "off"}


def _json_box(label: Any, message: Any) -> JSONPayloadField:
    return JSONPayloadField(
        label=label, required=False, widget=forms.Textarea(attrs=_BOX), error_messages={"invalid": message}
    )


class RunAgainForm(forms.Form):
    """The arguments of a task as JSON, its queue, its priority and a delay."""

    #: The id of the new task, so that a form that is sent twice runs the task once. It is signed with the user and the
    #: old task: with the id of another task, the answer would tell whether that has the same arguments.
    task_id = forms.CharField(widget=forms.HiddenInput)
    args = _json_box(_("Arguments"), _('This is not valid JSON. Example: [1, "a"].'))
    kwargs = _json_box(_("Keyword arguments"), _('This is not valid JSON. Example: {"name": 1}.'))
    queue_name = forms.CharField(label=_("Queue"), max_length=100)
    priority = forms.IntegerField(
        label=_("Priority"),
        min_value=TASK_MIN_PRIORITY,
        max_value=TASK_MAX_PRIORITY,
        help_text=_("From −100 to 100; higher runs first."),
    )
    delay = forms.FloatField(
        label=_("Delay"),
        required=False,
        min_value=0,
        max_value=LONGEST_DURATION,
        widget=forms.NumberInput(attrs={"step": "any"}),
        help_text=_("Seconds. Empty: the task is due at once."),
    )

    def __init__(self, user_id: Any, task: Task, call: EditableCall, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._task = task
        self._salt = f"horsies_django.run_again.{user_id}.{task.pk}"
        task_id = signing.dumps(str(uuid7()), salt=self._salt)
        self.initial = {"task_id": task_id, "queue_name": task.queue_name, "priority": task.priority}
        for name, value in (("args", call.args), ("kwargs", call.kwargs)):
            text = json.dumps(value, indent=2, ensure_ascii=False) if value else ""
            lines = min(max(text.count("\n") + 2, MIN_LINES), MAX_LINES)
            self.fields[name].widget.attrs = {**_BOX, "rows": lines}
            self.initial[name] = InvalidJSONInput(text)  # shown as it is, in its own indentation
        names = task_backends[task.backend].queues
        if names:
            queue_names = sorted({task.queue_name, *names})
            self.fields["queue_name"].widget = forms.Select(choices=[(name, name) for name in queue_names])

    @property
    def rows(self) -> Iterator[list[forms.BoundField]]:
        """The visible fields in the lines of the page."""
        yield [self["args"]]
        yield [self["kwargs"]]
        yield [self["queue_name"], self["priority"], self["delay"]]

    def clean_task_id(self) -> UUID:
        """Return the id that this form has made for this user."""
        try:
            return UUID(signing.loads(self.cleaned_data["task_id"], salt=self._salt, max_age=MAX_AGE))
        except signing.BadSignature as error:
            raise forms.ValidationError(_("This form is invalid. Open it again.")) from error

    def clean_queue_name(self) -> str:
        """Raise ValidationError for a queue that the task's backend does not have."""
        name: str = self.cleaned_data["queue_name"]
        queue_names = task_backends[self._task.backend].queues
        if queue_names and name not in queue_names:
            message = _("The backend has no queue %(name)s; allowed: %(known)s.")
            raise forms.ValidationError(message, params={"name": name, "known": ", ".join(sorted(queue_names))})
        return name

    def clean_args(self) -> list[Any]:
        """Return a list; an empty box is one without items."""
        value: list[Any] = self._checked("args", list, _('This is not a JSON array. Example: [1, "a"].'))
        return value

    def clean_kwargs(self) -> dict[str, Any]:
        """Return a dict; an empty box is one without items."""
        value: dict[str, Any] = self._checked("kwargs", dict, _('This is not a JSON object. Example: {"name": 1}.'))
        return value

    def _checked(self, name: str, kind: type[Any], message: Any) -> Any:
        value = self.cleaned_data[name]
        if value is None:
            return kind()
        if not isinstance(value, kind):
            raise forms.ValidationError(message)
        return value


@dataclass(frozen=True, slots=True)
class RunAgain:
    """A request of the page that runs a task again."""

    admin: TaskAdmin
    request: HttpRequest
    task: Task

    def response(self) -> HttpResponse:
        """Show the form, or send the new task and open its page."""
        request, task = self.request, self.task
        if problem := why_not_run_again(task) or why_not_editable(task):
            if request.method == "POST":
                self._log(gettext("Run again was refused: %s") % problem, done=0)
            self.admin.message_user(request, gettext("This task can't be run again. %s") % problem, messages.ERROR)
            return HttpResponseRedirect(self._page_url(task.pk))
        call = editable_call(task)
        form = RunAgainForm(request.user.pk, task, call, request.POST if request.method == "POST" else None)
        if form.is_bound:
            if form.is_valid() and (handle := self._send(form)) is not None:
                self._log_and_tell(handle, is_own=handle.id == form.cleaned_data["task_id"])
                return HttpResponseRedirect(self._page_url(handle.id))
            fields = [str(form[name].label) for name in form.errors if name in form.fields]
            reasons = [*form.non_field_errors(), *fields]
            self._log(gettext("Run again was refused: %s") % ", ".join(map(str, reasons)), done=0)
        context = {
            "original": task,
            "title": gettext("Run %(task)s again") % {"task": task.task_name},
            "media": self.admin.media + form.media,
            "form": form,
            "hidden": call.hidden,
            "typed": task.typed_payload,
            "back": self._page_url(task.pk),
        }
        return self.admin.render(request, "task_run_again", context)

    def _send(self, form: forms.Form) -> TaskHandle[Any] | None:
        """Send the new task; add an error to the form, and return None, if the call is invalid."""
        try:
            with acting_as(self.request.user.get_username(), "admin"):
                return run_again(self.task, **form.cleaned_data)
        except InvalidArguments as error:
            form.add_error(error.where, str(error))
        except PayloadMismatch:
            form.add_error(None, gettext("This form has already been sent with other values. Open it again."))
        except (InvalidTask, UniqueConflict, TypeError, ValueError) as error:
            form.add_error(None, str(error))
        return None

    def _log_and_tell(self, handle: TaskHandle[Any], *, is_own: bool) -> None:
        task, old_link = self.task, format_html('<a href="{}">{}</a>', self._page_url(self.task.pk), self.task.pk)
        if not is_own:  # the key of a unique task belongs to another one
            self._log(gettext("Run again: no new task, %s has the same unique key.") % handle.id, done=0)
            text = gettext("No new task: this one has the same unique key. Run again from {}.")
            self.admin.message_user(self.request, format_html(text, old_link), messages.WARNING)
        elif handle.replayed:
            self._log(gettext("Run again: the form had already been sent, as %s.") % handle.id, done=0)
        else:
            self._log(gettext("Run again as %s.") % handle.id, done=1)
            new = Task(pk=handle.id, task_name=task.task_name)
            self._log_row(new, ADDITION, gettext("Run again from %s.") % task.pk)
            text = gettext("This is a new task, run again from {}.")
            self.admin.message_user(self.request, format_html(text, old_link), messages.SUCCESS)

    def _log(self, text: str, *, done: int) -> None:
        """Log what became of a request to run the task again."""
        self._log_row(self.task, CHANGE, text)
        log_action(self.request, Task, gettext("Run again"), done, 1 - done)

    def _log_row(self, task: Task, flag: int, text: str) -> None:
        LogEntry.objects.log_actions(self.request.user.pk, [task], flag, text)  # type: ignore[arg-type]  # the stubs ask for a queryset, Django takes any list

    def _page_url(self, key: Any) -> str:
        return self.admin.page_url("change", key)
