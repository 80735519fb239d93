"""The form of a schedule that is not declared in code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zoneinfo import available_timezones

from django import forms
from django.forms import ModelForm
from django.utils.translation import gettext_lazy as _

from ...core.compat import task_backends
from ...core.registry import registry
from ...core.schedule_patterns import with_kind
from ...enqueue.backend import HorsiesBackend
from ...enqueue.task import HorsiesTask
from ...models import Schedule
from ...models.operator_actions import ENGINE_TASK_PREFIX
from ...workflows.definition_registry import definition_registry
from ..base import queue_database
from ..form_fields import SuggestionInput, validate_date
from ..lists.name_filters import task_names

if TYPE_CHECKING:
    AnyModelForm = ModelForm[Schedule]
else:  # generic in the type stubs only
    AnyModelForm = ModelForm


class ScheduleForm(AnyModelForm):
    """The fields of a schedule. The scheduler's validation reports errors by field."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        offered = {"task_name": task_names, "workflow_name": _workflow_names, "timezone": available_timezones}
        for name, names in offered.items():
            if name in self.fields:
                self.fields[name].widget = SuggestionInput(attrs={"class": "vTextField", "spellcheck": "false"})
                self.fields[name].widget.suggestions = sorted(names())
        if "timezone" in self.fields:
            self.fields["timezone"].show_hidden_initial = False  # Django sets it because the default is callable
        if "timing" in self.fields:
            self.fields["timing"].help_text = _(
                "A cron expression, e.g. 0 9 * * MON-FRI, or an interval in seconds, e.g. every:300."
            )
        for name in ("start_at", "end_at"):
            if name in self.fields:
                _name_both_parts(self.fields[name])
                self.fields[name].validators.append(validate_date)

    def clean_task_name(self) -> str | None:
        """Accept only tasks that the project has loaded, so that input never imports a module."""
        name: str = self.cleaned_data["task_name"] or ""
        if name and "task_name" in self.changed_data and not _is_loaded_task(name):
            message = _("%(name)s is not a task of this project; allowed: the name of a registered task.")
            raise forms.ValidationError(message, params={"name": name}, code="unknown")
        return name or None

    def clean_timing(self) -> str:
        """Accept a bare cron expression as well."""
        return with_kind(self.cleaned_data["timing"])

    def clean_workflow_name(self) -> str | None:
        """Turn an empty value into None."""
        return self.cleaned_data["workflow_name"] or None

    def clean_args(self) -> Any:
        """Turn an empty value into no arguments."""
        return self._json("args", list, _('This is not a JSON array. Example: [1, "a"].'))

    def clean_kwargs(self) -> Any:
        """Turn an empty value into no arguments."""
        return self._json("kwargs", dict, _('This is not a JSON object. Example: {"name": 1}.'))

    def clean_options(self) -> Any:
        """Turn an empty value into no options."""
        return self._json("options", dict, _('This is not a JSON object. Example: {"name": 1}.'))

    def _json(self, name: str, kind: type[Any], message: Any) -> Any:
        value = self.cleaned_data[name]
        if value is None:
            return kind()
        if not isinstance(value, kind):
            raise forms.ValidationError(message, code="invalid")
        return value

    def validate_unique(self) -> None:
        """Check uniqueness in the schedules' database; Django would check the one that the routers name."""
        name = self.cleaned_data.get("name")
        others = Schedule.objects.using(queue_database()).exclude(pk=self.instance.pk)
        if name is not None and others.filter(name=name).exists():
            self.add_error("name", self.instance.unique_error_message(Schedule, ("name",)))


def _name_both_parts(field: forms.Field) -> None:
    """Label both boxes of a date and time for screen readers; Django does so only since 6.0."""
    date, time = getattr(field.widget, "widgets", (None, None))
    if date is not None and time is not None:
        date.attrs["aria-label"] = _("%(field)s, date") % {"field": field.label}
        time.attrs["aria-label"] = _("%(field)s, time") % {"field": field.label}


def backends() -> list[str]:
    """Return the aliases of the horsies backends."""
    return [alias for alias in task_backends if isinstance(task_backends[alias], HorsiesBackend)]


def _is_loaded_task(name: str) -> bool:
    return isinstance(registry.tasks.get(name), HorsiesTask) and not name.startswith(ENGINE_TASK_PREFIX)


def _workflow_names() -> set[str]:
    keys = (definition._meta.options.definition_key for definition in definition_registry.definitions.values())
    return set(filter(None, keys))
