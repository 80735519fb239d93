"""The form that runs a task again with other arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

from django import forms
from django.core import signing
from django.forms.fields import InvalidJSONInput
from django.utils.translation import gettext_lazy as _

from ...core.compat import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY, task_backends
from ...core.ids import uuid7
from ...core.option_parsers import LONGEST_DURATION
from ...models import Task
from ...ops.inspector.run_again import EditableCall
from ..form_fields import JSONPayloadField

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
            known = sorted({task.queue_name, *names})
            self.fields["queue_name"].widget = forms.Select(choices=[(name, name) for name in known])

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
        known = task_backends[self._task.backend].queues
        if known and name not in known:
            message = _("The backend has no queue %(name)s; allowed: %(known)s.")
            raise forms.ValidationError(message, params={"name": name, "known": ", ".join(sorted(known))})
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
