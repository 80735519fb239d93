"""The form for moving tasks to another queue or priority."""

from __future__ import annotations

from typing import Any

from django import forms
from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _

from ...core.compat import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY, task_backends


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
        found = list(tasks.order_by().values("queue_name", "priority")[:2])
        if len(found) != 1:
            return
        self.initial = found[0]
        if self._queues is not None:
            names = sorted({self.initial["queue_name"], *self._queues})  # its queue may be unconfigured
            self._set_choices([(name, name) for name in names])

    def clean_queue_name(self) -> str | None:
        """Raise ValidationError for a queue that no backend has."""
        name: str = self.cleaned_data["queue_name"]
        if name and self._queues is not None and name not in self._queues and "queue_name" in self.changed_data:
            known = ", ".join(self._queues)
            raise forms.ValidationError(
                _("No backend has the queue %(name)s; allowed: %(known)s."), params={"name": name, "known": known}
            )
        return name or None

    def clean(self) -> dict[str, Any]:
        """Require a change of queue or priority."""
        changed = set(self.changed_data)
        values = {name: self.cleaned_data.get(name) if name in changed else None for name in self.fields}
        if not self.errors and values["queue_name"] is None and values["priority"] is None:
            raise forms.ValidationError(_("Select another queue, enter another priority, or both."))
        return values


def _known_queues() -> list[str] | None:
    """Return the queues in the settings; None if a backend accepts any queue."""
    named = [set(task_backends[alias].queues) for alias in task_backends]
    return sorted(set().union(*named)) if all(named) else None
