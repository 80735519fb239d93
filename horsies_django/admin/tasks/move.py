"""What the form asks that moves tasks."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from ...compat import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY, task_backends


class MoveForm(forms.Form):
    """Another queue, another priority, or both."""

    queue_name = forms.CharField(label=_("Queue"), max_length=100, required=False)
    priority = forms.IntegerField(
        label=_("Priority"),
        min_value=TASK_MIN_PRIORITY,
        max_value=TASK_MAX_PRIORITY,
        required=False,
        help_text=_("From −100 to 100; higher runs first. Empty: as it is."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._queues = _known_queues()
        field = self.fields["queue_name"]
        field.help_text = _("Empty: as it is.")
        if self._queues is not None:
            field.widget = forms.Select(choices=[("", "—"), *((name, name) for name in self._queues)])

    def clean_queue_name(self) -> str | None:
        """Refuse a queue that no backend has."""
        name: str = self.cleaned_data["queue_name"]
        if name and self._queues is not None and name not in self._queues:
            known = ", ".join(self._queues)
            raise forms.ValidationError(
                _("No backend has the queue %(name)s; allowed: %(known)s."), params={"name": name, "known": known}
            )
        return name or None

    def clean(self) -> dict[str, Any]:
        """Ask for at least one of the two."""
        values = {name: self.cleaned_data.get(name) for name in ("queue_name", "priority")}
        if not self.errors and values["queue_name"] is None and values["priority"] is None:
            raise forms.ValidationError(_("Give a queue, a priority or both."))
        return values


def _known_queues() -> list[str] | None:
    """Return the queues that the settings name; None if a backend has any."""
    named = [set(task_backends[alias].queues) for alias in task_backends]
    return sorted(set().union(*named)) if all(named) else None
